"""Which grain a model moves in: chosen by the cost model from times measured at start (§5.3).

Small units waste less in slots, but each fetch has a fixed cost, and where the link is slow only
whole layers may pay.  Before its weights are laid out, an engine therefore times the linears of a
few decoder layers with a small batch and the copy of their bytes, and lets the policy compare what
each grain could free at no added step time.  Only the grain is settled so: how much is taken is
decided from times measured while serving.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mirage_core.engines.vllm.architectures import LayerShape
from mirage_core.engines.vllm.linears import NO_UNIT, CapturedLinear, LinearKernel
from mirage_core.model import UnitGrain
from mirage_core.policy.cost import StepCost
from mirage_core.policy.how_many import PlanTable, SlotRule, build_plan_table, choose_grain

_log = logging.getLogger("vllm.mirage.grain")

PICK_UP_S = 30e-6
"""What a fetch takes beside its bytes: the median of `make bench-linear`'s thread pick-up."""
TIMED_LAYERS = 4
TIMED_ROWS = 8
"""A lightly loaded engine: fewer rows hide fewer transfers, and an idle one need not hide any."""
_ROUNDS = 3
"""Each time is the least of so many: what else the machine does only adds."""


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """One linear of a decoder layer: bytes that move, seconds of a small batch and of a fetch."""

    size_bytes: int
    compute_s: float
    transfer_s: float


def measure_grain(
    kernel: LinearKernel,
    model: torch.nn.Module,
    shape: LayerShape,
    captured: Sequence[CapturedLinear],
    *,
    page_bytes: int,
    link_bytes_per_s: float | None,
) -> UnitGrain:
    """Time ``model``'s linears and choose; they are packed, but not yet on the device."""
    by_layer = {id(linear.layer): linear for linear in captured}
    layers = list(model.get_submodule(shape.layers).children())
    names = [name for group in shape.groups(UnitGrain.LINEAR) for name in group]
    timed = [
        [_time(kernel, by_layer[id(layer.get_submodule(name))], link_bytes_per_s) for name in names]
        for layer in layers[:TIMED_LAYERS]
    ]
    means = {name: _mean([times[place] for times in timed]) for place, name in enumerate(names)}
    return grain_of(means, shape, layers=len(layers), page_bytes=page_bytes)


def grain_of(
    linears: dict[str, LinearTimes], shape: LayerShape, *, layers: int, page_bytes: int
) -> UnitGrain:
    """The grain for a model of ``layers`` equal layers with these ``linears``."""
    tables: dict[UnitGrain, PlanTable] = {}
    for grain in UnitGrain:
        units = [[linears[name] for name in group] for group in shape.groups(grain)]
        cost = StepCost(
            compute_s=tuple(sum(t.compute_s for t in unit) for unit in units) * layers,
            transfer_s=tuple(PICK_UP_S + sum(t.transfer_s for t in unit) for unit in units)
            * layers,
        )
        pages = [-(-sum(t.size_bytes for t in unit) // page_bytes) for unit in units] * layers
        tables[grain] = build_plan_table(cost, pages, SlotRule.BEST)
    grain = choose_grain(tables)
    cost = tables[UnitGrain.LAYER].cost
    _log.info(
        "grain %s: a layer takes %.3f ms to compute and %.3f ms to fetch",
        grain.value,
        1e3 * cost.compute_s[0],
        1e3 * cost.transfer_s[0],
    )
    return grain


def _time(
    kernel: LinearKernel, linear: CapturedLinear, link_bytes_per_s: float | None
) -> LinearTimes:
    probe = torch.nn.Module()
    kernel.bind(probe, linear.out_features, NO_UNIT, NO_UNIT)
    x = torch.zeros((TIMED_ROWS, linear.layer.input_size_per_partition), dtype=linear.packed.dtype)
    packed, bias = linear.packed, linear.bias
    copy = torch.empty_like(packed)
    size_bytes = packed.numel() * packed.element_size()
    if bias is not None:
        size_bytes += bias.numel() * bias.element_size()
    copy_s = _least_s(lambda: copy.copy_(packed))
    at_limit_s = 0.0 if link_bytes_per_s is None else size_bytes / link_bytes_per_s
    return LinearTimes(
        size_bytes=size_bytes,
        compute_s=_least_s(lambda: probe.cpu_linear(x, packed, bias)),
        transfer_s=max(copy_s, at_limit_s),
    )


def _least_s(act: Callable[[], object]) -> float:
    spent_s = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        act()
        spent_s.append(time.perf_counter() - began_s)
    return min(spent_s)


def _mean(times: Sequence[LinearTimes]) -> LinearTimes:
    return LinearTimes(
        size_bytes=times[0].size_bytes,
        compute_s=sum(t.compute_s for t in times) / len(times),
        transfer_s=sum(t.transfer_s for t in times) / len(times),
    )
