"""Claims that need no run: ratios of bandwidths, room for KV cache, and the cost model of §5.

Times are those of one decode step by bandwidth alone: a layer reads its weights and its KV cache
from device memory (T_c), a transfer reads its weights over the link (T_T), r = T_T / T_c.  The
plans are the product's own (``policy.how_many``), built for that cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.figures.verdicts import Setting
from mirage_core.policy.cost import StepCost, closed_form_step_s
from mirage_core.policy.how_many import PlanTable, SlotRule, build_plan_table, largest_free_plan
from mirage_core.simulator.workloads.quantiles import SHAREGPT, LengthSource
from mirage_core.sizing.hardware import find_hardware
from mirage_core.sizing.model import ModelSizing

SHARE = 0.3
OFF_PEAK_BATCH, LARGEST_BATCH = 8, 128
HOST_MEMORY_GB_PER_S = {"GH200-96": (400.0, 512.0), "H100-SXM": (307.0, 307.0)}
"""Measured (STREAM) and published; eight channels of DDR5-4800 for H100's host (arithmetic)."""
RATES: dict[str, tuple[float, float]] = {
    "base": (0.5, 0.5),
    "slow link, fast memory": (1.0, 0.0),
    "fast link, slow memory": (0.0, 1.0),
}
"""Where in the measured ranges of memory and link: ``conditions.Case.bandwidth``."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer of a model on a GPU at a batch, in seconds."""

    compute_s: float
    transfer_s: float

    @property
    def ratio(self) -> float:
        return self.transfer_s / self.compute_s


def layer_times(
    model: ModelSizing, gpu: str, rates: tuple[float, float], batch: int, context_tokens: float
) -> LayerTimes:
    """By bandwidth alone; ``context_tokens`` of KV cache are read for each request."""
    hardware = find_hardware(gpu)
    layers = len(model.layers)
    layer_bytes = model.movable_bytes / layers
    kv_bytes = batch * context_tokens * model.kv_bytes_per_token / layers
    return LayerTimes(
        compute_s=(layer_bytes + kv_bytes) / hardware.hbm_bytes_per_s.at(rates[0]),
        transfer_s=layer_bytes / hardware.h2d_bytes_per_s.at(rates[1]),
    )


@cache
def mean_context_tokens(lengths: LengthSource = SHAREGPT) -> float:
    """KV tokens of a request at a token of it drawn at random: half of its output, on average."""
    prompts, outputs = lengths.sample(50_000, np.random.default_rng(0))
    return float(((prompts + outputs / 2) * outputs).sum() / outputs.sum())


@cache
def plans(layers: int, parts: int, ratio: float) -> PlanTable:
    """Plans of ``layers`` equal layers of ``parts`` units each; a page is one unit."""
    units = layers * parts
    cost = StepCost((1.0 / parts,) * units, (ratio / parts,) * units)
    return build_plan_table(cost, (1,) * units, SlotRule.BEST)


def stall_free_layers(layers: int, parts: int, ratio: float) -> float:
    """The most layers that can be freed at no added time."""
    return largest_free_plan(plans(layers, parts, ratio)).freed_pages / parts


def added_share(layers: int, ratio: float, freed: int) -> float:
    """What freeing whole layers adds to a step, as a share of it."""
    return plans(layers, 1, ratio).cheapest(freed).added_s / layers


def first_with_two_slots(layers: int, ratio: float) -> int:
    """The least number of layers freed at which two slots give the shorter step (§5.4)."""
    for freed in range(1, layers):
        one, two = (closed_form_step_s(layers, freed, slots, 1.0, ratio) for slots in (1, 2))
        if two < one:
            return freed
    return layers


def arithmetic(opt_13b: ModelSizing) -> Mapping[str, Mapping[Setting, float]]:
    """Values of all arithmetic claims by setting."""
    return {
        **_links(),
        "batch-1.75x": _batch(opt_13b),
        "cpu-attention": _cpu_attention(opt_13b),
        **_thirty_percent(opt_13b),
        **_section_5(opt_13b),
    }


def _links() -> dict[str, dict[Setting, float]]:
    gh200, h100, a100, gb200 = (
        find_hardware(name).h2d_bytes_per_s.spec
        for name in ("GH200-96", "H100-SXM", "A100-SXM-80", "GB200")
    )
    published: Setting = (("figures", "published"),)
    return {
        "link-7x-h100": {published: gh200 / h100},
        "link-14x-a100": {published: gh200 / a100},
        "gb200-keeps-900": {published: gb200 / gh200},
    }


def _batch(model: ModelSizing) -> dict[Setting, float]:
    """A third of both models' parameters against what they leave of 80 GB."""
    exact = 2 * model.weight_bytes / 1e9
    return {(("parameters", f"{both:.1f} GB"),): both / 3 / (80 - both) for both in (52.0, exact)}


def _cpu_attention(model: ModelSizing) -> dict[Setting, float]:
    """Attention on the CPU reads each request's KV cache from host memory, at best."""
    kv_bytes = LARGEST_BATCH * mean_context_tokens() * model.kv_bytes_per_token

    def load_s(gpu: str, link: float) -> float:
        return SHARE * model.movable_bytes / find_hardware(gpu).h2d_bytes_per_s.at(link)

    def cpu_s(gpu: str, place: int) -> float:
        return kv_bytes / HOST_MEMORY_GB_PER_S[gpu][place] / 1e9

    return {
        (("other", name), ("host memory", memory)): float(
            load_s("GH200-96", link) < cpu_s("GH200-96", place)
            and load_s("H100-SXM", link) > cpu_s("H100-SXM", place)
        )
        for name, (_, link) in RATES.items()
        for place, memory in enumerate(("measured", "published"))
    }


def _thirty_percent(model: ModelSizing) -> dict[str, dict[Setting, float]]:
    layers = len(model.layers)
    freed = round(SHARE * layers)

    def hidden(rates: tuple[float, float], batch: int) -> bool:
        times = layer_times(model, "GH200-96", rates, batch, mean_context_tokens())
        return added_share(layers, times.ratio, freed) == 0.0

    batches = range(OFF_PEAK_BATCH, LARGEST_BATCH + 1, 8)
    return {
        "30-percent-stalls-off-peak": {
            (("other", name),): float(not hidden(rates, OFF_PEAK_BATCH))
            for name, rates in RATES.items()
        },
        "30-percent-fits-average": {
            (("other", name),): float(any(hidden(rates, batch) for batch in batches))
            for name, rates in RATES.items()
        },
    }


def _section_5(model: ModelSizing) -> dict[str, dict[Setting, float]]:
    layers = len(model.layers)
    ratios = {("r", "9.37 (4000/427, as the paper's)"): 4000 / 427}
    for batch in (1, 32, 128):
        times = layer_times(model, "GH200-96", RATES["base"], batch, mean_context_tokens())
        ratios["r", f"{times.ratio:.2f} (batch {batch}, ShareGPT)"] = times.ratio
    return {
        "two-slots-from-9": {
            (axis,): float(first_with_two_slots(layers, ratio)) for axis, ratio in ratios.items()
        },
        "bound-of-5.3": {
            (axis,): float(
                all(
                    added_share(layers, ratio, freed) == 0.0
                    for freed in range(1, int(layers / ratio) + 1)
                )
            )
            for axis, ratio in ratios.items()
        },
    }
