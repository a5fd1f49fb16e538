"""Pictures of a run, drawn without a display.

One PNG a load: for every arm a column, from top to bottom the KV pools' sizes and use, what the
models keep resident, time to first token by arrival, and time between tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.report import ArmResult, Result
from benchmarks.sharing.timeline import Sample

_COLOURS = ("#1f6fb4", "#d9712b", "#4a9b57", "#8a63a8")
_WINDOW_S = 1.0
_MB = 1e6


def draw(result: Result, folder: Path) -> list[Path]:
    """Write ``sharing-<load>x.png`` for each load; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for load, arms in sorted(result.loads.items()):
        files.append(folder / f"sharing-{load:g}x.png")
        _draw_load(result.conditions, load, arms, files[-1])
    return files


def _draw_load(conditions: Conditions, load: float, arms: Sequence[ArmResult], file: Path) -> None:
    figure, grid = plt.subplots(
        4, len(arms), figsize=(1.5 + 3.6 * len(arms), 9), sharex=True, sharey="row", squeeze=False
    )
    colours = {
        model.name: colour for model, colour in zip(conditions.models, _COLOURS, strict=False)
    }
    for column, result in zip(grid.T, arms, strict=True):
        column[0].set_title(f"{result.arm.name}: {result.figures.throughput_tok_s:.0f} tok/s")
        _draw_pools(column[0], conditions, result, colours)
        _draw_resident(column[1], conditions, result, colours)
        _draw_ttft(column[2], result, colours)
        _draw_tbt(column[3], result, colours)
        column[3].set_xlabel("time, s")
        for axes in column:
            _shade_periods(axes, conditions, colours)
            axes.grid(alpha=0.25)
    labels = ("KV pool, MB", "resident weights, MB", "TTFT by arrival, s", "TBT p99, ms")
    for axes, label in zip(grid[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    for axes in grid[:2, 0]:
        axes.set_ylim(bottom=0)
    for axes in grid[2:, 0]:
        axes.set_yscale("log")
    grid[0, 0].legend(loc="upper left", fontsize=8)
    title = f"{load:g}x stock's saturation; shading: whose period it is; thin line: pool in use"
    figure.suptitle(fill(title, 30 * len(arms)))
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _draw_pools(
    axes: Axes, conditions: Conditions, result: ArmResult, colours: Mapping[str, str]
) -> None:
    """Pools over time; without samples the pools are static, as the engines were told."""
    for engine in result.arm.setup(conditions).engines:
        colour = colours[engine.name]
        mine = _of(result, engine.name)
        if mine:
            times_s = [sample.t_s for sample in mine]
            sizes = [sample.pool_pages * conditions.page_bytes / _MB for sample in mine]
            axes.step(times_s, sizes, where="post", color=colour, label=engine.name)
            used = [
                (sample.pool_pages - sample.spare_pages) * conditions.page_bytes / _MB
                for sample in mine
            ]
            axes.step(times_s, used, where="post", color=colour, linewidth=0.6)
        else:
            size = engine.kv_bytes / _MB
            axes.plot([0, result.run.makespan_s], [size, size], color=colour, label=engine.name)


def _draw_resident(
    axes: Axes, conditions: Conditions, result: ArmResult, colours: Mapping[str, str]
) -> None:
    """Weights that own their pages; all of them where nothing moves."""
    for model in conditions.models:
        mine = _of(result, model.name)
        if mine:
            sizes = [s.resident_pages * conditions.page_bytes / _MB for s in mine]
            axes.step([s.t_s for s in mine], sizes, where="post", color=colours[model.name])
        else:
            size = model.weight_bytes / _MB
            axes.plot([0, result.run.makespan_s], [size, size], color=colours[model.name])


def _of(result: ArmResult, engine: str) -> list[Sample]:
    return [sample for sample in result.samples if sample.model == engine]


def _draw_ttft(axes: Axes, result: ArmResult, colours: Mapping[str, str]) -> None:
    for model, colour in colours.items():
        points = [
            (outcome.request.arrival_s, outcome.ttft_s)
            for outcome in result.run.outcomes
            if outcome.request.model == model and outcome.ttft_s is not None
        ]
        axes.scatter([x for x, _ in points], [y for _, y in points], s=8, color=colour)


def _draw_tbt(axes: Axes, result: ArmResult, colours: Mapping[str, str]) -> None:
    """P99 of the gaps that end in each window."""
    for model, colour in colours.items():
        ends_s, gaps_ms = [], []
        for outcome in result.run.outcomes:
            if outcome.request.model == model:
                ends_s += outcome.token_times_s[1:]
                gaps_ms += [1000 * gap_s for gap_s in outcome.gaps_s]
        if not ends_s:
            continue
        window = (np.array(ends_s) // _WINDOW_S).astype(int)
        gaps = np.array(gaps_ms)
        windows = np.unique(window)
        tails = [np.percentile(gaps[window == each], 99) for each in windows]
        axes.plot((windows + 0.5) * _WINDOW_S, tails, ".-", color=colour, linewidth=0.8)


def _shade_periods(axes: Axes, conditions: Conditions, colours: Mapping[str, str]) -> None:
    """The background says which model is on."""
    for period in range(round(conditions.horizon_s / conditions.period_s)):
        model = conditions.models[period % 2]
        start_s = period * conditions.period_s
        axes.axvspan(
            start_s, start_s + conditions.period_s, color=colours[model.name], alpha=0.08, lw=0
        )
