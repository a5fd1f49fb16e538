"""The result of a run: its JSON, and its table for the terminal.

    {"conditions": {...}, "saturation_tok_s": {model: tokens a second}, "stock_split": 0.4,
     "splits": {split: figures of stock at the highest load},
     "loads": {"0.5": {"offered": ..., "arms": {arm: figures}, "outputs_identical": ...,
                       "stock_divergence": ..., "ratio_vs_stock": ..., "ratio_vs_elastic": ...}},
     "no_pressure_ratio": ..., and the highest load's entry once more at the top}

A ratio is mirage's throughput over the other arm's.  What was not measured is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.sharing.arms import Arm
from benchmarks.sharing.client import Run
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.figures import Figures, answers, divergence, identical
from benchmarks.sharing.timeline import Sample


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm under one load."""

    arm: Arm
    run: Run
    figures: Figures
    samples: tuple[Sample, ...] = ()
    """of the device's memory, if the arm has an agent"""


@dataclass(slots=True)
class Result:
    """Everything that a benchmark measured, filled as it goes."""

    conditions: Conditions
    saturation_tok_s: dict[str, float] = field(default_factory=dict)
    offered: dict[float, dict[str, object]] = field(default_factory=dict)
    """by load: how many requests, and how bursty"""
    splits: dict[float, Figures] = field(default_factory=dict)
    """stock at the highest load, by static split"""
    loads: dict[float, list[ArmResult]] = field(default_factory=dict)
    no_pressure_ratio: float | None = None

    @property
    def top_load(self) -> float:
        return max(self.conditions.loads)

    @property
    def best_split(self) -> float:
        return max(self.splits, key=lambda split: self.splits[split].throughput_tok_s)

    def as_json(self) -> dict[str, object]:
        loads = {load: self._load_json(load, arms) for load, arms in sorted(self.loads.items())}
        return {
            "conditions": self.conditions.stated(),
            "saturation_tok_s": self.saturation_tok_s,
            "stock_split": self.best_split if self.splits else None,
            "splits": {f"{split:g}": f.as_json() for split, f in sorted(self.splits.items())},
            **loads.get(self.top_load, {}),
            "no_pressure_ratio": self.no_pressure_ratio,
            "loads": {f"{load:g}": entry for load, entry in loads.items()},
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def _load_json(self, load: float, results: list[ArmResult]) -> dict[str, object]:
        by_name = {result.arm.name: result for result in results}
        tokens = {name: answers(result.run.outcomes) for name, result in by_name.items()}
        comparable = [result.arm.name for result in results if result.arm.same_kernels]
        reference = comparable[0] if comparable else None
        return {
            "offered": self.offered.get(load),
            "arms": {name: result.figures.as_json() for name, result in by_name.items()},
            "outputs_identical": identical([tokens[name] for name in comparable]),
            "stock_divergence": (
                divergence(tokens["stock"], tokens[reference])
                if reference and "stock" in tokens
                else None
            ),
            "ratio_vs_stock": _ratio(by_name, "stock"),
            "ratio_vs_elastic": _ratio(by_name, "elastic"),
        }


def _ratio(by_name: Mapping[str, ArmResult], other: str) -> float | None:
    if "mirage" not in by_name or other not in by_name:
        return None
    base = by_name[other].figures.throughput_tok_s
    return by_name["mirage"].figures.throughput_tok_s / base if base else None


_COLUMNS = (
    "load",
    "arm",
    "tok/s",
    "x stock",
    "TTFT p50 s",
    "TTFT p99 s",
    "TBT p50 ms",
    "TBT p99 ms",
    "pre- empt.",
    "done",
    "fail- ed",
)


def table(result: Result) -> Table:
    """All arms side by side, one block of rows a load, within 80 columns."""
    made = Table(title="Two models on one device, the same requests", box=SIMPLE_HEAD)
    made.title_justify = "left"
    made.collapse_padding, made.pad_edge = True, False
    for name in _COLUMNS:
        text = name in ("load", "arm")
        made.add_column(name, justify="left" if text else "right", no_wrap=text)
    for load, arms in sorted(result.loads.items()):
        stock = next((r.figures.throughput_tok_s for r in arms if r.arm.name == "stock"), None)
        for each in arms:
            f = each.figures
            made.add_row(
                f"{load:g}x",
                each.arm.name,
                f"{f.throughput_tok_s:.0f}",
                f"{f.throughput_tok_s / stock:.2f}" if stock else "-",
                _number(f.ttft_p50_s, 1, 2),
                _number(f.ttft_p99_s, 1, 2),
                _number(f.tbt_p50_s, 1000, 0),
                _number(f.tbt_p99_s, 1000, 0),
                str(f.preemptions),
                str(f.completed),
                str(f.failed),
                end_section=each is arms[-1],
            )
    return made


def summary(result: Result) -> list[str]:
    """What was measured beside the table, a line each."""
    read = result.as_json()
    lines = [
        f"{label}: {read[name]:.2f}"
        for name, label in (
            ("ratio_vs_stock", "mirage's throughput over stock's"),
            ("ratio_vs_elastic", "mirage's throughput over elastic's"),
            ("no_pressure_ratio", "mirage's throughput over stock's without pressure"),
            ("stock_divergence", "part of the requests that stock's kernels answer otherwise"),
        )
        if read.get(name) is not None
    ]
    if read.get("outputs_identical") is not None:
        same = "identical" if read["outputs_identical"] else "NOT identical"
        lines.append(f"outputs of passive, elastic and mirage: {same}")
    return lines


def _number(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"
