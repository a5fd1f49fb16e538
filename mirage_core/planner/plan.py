"""The answer of ``mirage plan``: for each GPU and each model on it, figures as ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mirage_core.errors import ConfigError
from mirage_core.planner.lend import Lending, Member, lend, pool_size
from mirage_core.planner.load import Means, Run, mean_requests, rates_at_full_load, run_loads
from mirage_core.planner.place import PlacedGpu, place, request_tokens
from mirage_core.planner.wanted import Question
from mirage_core.simulator.build import with_rates
from mirage_core.sizing.caches import CacheKind
from mirage_core.sizing.hardware import Hardware
from mirage_core.sizing.model import ModelSizing

CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
"""Where in their ranges memory (with arithmetic) and link lie: 0 slow, 1 fast."""


@dataclass(frozen=True, slots=True)
class Span:
    """A figure over all rates that the GPU may have."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Span:
        found = list(values)
        return cls(min(found), max(found))


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model on one GPU; the fields of ``lend.Lending``, over all rates."""

    model: str
    architecture: str
    priority: int
    size_bytes: int
    movable_bytes: int
    static_bytes: int
    pool_bytes: int
    static_tokens: int
    batch: int
    units: int
    free_units: Span
    idle_units: Span
    idle_bytes: Span
    tokens_others_busy: Span
    tokens_others_idle: Span
    step_s: Span
    prefill_s: Span
    lent_first_token_s: Span
    load_s: Span
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One arm at one load; costs are of a million generated tokens, if the GPU's price is known."""

    load: float
    requests_per_s: float
    arm: str
    ttft_p50_s: Span
    ttft_p99_s: Span
    tbt_p50_s: Span
    tbt_p99_s: Span
    tokens_per_s: Span
    preemptions: Span
    cost_per_million: Span | None


@dataclass(frozen=True, slots=True)
class GpuPlan:
    name: str
    hardware: str
    hbm_bytes: int
    usable_bytes: int
    claimed_bytes: int
    price_per_hour: float | None
    calibrated: bool
    sources: tuple[str, ...]
    models: tuple[ModelPlan, ...]
    loads: tuple[LoadPlan, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """``to_json`` is the machine's form: bytes, seconds, tokens; null where there is no figure."""

    gpus: tuple[GpuPlan, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=_without_nan)


def _without_nan(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON has no number for "nothing came to take a percentile of"."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in items
    }


def make_plan(question: Question, told: Callable[[str], None] = lambda doing: None) -> Plan:
    """Place, lend and predict; ``told`` hears what is being worked on.

    Raises ConfigError if a model has no room, or cannot be sized.
    """
    gpus: list[GpuPlan] = []
    done: dict[tuple[object, ...], GpuPlan] = {}
    for gpu in place(question):
        told(f"{gpu.name}: {gpu.hardware.name}")
        alike = (gpu.hardware, gpu.tenants, gpu.price_per_hour)
        if alike not in done:
            done[alike] = _gpu_plan(question, gpu)
        gpus.append(replace(done[alike], name=gpu.name))
    return Plan(tuple(gpus))


def _gpu_plan(question: Question, gpu: PlacedGpu) -> GpuPlan:
    wanted, hardware = question.wanted, _with_neighbours(gpu.hardware)
    longest = [request_tokens(question, tenant.sizing) for tenant in gpu.tenants]
    means = [mean_requests(wanted, tokens) for tokens in longest]
    members = [
        Member(
            tenant, pool_size(tenant, wanted.block_tokens, wanted.page_bytes), mean.traffic, most
        )
        for tenant, mean, most in zip(gpu.tenants, means, longest, strict=True)
    ]
    cases = [lend(members, with_rates(hardware, *corner), wanted.grain) for corner in CORNERS]
    loads, notes = _loads(question, gpu, hardware, members, means, longest)
    return GpuPlan(
        name=gpu.name,
        hardware=hardware.name,
        hbm_bytes=hardware.hbm_bytes,
        usable_bytes=gpu.usable_bytes,
        claimed_bytes=gpu.claimed_bytes,
        price_per_hour=gpu.price_per_hour,
        calibrated=hardware.calibrated,
        sources=hardware.sources,
        models=tuple(
            _model_plan(member, [case[index] for case in cases])
            for index, member in enumerate(members)
        ),
        loads=loads,
        notes=notes,
    )


def _with_neighbours(hardware: Hardware) -> Hardware:
    """The same GPU; its link is as slow, at worst, as with all of its domain's GPUs at work."""
    link, domain = hardware.h2d_bytes_per_s, hardware.domain_h2d_bytes_per_s
    least = min(link.low, domain.low / hardware.domain_gpus)
    return replace(hardware, h2d_bytes_per_s=replace(link, low=least))


def _model_plan(member: Member, cases: Sequence[Lending]) -> ModelPlan:
    tenant, sizing = member.tenant, member.tenant.sizing

    def span(field: str) -> Span:
        return Span.of(getattr(case, field) for case in cases)

    return ModelPlan(
        model=tenant.wanted.label,
        architecture=sizing.architecture,
        priority=tenant.wanted.priority,
        size_bytes=tenant.size_bytes,
        movable_bytes=sizing.movable_bytes,
        static_bytes=sizing.static_bytes,
        pool_bytes=tenant.size_bytes - sizing.weight_bytes,
        static_tokens=member.pool.tokens,
        batch=member.batch,
        units=cases[0].units,
        notes=_notes(sizing),
        **{field: span(field) for field in _SPANS},
    )


_SPANS = tuple(field.name for field in fields(ModelPlan) if field.type == "Span")


def _notes(sizing: ModelSizing) -> tuple[str, ...]:
    """What the figures of this model leave out."""
    kinds = {cache.kind for cache in sizing.caches()}
    notes = []
    if kinds & {CacheKind.STATE, CacheKind.CROSS}:
        notes.append(
            "keeps a state or an encoder's output of each request, which tokens do not count;"
            " the plug-in does not serve such models yet"
        )
    if kinds & {CacheKind.SLIDING, CacheKind.CHUNKED}:
        notes.append("windows are counted as full attention: long requests hold less than said")
    if sizing.ranks > 1:
        notes.append(f"one of {sizing.ranks} ranks; what ranks tell each other takes no time here")
    return tuple(notes)


def _loads(
    question: Question,
    gpu: PlacedGpu,
    hardware: Hardware,
    members: Sequence[Member],
    means: Sequence[Means],
    longest: Sequence[int],
) -> tuple[tuple[LoadPlan, ...], tuple[str, ...]]:
    """Predictions, or why there are none."""
    wanted = question.wanted
    if not wanted.loads or not members:
        return (), ()
    full_rates = rates_at_full_load(lend(members, hardware, wanted.grain), means)
    try:
        slow, fast = (
            list(run_loads(members, full_rates, longest, hardware.at(share), wanted))
            for share in (0.0, 1.0)
        )
    except ConfigError as error:
        return (), (f"latency is not predicted: {error}",)
    loads = tuple(_load_plan(pair, gpu.price_per_hour) for pair in zip(slow, fast, strict=True))
    return loads, ()


def _load_plan(runs: tuple[Run, Run], price_per_hour: float | None) -> LoadPlan:
    def span(field: str) -> Span:
        return Span.of(getattr(run.figures, field) for run in runs)

    tokens_per_s = span("throughput_tok_s")
    cost = None
    if price_per_hour is not None and tokens_per_s.low > 0:
        cost = Span.of(
            price_per_hour / 3600 / rate * 1e6 for rate in (tokens_per_s.low, tokens_per_s.high)
        )
    return LoadPlan(
        load=runs[0].load,
        requests_per_s=runs[0].requests_per_s,
        arm=runs[0].arm,
        ttft_p50_s=span("ttft_p50_s"),
        ttft_p99_s=span("ttft_p99_s"),
        tbt_p50_s=span("tbt_p50_s"),
        tbt_p99_s=span("tbt_p99_s"),
        tokens_per_s=tokens_per_s,
        preemptions=span("preemptions"),
        cost_per_million=cost,
    )
