"""A plan as tables of at most 80 columns, ranges as ``low-high``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from mirage_core.planner.plan import GpuPlan, LoadPlan, ModelPlan, Plan, Span
from mirage_core.sizing.hardware import GIGA

NO_PRICE = "No cost: give the GPU a price (--price-per-hour, or price_per_hour in the file)."
UNCALIBRATED = (
    "Estimates from rates that others published and measured, low to high; not calibrated on"
    " this GPU."
)


def render(plan: Plan) -> Iterator[RenderableType]:
    """Everything that the terminal shows, top to bottom."""
    for gpu in plan.gpus:
        yield (
            f"\n[bold]{gpu.name}: {gpu.hardware}[/], {_gb(gpu.hbm_bytes)} GB, of which"
            f" {_gb(gpu.usable_bytes)} for models; {_gb(gpu.claimed_bytes)} given to"
            f" {len(gpu.models)} of them"
        )
        if gpu.models:
            yield _models(gpu)
            yield _lending(gpu)
        for model in gpu.models:
            yield from (f"{model.model}: {note}." for note in model.notes)
        if gpu.loads:
            yield _loads(gpu)
        yield from (f"{note}." for note in gpu.notes)
    yield ""
    if any(gpu.price_per_hour is None for gpu in plan.gpus):
        yield NO_PRICE
    if not all(gpu.calibrated for gpu in plan.gpus):
        yield UNCALIBRATED


def _models(gpu: GpuPlan) -> Table:
    table = _table("Memory", "GB", "weights GB", "KV GB", "KV tokens", "busy", "idle", "gain")
    table.caption = (
        "KV tokens: of a static pool, and with remapping while the others are busy or idle;"
        " gain: idle over static"
    )
    for model in gpu.models:
        table.add_row(
            model.model,
            _gb(model.size_bytes),
            _gb(model.movable_bytes + model.static_bytes),
            _gb(model.pool_bytes),
            f"{model.static_tokens:,}",
            _span(model.tokens_others_busy, digits=0),
            _span(model.tokens_others_idle, digits=0),
            _gain(model),
        )
    return table


def _lending(gpu: GpuPlan) -> Table:
    table = _table(
        "Units", "units", "gives active", "gives idle", "batch", "step ms", "first ms", "cold ms"
    )
    table.caption = (
        "units given: freed at no added time of the model's own; first: prefill of a mean prompt,"
        " all lent; cold: all weights over the host link"
    )
    for model in gpu.models:
        table.add_row(
            model.model,
            str(model.units),
            _span(model.free_units, digits=0),
            _span(model.idle_units, digits=0),
            str(model.batch),
            _span(model.step_s, 1e3),
            _span(model.lent_first_token_s, 1e3),
            _span(model.load_s, 1e3, 0),
        )
    return table


def _loads(gpu: GpuPlan) -> Table:
    heads = ["req/s", "TTFT p50 s", "TTFT p99 s", "TBT p50 ms", "TBT p99 ms", "tok/s"]
    priced = gpu.price_per_hour is not None
    table = _table("Load", *heads, *(["cost/M tok"] if priced else []))
    table.caption = "load 1.0: computing all the time, batches as large as static pools allow"
    for point in gpu.loads:
        cells = [
            f"{point.load:g} {point.arm}",
            f"{point.requests_per_s:.1f}",
            _span(point.ttft_p50_s, 1, 2),
            _span(point.ttft_p99_s, 1, 2),
            _span(point.tbt_p50_s, 1e3),
            _span(point.tbt_p99_s, 1e3, 0),
            _span(point.tokens_per_s, digits=0),
        ]
        table.add_row(*cells, *([_cost(point)] if priced else []))
    return table


def _table(first: str, *heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.collapse_padding = True
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _gain(model: ModelPlan) -> str:
    if not model.static_tokens:
        return "-"
    gain = Span(
        *(
            tokens / model.static_tokens
            for tokens in (model.tokens_others_idle.low, model.tokens_others_idle.high)
        )
    )
    return _span(gain) + "x"


def _cost(point: LoadPlan) -> str:
    return "-" if point.cost_per_million is None else _span(point.cost_per_million, 1, 2)


def _span(span: Span, factor: float = 1.0, digits: int = 1) -> str:
    if math.isnan(span.low) or math.isnan(span.high):
        return "-"
    low, high = (f"{value * factor:,.{digits}f}" for value in (span.low, span.high))
    return low if low == high else f"{low}-{high}"


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / GIGA:.1f}"
