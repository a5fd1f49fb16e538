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
UNCALIBRATED = "Estimates from others' rates, low to high; not calibrated on this GPU."
SUFFIXES = ("k", "M", "G")


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
    table = _table("Memory", "GB", "weights", "KV", "KV tokens", "others busy", "idle", "gain")
    table.caption = (
        "KV tokens of a static pool; with remapping, while the others are busy or idle; gain is"
        " idle over static"
    )
    for model in gpu.models:
        table.add_row(
            model.model,
            _gb(model.size_bytes),
            _gb(model.movable_bytes + model.static_bytes),
            _gb(model.pool_bytes),
            _number(model.static_tokens, 3),
            _span(model.tokens_others_busy, digits=3),
            _span(model.tokens_others_idle, digits=3),
            _gain(model),
        )
    return table


def _lending(gpu: GpuPlan) -> Table:
    table = _table(
        "Units", "units", "give: active", "idle", "batch", "step ms", "first ms", "cold ms"
    )
    table.caption = (
        "units given: freed at no added time of the model's own; first: prefill of a mean prompt"
        " with all lent; cold: all weights over the host link"
    )
    for model in gpu.models:
        table.add_row(
            model.model,
            str(model.units),
            _span(model.free_units),
            _span(model.idle_units),
            str(model.batch),
            _span(model.step_s, 1e3),
            _span(model.lent_first_token_s, 1e3),
            _span(model.load_s, 1e3),
        )
    return table


def _loads(gpu: GpuPlan) -> Table:
    heads = ["req/s", "TTFT p50 s", "p99 s", "TBT p50 ms", "p99 ms", "1000 tok/s"]
    priced = gpu.price_per_hour is not None
    table = _table("Load", *heads, *(["per M tok"] if priced else []))
    table.caption = "load 1: computing all the time, batches as large as static pools allow"
    for point in gpu.loads:
        cells = [
            f"{point.load:g} {point.arm}",
            _number(point.requests_per_s, 3),
            _span(point.ttft_p50_s, most_decimals=2),
            _span(point.ttft_p99_s, most_decimals=2),
            _span(point.tbt_p50_s, 1e3),
            _span(point.tbt_p99_s, 1e3),
            _span(point.tokens_per_s, 1e-3),
        ]
        table.add_row(*cells, *([_cost(point)] if priced else []))
    return table


def _table(first: str, *heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.collapse_padding = True
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    return table


def _gain(model: ModelPlan) -> str:
    if not model.static_tokens:
        return "-"
    idle = model.tokens_others_idle
    return _span(Span(idle.low / model.static_tokens, idle.high / model.static_tokens)) + "x"


def _cost(point: LoadPlan) -> str:
    return "-" if point.cost_per_million is None else _span(point.cost_per_million)


def _span(span: Span, factor: float = 1.0, digits: int = 2, most_decimals: int = 9) -> str:
    """``low-high``, or one of them where both read the same."""
    low, high = (_number(value * factor, digits, most_decimals) for value in (span.low, span.high))
    if low[-1:] == high[-1:] and low[-1:] in SUFFIXES and low != high:
        low = low[:-1]
    return low if low == high else f"{low}-{high}"


def _number(value: float, digits: int, most_decimals: int = 9) -> str:
    """``digits`` that count, as in ``0.54``, ``12``, ``1.23k``; never an exponent."""
    if math.isnan(value):
        return "-"
    for suffix in ("", *SUFFIXES):
        if value < 1000 or suffix == SUFFIXES[-1]:
            break
        value /= 1000
    if value == int(value) and not suffix:
        return str(int(value))
    decimals = max(0, digits - 1 - math.floor(math.log10(value)))
    return f"{value:.{min(decimals, most_decimals)}f}{suffix}"


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / GIGA:.1f}"
