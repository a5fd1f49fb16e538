"""From a case to a simulated run and its figures; each case runs once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.figures import conditions as on
from benchmarks.figures.comparisons import Metric
from benchmarks.figures.conditions import Case, Tenant
from mirage_core.policy.settings import Policy
from mirage_core.simulator.arms.elastic import ElasticArm
from mirage_core.simulator.arms.kv_swap import KvSwapArm
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.build import Overheads, engine_spec, link_spec, with_rates
from mirage_core.simulator.config import (
    DeviceSpec,
    EngineSpec,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.memory_port import Arm, StaticArm
from mirage_core.simulator.outputs import Figures, figures_of
from mirage_core.simulator.request import Requests
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from mirage_core.simulator.workloads.quantiles import (
    ALPACA,
    AZURE_CODE,
    SHAREGPT,
    Even,
    LengthSource,
)
from mirage_core.simulator.workloads.streams import Stream, merge
from mirage_core.simulator.workloads.trace import Trace, draw_lengths, generate
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.hardware import Hardware, find_hardware

GIB_PER_GB = 1.073741824
BATCHED_TOKENS = 2048
"""vLLM 0.7.3's max_num_batched_tokens for these models."""
WHOLE_POOL = 0.95
"""All of a pool, less what rounding weights up to whole pages takes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: what it was asked for, and its figures."""

    rate_per_s: float
    """requests a second, all models together; inf if all came at once"""
    figures: Figures

    def value(self, metric: Metric) -> float:
        found: float = getattr(self.figures, metric.value)
        return found


class Runner:
    """Runs cases; ``measured`` grows as it goes, and so does the log, if there is one.

    ``log`` has a JSON line a run.  With ``resume`` the runs that it holds are taken as they are,
    which is right as long as nothing but claims and pictures changed since.
    """

    def __init__(self, log: Path | None = None, *, resume: bool = False) -> None:
        self.measured: dict[Case, Measured] = {}
        self._log = log
        self._known = _read(log) if log is not None and resume and log.exists() else {}
        if log is not None and not self._known:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("")

    def run(self, case: Case) -> Measured:
        """The case's figures, simulated on the first call."""
        found = self.measured.get(case)
        if found is None:
            found = self._known.get(repr(case)) or self._simulate(case)
            self.measured[case] = found
        return found

    def rate_per_s(self, case: Case) -> float:
        """Requests a second that the case offers."""
        if case.rate_per_s is not None:
            return case.rate_per_s
        if case.load is None:
            return math.inf
        served = self.run(case.saturating).figures
        return case.load * served.finished / served.span_s

    def _simulate(self, case: Case) -> Measured:
        rate_per_s = self.rate_per_s(case)
        measured = Measured(rate_per_s, figures_of(simulate_case(case, rate_per_s)))
        if self._log is not None:
            row = {"case": repr(case), "rate_per_s": rate_per_s, **asdict(measured.figures)}
            with self._log.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return measured


def _read(log: Path) -> dict[str, Measured]:
    """Runs by the case's text; a last line without its end was being written and is left out."""
    lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    log.write_text("".join(lines))
    found = {}
    for row in map(json.loads, lines):
        case, rate_per_s = row.pop("case"), row.pop("rate_per_s")
        found[case] = Measured(rate_per_s, Figures(**row))
    return found


def simulate_case(case: Case, rate_per_s: float) -> Results:
    """The case's run at ``rate_per_s``; inf: all requests are there at the start."""
    config = config_of(case)
    return simulate(config, requests_of(case, _longest(case, config), rate_per_s))


def config_of(case: Case) -> RunConfig:
    """Devices, engines and arm of a case."""
    hardware = with_rates(find_hardware(case.gpu), *case.bandwidth)
    engines = [_engine(case, index, tenant, hardware) for index, tenant in enumerate(case.tenants)]
    groups = [[engine] for engine in engines] if case.sharing == "mig" else [engines]
    devices = tuple(
        DeviceSpec(
            name=f"device {index}",
            engines=tuple(group),
            memory_bytes=sum(_held_bytes(engine) for engine in group),
            sharing=Sharing.SPATIAL if case.sharing == "spatial" else Sharing.TEMPORAL,
            quantum_s=case.quantum_s,
            spatial_overlap=case.overlap,
            link="link",
        )
        for index, group in enumerate(groups)
    )
    return RunConfig(
        models=tuple(tenant.model for tenant in case.tenants),
        devices=devices,
        links=(link_spec("link", hardware),),
        arm=arm_of(case),
        seed=case.seed,
    )


def arm_of(case: Case) -> Arm:
    """The arm that the case names."""
    choice = case.arm
    if choice.kind == "mirage":
        # Who has a device alone shares its pool with nobody, and keeps it from the start.
        alone = len(case.tenants) == 1 or case.sharing == "mig"
        return MirageArm(
            policy=choice.policy or Policy(),
            parts_per_unit=case.parts,
            least_pool_share=WHOLE_POOL if alone else MirageArm().least_pool_share,
        )
    arms: dict[str, Callable[[], Arm]] = {
        "static": StaticArm,
        "elastic": ElasticArm,
        "swap": KvSwapArm,
    }
    return arms[choice.kind]()


def _engine(case: Case, index: int, tenant: Tenant, hardware: Hardware) -> EngineSpec:
    whole_bytes = hardware.hbm_bytes * (GIB_PER_GB if case.memory == "GiB" else 1.0)
    spec = engine_spec(
        find_model(tenant.model),
        hardware,
        int(whole_bytes * tenant.memory_share - case.working_gb * 1e9),
        SchedulerLimits(
            max_num_seqs=case.max_seqs,
            max_num_batched_tokens=BATCHED_TOKENS,
            max_model_len=on.LONGEST_TOKENS,
        ),
        overheads=Overheads(case.overhead_s),
        compute_share=case.slices[index] if case.slices else 1.0,
    )
    return replace(spec, pool_blocks=int(spec.pool_blocks * case.kv_scale))


def _held_bytes(engine: EngineSpec) -> int:
    weights = sum(engine.unit_bytes) + engine.static_bytes
    return weights + engine.pool_blocks * engine.block_bytes


def _longest(case: Case, config: RunConfig) -> list[int]:
    """Tokens of each tenant's longest request: what its static pool holds, OPT's limit at most."""
    engines = [engine for device in config.devices for engine in device.engines]
    return [
        min(on.LONGEST_TOKENS, int(engine.pool_blocks / case.kv_scale) * engine.limits.block_tokens)
        for engine in engines
    ]


def requests_of(case: Case, longest: Sequence[int], rate_per_s: float) -> Requests:
    """Each tenant's part of the requests, with arrivals of its own."""
    weights = sum(tenant.weight for tenant in case.tenants)
    streams = []
    for index, tenant in enumerate(case.tenants):
        share = tenant.weight / weights
        count = max(1, round(case.count * share))
        lengths, seed = _lengths(tenant.lengths, case.prompt_share), 100 * case.seed + index
        if math.isinf(rate_per_s):
            trace = Trace(np.zeros(count), *draw_lengths(lengths, count, longest[index], seed))
        else:
            mine_per_s = rate_per_s * share
            trace = generate(
                AZURE_CODE, lengths, mine_per_s, count / mine_per_s, longest[index], seed
            )
        streams.append(Stream(index, trace))
    return merge(streams)


@cache
def _lengths(name: str, prompt_share: float) -> LengthSource:
    known: dict[str, LengthSource] = {
        "ShareGPT": SHAREGPT,
        "Alpaca": ALPACA,
        "long": Even(on.LONG_TOKENS, on.SYNTHETIC_SPREAD, prompt_share),
        "short": Even(on.SHORT_TOKENS, on.SYNTHETIC_SPREAD, prompt_share),
    }
    return known[name]
