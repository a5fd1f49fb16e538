"""What a run's results become: figures, a table, columns in a file, a picture over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from mirage_core.errors import ConfigError
from mirage_core.simulator.results import (
    Floats,
    Ints,
    Results,
    Status,
    StepLog,
    weighted_quantile,
)
from mirage_core.simulator.units import PS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or one model's part of it; a percentile is nan if nothing came to take it of.

    throughput_tok_s  generated tokens of finished requests a second, from the first arrival of
                      the run to its end
    tbt_*_s           over all times between two tokens of one request
    """

    requests: int
    finished: int
    throughput_tok_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    preemptions: int
    span_s: float


def figures_of(results: Results) -> Figures:
    """Figures of a whole run."""
    values, weights = results.tbt_samples_s() if results.steps is not None else _no_gaps()
    return _figures(results, np.ones(len(results.requests), dtype=bool), values, weights)


def figures_by_model(results: Results, models: Sequence[str]) -> dict[str, Figures]:
    """Figures of each model's requests."""
    found = {}
    for index, name in enumerate(models):
        chosen = results.requests.model == index
        values, weights = _gaps_of(results, chosen)
        found[name] = _figures(results, chosen, values, weights)
    return found


def _figures(
    results: Results,
    chosen: Chosen,
    values: Floats,
    weights: Ints,
) -> Figures:
    done = results.finished & chosen
    had = (results.first_token_ps >= 0) & chosen
    ttft_s = (results.first_token_ps[had] - results.arrival_ps[had]) / PS_PER_S
    started_ps = int(results.arrival_ps.min()) if len(results.arrival_ps) else 0
    span_s = max(0, results.end_ps - started_ps) / PS_PER_S
    tokens = int(results.requests.output_tokens[done].sum())
    return Figures(
        requests=int(chosen.sum()),
        finished=int(done.sum()),
        throughput_tok_s=tokens / span_s if span_s else 0.0,
        ttft_p50_s=_percentile(ttft_s, 50),
        ttft_p99_s=_percentile(ttft_s, 99),
        tbt_p50_s=weighted_quantile(values, weights, 0.5),
        tbt_p99_s=weighted_quantile(values, weights, 0.99),
        preemptions=int(results.preemptions[chosen].sum()),
        span_s=span_s,
    )


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan


def _no_gaps() -> tuple[Floats, Ints]:
    return np.zeros(0), np.zeros(0, dtype=np.int64)


def _gaps_of(results: Results, chosen: Chosen) -> tuple[Floats, Ints]:
    """Gaps of one model's requests: those of the engines that served it."""
    if results.steps is None:
        return _no_gaps()
    served = np.unique(results.engine[chosen & (results.engine >= 0)])
    steps = results.steps.expanded()
    mine = np.isin(steps.engine, served) & (steps.decodes > 0)
    late = chosen[results.late_gap_request]
    late_s = results.late_gaps_ps[late] / PS_PER_S
    return (
        np.concatenate((steps.gap_ps[mine] / PS_PER_S, late_s)),
        np.concatenate((steps.decodes[mine], np.ones(len(late_s), dtype=np.int64))),
    )


def table(named: dict[str, Figures], title: str) -> Table:
    """Rows side by side, within 80 columns."""
    made = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    made.collapse_padding = True
    made.add_column("", no_wrap=True)
    heads = ("sent", "done", "tok/s", "TTFT p50 s", "TTFT p99 s", "TBT p50 ms", "TBT p99 ms")
    for head in (*heads, "pre- empt."):
        made.add_column(head, justify="right")
    for name, f in named.items():
        made.add_row(
            name,
            str(f.requests),
            str(f.finished),
            f"{f.throughput_tok_s:.0f}",
            _number(f.ttft_p50_s, 1, 3),
            _number(f.ttft_p99_s, 1, 3),
            _number(f.tbt_p50_s, 1000, 1),
            _number(f.tbt_p99_s, 1000, 1),
            str(f.preemptions),
        )
    return made


def _number(value: float, factor: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value * factor:.{digits}f}"


def write_requests(results: Results, models: Sequence[str], path: Path) -> None:
    """One row a request: a Parquet or CSV file, by the path's ending."""
    had = results.first_token_ps >= 0
    done = results.finished
    _write(
        {
            "model": np.array(models)[results.requests.model],
            "arrival_s": results.arrival_ps / PS_PER_S,
            "prompt_tokens": results.requests.prompt_tokens,
            "output_tokens": results.requests.output_tokens,
            "status": np.array([Status(each).name.lower() for each in results.status], dtype=str),
            "engine": results.engine,
            "ttft_s": np.where(
                had, (results.first_token_ps - results.arrival_ps) / PS_PER_S, np.nan
            ),
            "latency_s": np.where(
                done, (results.finish_ps - results.arrival_ps) / PS_PER_S, np.nan
            ),
            "preemptions": results.preemptions,
        },
        path,
    )


def write_steps(steps: StepLog, engines: Sequence[str], path: Path) -> None:
    """One row a stretch of equal steps (``results.StepLog``): Parquet or CSV by the ending."""
    columns = {name: getattr(steps, name) for name in steps.__slots__}
    columns["engine"] = np.array(engines)[steps.engine]
    _write(columns, path)


def _write(columns: dict[str, npt.NDArray[np.generic]], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(rows, path)
    elif path.suffix == ".csv":
        csv.write_csv(rows, path)
    else:
        raise ConfigError(f"{path}: ends in neither .parquet nor .csv")


_COLOURS = ("#1f6fb4", "#d9712b", "#4a9b57", "#8a63a8", "#b83b5e", "#6b6b6b")


def draw_series(
    results: Results, engines: Sequence[str], models: Sequence[str], path: Path
) -> None:
    """A PNG: KV pools, requests, time to first token and time between tokens over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 1, figsize=(10, 10), sharex=True)
    if results.steps is not None:
        for index in range(len(engines)):
            _draw_engine(axes, results.steps, index, engines[index], _COLOURS[index % 6])
    for index, model in enumerate(models):
        mine = (results.requests.model == index) & (results.first_token_ps >= 0)
        at_s = results.arrival_ps[mine] / PS_PER_S
        ttft_s = (results.first_token_ps[mine] - results.arrival_ps[mine]) / PS_PER_S
        axes[2].scatter(at_s, ttft_s, s=5, color=_COLOURS[index % 6], label=model)
    labels = ("KV blocks: held, capacity", "running, waiting (dotted)", "TTFT, s", "TBT, ms")
    for each, label in zip(axes, labels, strict=True):
        each.set_ylabel(label)
        each.grid(alpha=0.25)
    for each in axes[:2]:
        each.set_ylim(bottom=0)
    for each in axes[2:]:
        each.set_yscale("log")
        each.yaxis.set_major_formatter("{x:g}")
        each.yaxis.set_minor_formatter("")
    axes[0].legend(loc="upper left", fontsize=8)
    axes[3].set_xlabel("time, s")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_engine(axes: Sequence[Axes], steps: StepLog, engine: int, name: str, colour: str) -> None:
    mine = steps.engine == engine
    if not mine.any():
        return
    at_s = steps.start_ps[mine] / PS_PER_S
    axes[0].step(at_s, steps.capacity_blocks[mine], where="post", color=colour, label=name)
    axes[0].fill_between(at_s, steps.used_blocks[mine], step="post", color=colour, alpha=0.3)
    axes[1].step(at_s, steps.running[mine], where="post", color=colour)
    axes[1].step(at_s, steps.waiting[mine], where="post", color=colour, linestyle=":")
    gaps_ms = steps.gap_ps[mine] / PS_PER_S * 1000
    decoding = (steps.decodes[mine] > 0) & (gaps_ms > 0)
    axes[3].scatter(at_s[decoding], gaps_ms[decoding], s=2, color=colour)
