"""A real run once more, simulated: same requests, pools, pages and arm, calibrated step times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.validation.calibrate import Calibration
from benchmarks.validation.records import Head, Record
from mirage_core.errors import ConfigError
from mirage_core.policy.settings import Policy
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.config import (
    DeviceSpec,
    EngineSpec,
    LinkSpec,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.memory_port import Arm, StaticArm
from mirage_core.simulator.mirage_worker import HOST_COSTS
from mirage_core.simulator.outputs import figures_of
from mirage_core.simulator.request import requests_from
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate

LINK_BYTES_PER_S = 8e9
"""Host copies of this kind of machine, where a run fetched nothing that could be measured."""
_COSTS_PAGE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is compared: a real run's figures, or a predicted run's."""

    ttft_p50_s: float
    ttft_p99_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    throughput_tok_s: float
    preemptions: float


def real_outcome(record: Record) -> Outcome:
    """As ``benchmarks.sharing.figures`` defines the figures."""
    ttft_s, gaps_s = [], []
    for request in record.requests:
        times_s = request.token_times_s
        if times_s:
            ttft_s.append(times_s[0] - request.arrival_s)
            gaps_s += np.diff(times_s).tolist()
    span_s = max((r.token_times_s[-1] for r in record.requests if r.token_times_s), default=0.0)
    tokens = sum(len(r.token_times_s) for r in record.requests if r.finished)
    if not ttft_s or not gaps_s or not span_s:
        raise ConfigError(f"{record.head.name}: no request got two tokens; nothing to compare")
    return Outcome(
        ttft_p50_s=float(np.percentile(ttft_s, 50)),
        ttft_p99_s=float(np.percentile(ttft_s, 99)),
        tbt_p50_s=float(np.percentile(gaps_s, 50)),
        tbt_p99_s=float(np.percentile(gaps_s, 99)),
        throughput_tok_s=tokens / span_s,
        preemptions=record.head.preemptions,
    )


def predict(
    record: Record, calibrations: Mapping[str, Calibration], first_token_s: float = 0.0
) -> Outcome:
    """The run that ``record`` describes, simulated with calibrated step times by model;
    ``first_token_s`` is what the server and the client add to a first token."""
    figures = figures_of(_simulated(record, calibrations, first_token_s))
    first_s = min(request.arrival_s for request in record.requests)
    tokens = figures.throughput_tok_s * figures.span_s
    return Outcome(
        ttft_p50_s=figures.ttft_p50_s,
        ttft_p99_s=figures.ttft_p99_s,
        tbt_p50_s=figures.tbt_p50_s,
        tbt_p99_s=figures.tbt_p99_s,
        throughput_tok_s=tokens / (figures.span_s + first_s),
        preemptions=float(figures.preemptions),
    )


def added_first_token_s(record: Record, calibrations: Mapping[str, Calibration]) -> float:
    """What the server and the client add to a first token: by how much the quarter of the requests
    that wait least when simulated came later in the run."""
    simulated_s = _simulated(record, calibrations, 0.0).ttft_s()
    served = sorted(record.requests, key=lambda request: request.arrival_s)
    later_s = [
        request.token_times_s[0] - request.arrival_s - simulated_s[index]
        for index in np.argsort(simulated_s)[: max(1, len(served) // 4)].tolist()
        if (request := served[index]).token_times_s
    ]
    return max(0.0, float(np.median(later_s))) if later_s else 0.0


def _simulated(
    record: Record, calibrations: Mapping[str, Calibration], first_token_s: float
) -> Results:
    """Requests in the order of their arrival."""
    head = record.head
    names = tuple(head.models)
    config = RunConfig(
        models=names,
        devices=(
            DeviceSpec(
                name="host device",
                engines=tuple(_engine(head, name, calibrations[name]) for name in names),
                memory_bytes=head.device_bytes,
                page_bytes=head.page_bytes,
                sharing=Sharing.SPATIAL,
                spatial_overlap=1.0 - float(np.mean([c.slowdown for c in calibrations.values()])),
                link="memory",
            ),
        ),
        links=(_link(head),),
        arm=_arm(head),
        network_s=first_token_s / 2,
    )
    ordered = sorted(record.requests, key=lambda request: request.arrival_s)
    requests = requests_from(
        [request.arrival_s for request in ordered],
        [request.prompt_tokens for request in ordered],
        [request.output_tokens for request in ordered],
        model=[names.index(request.model) for request in ordered],
        source=head.name,
    )
    return simulate(config, requests)


def _engine(head: Head, name: str, calibration: Calibration) -> EngineSpec:
    model = head.models[name]
    units = (model.unit_bytes,) * model.layers
    blocks = model.pool_tokens // head.block_size
    return EngineSpec(
        model=name,
        step_time=calibration.step_time,
        pool_blocks=blocks,
        limits=SchedulerLimits(
            block_tokens=head.block_size,
            max_num_seqs=head.max_num_seqs,
            max_model_len=head.max_model_len,
        ),
        block_bytes=model.kv_bytes_per_token * head.block_size,
        kv_layers=model.layers,
        unit_bytes=units,
        static_bytes=model.weight_bytes - sum(units),
    )


def _static(head: Head) -> bool:
    return head.arm in ("stock", "passive")


def _arm(head: Head) -> Arm:
    if _static(head):
        return StaticArm()
    if head.arm not in ("elastic", "mirage"):
        raise ConfigError(f"{head.name}: no such arm is simulated")
    share = head.page_bytes / _COSTS_PAGE_BYTES
    costs = HOST_COSTS.of_pages(share)
    return MirageArm(
        name=head.arm,
        policy=Policy(weights_move=head.arm == "mirage"),
        costs=costs,
        least_pool_share=1.0,  # a record's pool of an arm that shares is its least
    )


def _link(head: Head) -> LinkSpec:
    """The rate at which the run's own fetches went."""
    counted = head.counted
    busy_s = counted.get("fetch_busy_s", 0.0)
    rate = counted["fetched_bytes"] / busy_s if busy_s else LINK_BYTES_PER_S
    return LinkSpec("memory", 2 * rate, 2 * rate, rate, rate)
