"""The paper's figures from the simulated runs: one PNG each, drawn without a display.

Lines are the base setting; the band round a line is the least and the most over the settings that
vary one thing at a time.  Loads are multiples of what static vLLM serves at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.figures import arithmetic
from benchmarks.figures import conditions as on
from benchmarks.figures.comparisons import Metric
from benchmarks.figures.conditions import ArmChoice, Case, Changes, settings
from benchmarks.figures.runs import Runner, simulate_case
from mirage_core.policy.how_many import SlotRule
from mirage_core.simulator.results import weighted_quantile
from mirage_core.sizing.hardware import find_hardware
from mirage_core.sizing.model import ModelSizing

STATIC, ELASTIC, MIRAGE, OTHER = "#7f7f7f", "#4a9b57", "#1f6fb4", "#d9712b"
PANELS: tuple[tuple[Metric, str, float], ...] = (
    (Metric.TBT_P99, "P99 TBT, ms", 1000.0),
    (Metric.TTFT_P99, "P99 TTFT, s", 1.0),
    (Metric.THROUGHPUT, "tokens/s", 1.0),
)
THREE = (
    ("static vLLM", on.STATIC, STATIC),
    ("elastic pool", on.ELASTIC, ELASTIC),
    ("MIRAGE", on.MIRAGE, MIRAGE),
)
Arms = Sequence[tuple[str, ArmChoice, str]]
_NOTE = "simulated, not calibrated on this GPU"


def draw_all(runner: Runner, opt_13b: ModelSizing, folder: Path) -> list[Path]:
    """Every figure; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[], Figure]] = {
        "figure-01": lambda: _figure_1(runner),
        "figure-04": lambda: _figure_4(runner, opt_13b),
        "figure-05": lambda: _figure_5(opt_13b),
        "figure-08": lambda: _over_loads(
            runner,
            [
                (f"{name}, {data}", Case(tenants))
                for data in on.DATA_SETS
                for name, tenants in (("C1", on.c1(data)), ("C2", on.c2(data, data)))
            ],
            THREE,
            on.DEVIATIONS,
            "Figure 8: temporal sharing",
        ),
        "figure-09": lambda: _over_loads(
            runner,
            [
                (f"30b:6.7b = {ratio:g}, {data}", Case(on.c2(data, data, ratio)))
                for data in on.DATA_SETS
                for ratio in on.RATE_RATIOS
            ],
            THREE,
            on.FEW,
            "Figure 9: C2, unequal rates",
        ),
        "figure-10": lambda: _over_loads(
            runner,
            [
                ("30b long, 6.7b short", Case(on.c2("long", "short"))),
                ("30b short, 6.7b long", Case(on.c2("short", "long"))),
            ],
            THREE,
            on.FEW | on.PROMPT_SHARES,
            "Figure 10: C2, long with short",
        ),
        "figure-11": lambda: _over_loads(
            runner,
            [(f"C1, {data}", Case(on.c1(data))) for data in on.DATA_SETS],
            (("LRU", on.LRU, OTHER), ("MRU", on.MIRAGE, MIRAGE)),
            on.FEW,
            "Figure 11: who lends first",
        ),
        "figure-12": lambda: _over_loads(
            runner,
            [(f"C1, {d}", Case(on.c1(d), sharing="spatial")) for d in on.DATA_SETS],
            THREE,
            on.FEW,
            "Figure 12: MPS (half of a step overlaps)",
        ),
        "figure-13": lambda: _over_loads(
            runner,
            [
                (f"C1, {d}", replace(Case(on.c1(d), sharing="mig"), slices=(0.35, 0.35, 0.20)))
                for d in on.DATA_SETS
            ],
            THREE,
            on.FEW,
            "Figure 13: MIG",
        ),
        "figure-14": lambda: _over_loads(
            runner,
            [("OPT-13b, Alpaca", Case(on.single("Alpaca")))],
            (THREE[0], ("KV swapping (Pie)", on.SWAP, OTHER), THREE[2]),
            on.DEVIATIONS,
            "Figure 14: against KV swapping",
        ),
        "figure-15": lambda: _over_loads(
            runner,
            [("OPT-13b, Alpaca", Case(on.single("Alpaca")))],
            (
                ("A: one slot", on.remapping(slots=SlotRule.ONE), OTHER),
                ("B: two slots", on.remapping(slots=SlotRule.TWO), ELASTIC),
                ("C: best", on.remapping(slots=SlotRule.BEST), MIRAGE),
            ),
            on.FEW,
            "Figure 15: slots, remapping whatever it costs",
        ),
        "figure-16": lambda: _figure_16(runner),
        "figure-17": lambda: _figure_17(runner),
        "units": lambda: _units(runner, opt_13b),
    }
    files = []
    for name, draw in figures.items():
        figure = draw()
        figure.tight_layout()
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=110)
        plt.close(figure)
    return files


def _over_loads(
    runner: Runner,
    bases: Sequence[tuple[str, Case]],
    arms: Arms,
    others: dict[str, Changes],
    title: str,
) -> Figure:
    """A row a base case, a column a metric; each arm against load."""
    figure, grid = plt.subplots(
        len(bases), 3, figsize=(11, 1 + 2.6 * len(bases)), squeeze=False, sharex=True
    )
    for row, (label, base) in zip(grid, bases, strict=True):
        for axes, (metric, name, factor) in zip(row, PANELS, strict=True):
            for arm_name, arm, colour in arms:
                _line(
                    axes, runner, replace(base, arm=arm), others, metric, factor, colour, arm_name
                )
            axes.set_title(f"{label}: {name}", fontsize=9)
            axes.grid(alpha=0.25)
            if metric is not Metric.THROUGHPUT:
                _log(axes)
            else:
                axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("load, multiples of static vLLM's saturation")
        axes.set_xticks(on.LOADS)
    grid[0, 0].legend(fontsize=8)
    figure.suptitle(f"{title} ({_NOTE})")
    return figure


def _line(
    axes: Axes,
    runner: Runner,
    base: Case,
    others: dict[str, Changes],
    metric: Metric,
    factor: float,
    colour: str,
    label: str,
) -> None:
    values, low, high = [], [], []
    for load in on.LOADS:
        found = [
            factor * runner.run(replace(case, load=load)).value(metric)
            for case in settings(base, {}, others).values()
        ]
        finite = [value for value in found if not math.isnan(value)]
        values.append(found[0])
        low.append(min(finite, default=math.nan))
        high.append(max(finite, default=math.nan))
    axes.plot(on.LOADS, values, "o-", color=colour, label=label, markersize=4)
    axes.fill_between(on.LOADS, low, high, color=colour, alpha=0.12)


def _log(axes: Axes) -> None:
    """Labels at 1, 2 and 5, so that less than a decade has some too."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _figure_1(runner: Runner) -> Figure:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8))
    base = Case(on.single("ShareGPT"))
    for axes, metric, name, factor in (
        (left, Metric.TBT_P99, "P99 TBT, ms", 1000.0),
        (middle, Metric.TTFT_P99, "P99 TTFT, s", 1.0),
    ):
        _line(axes, runner, base, {}, metric, factor, STATIC, "12.6 k tokens of KV cache")
        plenty = replace(base, kv_scale=10.0)
        _line(axes, runner, plenty, {}, metric, factor, MIRAGE, "never runs out")
        axes.set_title(f"OPT-13b, ShareGPT: {name}", fontsize=9)
        axes.set_xlabel("load, multiples of static vLLM's saturation")
        axes.set_xticks(on.LOADS)
        axes.grid(alpha=0.25)
        _log(axes)
    left.legend(fontsize=8)
    gpus = ("A100-SXM-80", "H100-SXM", "GH200-96", "GB200")
    rates = [find_hardware(gpu).h2d_bytes_per_s for gpu in gpus]
    right.bar(gpus, [rate.spec / 1e9 for rate in rates], color=STATIC, label="published")
    for place, rate in enumerate(rates):
        right.plot([place, place], [rate.low / 1e9, rate.high / 1e9], color=OTHER, linewidth=4)
    right.plot([], [], color=OTHER, linewidth=4, label="measured or expected")
    right.set_title("CPU to GPU, one direction, one GPU: GB/s", fontsize=9)
    right.tick_params(axis="x", labelsize=8)
    right.legend(fontsize=8)
    figure.suptitle(f"Figure 1 ({_NOTE})")
    return figure


def _figure_4(runner: Runner, model: ModelSizing) -> Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
    both = 2 * model.weight_bytes / 1e9
    batch = {"paper": 1.75, "52 GB of weights": 1 + 52 / 3 / 28}
    batch[f"{both:.1f} GB of weights"] = 1 + both / 3 / (80 - both)
    left.bar(list(batch), list(batch.values()), color=[OTHER, MIRAGE, MIRAGE])
    left.set_title("batch with a third of the parameters remapped", fontsize=9)
    case = on.BATCH
    plain, larger = (
        runner.run(replace(case, kv_scale=scale)).value(Metric.THROUGHPUT)
        for scale in (1.0, 1 + 52 / 3 / 28)
    )
    values = {"paper": 1.75, "256 sequences": larger / plain}
    right.bar(list(values), list(values.values()), color=[OTHER, MIRAGE])
    right.set_title("throughput, ShareGPT, all requests at once", fontsize=9)
    for axes in (left, right):
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.tick_params(axis="x", labelsize=8)
        for bar in axes.patches:
            axes.annotate(
                f"{bar.get_height():.2f}",
                (bar.get_x() + bar.get_width() / 2, bar.get_height()),
                ha="center",
                va="bottom",
                fontsize=8,
            )
    figure.suptitle("Figure 4: two OPT-13b on one H100")
    return figure


def _figure_5(model: ModelSizing) -> Figure:
    """Attention on the CPU against loading 30 %; a step's compute against loading a share."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4))
    batches = np.arange(1, 161)
    kv_bytes = batches * arithmetic.mean_context_tokens() * model.kv_bytes_per_token
    for gpu, colour in (("GH200-96", MIRAGE), ("H100-SXM", OTHER)):
        slow, fast = arithmetic.HOST_MEMORY_GB_PER_S[gpu]
        left.fill_between(
            batches,
            kv_bytes / fast / 1e6,
            kv_bytes / slow / 1e6,
            color=colour,
            alpha=0.35,
            label=f"attention on the CPU of {gpu}",
        )
        rate = find_hardware(gpu).h2d_bytes_per_s.typical
        load_ms = 1000 * arithmetic.SHARE * model.movable_bytes / rate
        left.axhline(load_ms, color=colour, linestyle="--", label=f"load 30 %, {gpu}")
    left.set_title("(a) OPT-13b, ShareGPT: ms a step", fontsize=9)
    times = [
        arithmetic.layer_times(
            model, "GH200-96", (0.5, 0.5), int(b), arithmetic.mean_context_tokens()
        )
        for b in batches
    ]
    layers = len(model.layers)
    right.plot(
        batches, [1000 * layers * t.compute_s for t in times], color="black", label="compute"
    )
    for share, colour in ((0.1, ELASTIC), (0.2, MIRAGE), (0.3, OTHER)):
        moved = round(share * layers) + 2
        right.axhline(
            1000 * moved * times[0].transfer_s,
            color=colour,
            linestyle="--",
            label=f"transfer at {share:.0%} remapped ({moved} layers move)",
        )
    right.set_title("(b) GH200: ms a decode step", fontsize=9)
    for axes in (left, right):
        axes.set_xlabel("batch")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
        axes.grid(alpha=0.25)
    figure.suptitle("Figure 5 (by bandwidth alone)")
    return figure


def _figure_16(runner: Runner) -> Figure:
    """At the paper's rates, and at one at which memory does run short."""
    figure, grid = plt.subplots(1, 3, figsize=(13, 4))
    for axes, rate_per_s in zip(grid, (1.0, 10.0, 60.0), strict=True):
        for name, reverts, colour, line in (
            ("with", True, MIRAGE, "-"),
            ("without", False, OTHER, "--"),
        ):
            case = Case(
                on.single("Alpaca"), arm=on.remapping(reverts=reverts), rate_per_s=rate_per_s
            )
            values, weights = simulate_case(case, rate_per_s).tbt_samples_s()
            shares = np.linspace(0, 1, 401)
            times = [1000 * weighted_quantile(values, weights, share) for share in shares]
            axes.plot(times, shares, color=colour, linestyle=line, label=f"{name} reversion")
        axes.set_xlim(0, 1.05 * times[-2])
        axes.set_title(f"{rate_per_s:g} requests/s", fontsize=9)
        axes.set_xlabel("TBT, ms")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    grid[0].set_ylabel("share of tokens")
    figure.suptitle(f"Figure 16: OPT-13b, Alpaca, remapping whatever it costs ({_NOTE})")
    return figure


def _figure_17(runner: Runner) -> Figure:
    figure, grid = plt.subplots(1, 2, figsize=(10, 4))
    rates = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0)
    caps: Mapping[str, float] = {"no cap": 1.0} | {f"cap {cap:.0%}": cap for cap in on.CAPS}
    for axes, metric, name in (
        (grid[0], Metric.TBT_P50, "P50 TBT, ms"),
        (grid[1], Metric.TBT_P99, "P99 TBT, ms"),
    ):
        for (label, cap), colour in zip(
            caps.items(), (OTHER, MIRAGE, ELASTIC, "#8a63a8"), strict=True
        ):
            values = [
                1000
                * runner.run(
                    Case(on.single("Alpaca"), arm=on.remapping(cap=cap), rate_per_s=rate)
                ).value(metric)
                for rate in rates
            ]
            axes.plot(rates, values, "o-", color=colour, label=label, markersize=4)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("requests/s")
        axes.grid(alpha=0.25)
        axes.set_ylim(bottom=0)
    grid[0].legend(fontsize=8)
    figure.suptitle(f"Figure 17: OPT-13b, Alpaca, remapping whatever it costs ({_NOTE})")
    return figure


def _units(runner: Runner, model: ModelSizing) -> Figure:
    """What smaller units gain: layers freed at no added time by r, and a model on its own."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2))
    layers = len(model.layers)
    ratios = np.array([2.0, 2.5, 3.0, 3.7, 4.6, 5.5, 7.1, 9.3])
    names = {1: "whole layers", 2: "halves", 4: "quarters"}
    colours = {1: OTHER, 2: ELASTIC, 4: MIRAGE}
    left.plot(ratios, layers / ratios, color="black", linestyle=":", label="the link's bound, n/r")
    for parts in on.UNIT_PARTS:
        freed = [arithmetic.stall_free_layers(layers, parts, float(r)) for r in ratios]
        left.plot(ratios, freed, "o-", color=colours[parts], label=names[parts], markersize=4)
        base = Case(on.single("ShareGPT"), arm=on.MIRAGE, parts=parts)
        for axes, (metric, _, factor) in ((middle, PANELS[1]), (right, PANELS[2])):
            _line(axes, runner, base, {}, metric, factor, colours[parts], names[parts])
    static = Case(on.single("ShareGPT"))
    for axes, (metric, name, factor) in ((middle, PANELS[1]), (right, PANELS[2])):
        _line(axes, runner, static, {}, metric, factor, STATIC, "static vLLM")
        axes.set_title(f"OPT-13b alone, ShareGPT: {name}", fontsize=9)
        axes.set_xlabel("load, multiples of static vLLM's saturation")
        axes.set_xticks(on.LOADS)
    left.set_title(f"layers of {layers} freed at no added time", fontsize=9)
    left.set_xlabel("r: transfer over compute of a layer")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    for axes in (left, middle, right):
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    figure.suptitle(f"What smaller units gain ({_NOTE})")
    return figure
