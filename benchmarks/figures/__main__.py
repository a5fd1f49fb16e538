"""``python -m benchmarks.figures``: run everything, draw the figures, judge the claims."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from benchmarks.figures.arithmetic import arithmetic
from benchmarks.figures.comparisons import all_cases, comparisons
from benchmarks.figures.evaluate import evaluate, write
from benchmarks.figures.plots import draw_all
from benchmarks.figures.runs import Runner
from mirage_core.sizing.catalogue import find_model

console = Console()


def main(
    out: Annotated[Path, typer.Option(help="Folder of PNGs, claims and runs.")] = Path(
        "build/figures"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Take the runs that OUT/runs.jsonl holds as they are.")
    ] = False,
) -> None:
    """Redraw the paper's evaluation by simulation and judge each of its claims."""
    begun_s = time.monotonic()
    compared, runner = comparisons(), Runner(out / "runs.jsonl", resume=resume)
    cases = all_cases(compared)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("runs", total=len(cases))
        for case in cases:
            runner.run(case)
            bar.advance(task)
    with console.status("figures"):
        opt_13b = find_model("opt-13b")
        entries = evaluate(compared, arithmetic(opt_13b), runner)
        pictures = draw_all(runner, opt_13b, out)
    took_s = time.monotonic() - begun_s
    write(entries, out / "claims.json", len(runner.measured), None if resume else took_s)
    console.print(_table(entries))
    console.print(
        f"{len(runner.measured)} runs in {took_s:.0f} s; claims.json, runs.jsonl and "
        f"{len(pictures)} pictures in {out}"
    )


def _table(entries: list[dict[str, object]]) -> Table:
    made = Table(title="The paper's claims", box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("figure", "claim", "paper", "base", "range", "verdict", "vs elastic"):
        made.add_column(name, no_wrap=name != "claim")
    for each in entries:
        ours, against = each["ours"], each["against_elastic"]
        assert isinstance(ours, dict)
        made.add_row(
            str(each["figure"]),
            str(each["claim"]),
            _share(each["paper"]),
            _share(ours["base"]),
            f"{_share(ours['low'])} .. {_share(ours['high'])}",
            str(each["verdict"]),
            f"{_share(against['base'])}" if isinstance(against, dict) else "-",
        )
    return made


def _share(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-"


if __name__ == "__main__":
    typer.run(main)
