"""Latency and cost against load: the simulator serves generated traffic on one planned GPU.

Loads are parts of what the GPU can do at most: a load of 1.0 keeps it computing all the time with
every batch as large as its static pool allows.  Each model gets an equal part of that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_core.planner.lend import MOST_REQUESTS, Lending, Member, Traffic
from mirage_core.planner.wanted import Wanted
from mirage_core.simulator.arms.mirage import MirageArm
from mirage_core.simulator.build import engine_spec, link_spec
from mirage_core.simulator.config import DeviceSpec, RunConfig, SchedulerLimits
from mirage_core.simulator.memory_port import StaticArm
from mirage_core.simulator.outputs import Figures, figures_of
from mirage_core.simulator.run import simulate
from mirage_core.simulator.run_file import GAPS, LENGTHS
from mirage_core.simulator.workloads.files import read_lengths
from mirage_core.simulator.workloads.quantiles import LengthSource
from mirage_core.simulator.workloads.streams import Stream, merge
from mirage_core.simulator.workloads.trace import draw_lengths, generate
from mirage_core.sizing.hardware import Hardware

SAMPLE = 20_000
TURN_S = 1.0
"""Models take turns of so long, as in ``mirage simulate``."""


@dataclass(frozen=True, slots=True)
class Means:
    """Mean requests of one model: what its lending depends on, and tokens of a reply."""

    traffic: Traffic
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Run:
    """One arm at one load and one set of rates; all models' requests together."""

    load: float
    requests_per_s: float
    arm: str
    figures: Figures


def mean_requests(wanted: Wanted, longest_tokens: int) -> Means:
    """Of requests of at most ``longest_tokens`` tokens.

    The context is that at a token of a reply drawn at random: the prompt and half of that reply.
    """
    prompts, outputs = draw_lengths(_lengths(wanted), SAMPLE, longest_tokens, wanted.seed)
    context = float(((prompts + outputs / 2) * outputs).sum() / outputs.sum())
    return Means(Traffic(round(float(prompts.mean())), round(context)), float(outputs.mean()))


def rates_at_full_load(lendings: Sequence[Lending], means: Sequence[Means]) -> list[float]:
    """Requests a second of each model, all together keeping the GPU busy, each an equal part."""
    return [
        1.0 / len(lendings) / (each.prefill_s + mean.output_tokens * each.step_s / each.batch)
        for each, mean in zip(lendings, means, strict=True)
    ]


def run_loads(
    members: Sequence[Member],
    full_rates_per_s: Sequence[float],
    longest_tokens: Sequence[int],
    hardware: Hardware,
    wanted: Wanted,
) -> Iterator[Run]:
    """Both arms at every load of ``wanted``; raises ConfigError for what is not simulated."""
    engines = tuple(
        engine_spec(
            member.tenant.sizing,
            hardware,
            member.tenant.size_bytes,
            SchedulerLimits(
                block_tokens=wanted.block_tokens, max_num_seqs=MOST_REQUESTS, max_model_len=longest
            ),
            grain=wanted.grain,
            priority=member.tenant.wanted.priority,
        )
        for member, longest in zip(members, longest_tokens, strict=True)
    )
    device = DeviceSpec(
        name="gpu",
        engines=engines,
        memory_bytes=sum(member.tenant.size_bytes for member in members),
        page_bytes=wanted.page_bytes,
        quantum_s=TURN_S,
        link="link",
    )
    for load in wanted.loads:
        rates = [load * rate for rate in full_rates_per_s]
        horizon_s = wanted.requests / sum(rates)
        streams = [
            Stream(
                index,
                generate(
                    GAPS[wanted.arrivals],
                    _lengths(wanted),
                    max(rate, 1.0 / horizon_s),
                    horizon_s,
                    longest,
                    wanted.seed + index,
                ),
            )
            for index, (rate, longest) in enumerate(zip(rates, longest_tokens, strict=True))
        ]
        for arm in (StaticArm(), MirageArm()):
            config = RunConfig(
                models=tuple(engine.model for engine in engines),
                devices=(device,),
                links=(link_spec("link", hardware),),
                arm=arm,
                seed=wanted.seed,
            )
            yield Run(load, sum(rates), arm.name, figures_of(simulate(config, merge(streams))))


def _lengths(wanted: Wanted) -> LengthSource:
    """A dataset's lengths by name, or a table of lengths by path."""
    known = LENGTHS.get(wanted.lengths)
    return known if known is not None else read_lengths(Path(wanted.lengths))
