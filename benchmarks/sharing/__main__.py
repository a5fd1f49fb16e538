"""Command line: ``python -m benchmarks.sharing``."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import models
from benchmarks.sharing import conditions as presets
from benchmarks.sharing.arms import Arm
from benchmarks.sharing.benchmark import Benchmark
from benchmarks.sharing.client import Done
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.mirage_arms import plug_in_arms
from benchmarks.sharing.plots import draw
from benchmarks.sharing.report import Result, summary, table
from mirage_core.errors import MirageError
from mirage_core.simulator.workloads.files import read_azure_gaps, read_lengths

console = Console()


class Terminal:
    """Progress as one line a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def starting(self, what: str) -> None:
        self._finish()
        self._progress.add_task(what, total=None)

    def running(self, what: str, requests: int) -> Done:
        self._finish()
        task = self._progress.add_task(what, total=requests)
        return lambda _: self._progress.advance(task)

    def _finish(self) -> None:
        """Stop the clock of what is over."""
        for task in self._progress.tasks:
            if task.stop_time is None:
                self._progress.stop_task(task.id)


class Part(Enum):
    """What to measure."""

    ALL = "all"
    LOADS = "loads"
    CALM = "no-pressure"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Highest load alone, eager.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Quick, one split, short.")] = False,
    no_pressure: Annotated[
        bool, typer.Option("--no-pressure", help="Only the cost of MIRAGE when it does nothing.")
    ] = False,
    loads: Annotated[
        str | None, typer.Option(help="Multiples of stock's saturation: 0.5,1,2")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Azure trace (CSV) for the arrivals.")] = None,
    lengths: Annotated[Path | None, typer.Option(help="Table (CSV) of lengths.")] = None,
    length_scale: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Lengths are made so much shorter.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Static parts of the KV memory for the first model: 0.3,0.5")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs of each arm under each load; figures are the last's.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and prompts.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the result is written.")] = Path(
        "build/bench/sharing.json"
    ),
) -> None:
    """Share one device between two models in several ways, and set them side by side."""
    preset = presets.demo if demo else presets.quick if quick else presets.full
    part = Part.CALM if no_pressure else Part.LOADS if demo else Part.ALL
    try:
        with console.status("models and conditions"):
            conditions = preset(models.DEFAULT_ROOT, seed)
            if loads is not None:
                conditions = replace(conditions, loads=_parse("--loads", loads))
            if splits is not None:
                conditions = replace(conditions, splits=_parse("--splits", splits, 1.0))
            if length_scale is not None:
                conditions = replace(conditions, length_scale=length_scale)
            if trace is not None:
                gaps = read_azure_gaps(trace)
                conditions = replace(conditions, gaps=gaps, gaps_name=str(trace))
            if lengths is not None:
                source = read_lengths(lengths)
                conditions = replace(conditions, lengths=source, lengths_name=str(lengths))
            arms = plug_in_arms(conditions, out.parent / "arms")
        result = asyncio.run(_run(conditions, arms, part, out.parent, repeats))
    except (MirageError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    except asyncio.CancelledError as error:
        raise typer.Exit(128 + signal.SIGTERM) from error
    result.write(out)
    console.print(table(result))
    for line in summary(result):
        console.print(line)
    for picture in draw(result, out.parent):
        console.print(f"picture: {picture}")
    console.print(f"result: {out}")


def _parse(option: str, text: str, below: float = math.inf) -> tuple[float, ...]:
    """Numbers, ascending."""
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] <= 0 or not numbers[-1] < below:
        bound = "" if below == math.inf else f" below {below:g}"
        raise typer.BadParameter(
            f"{option} takes positive numbers{bound} with commas, not {text!r}"
        )
    return tuple(numbers)


async def _run(
    conditions: Conditions, arms: Sequence[Arm], part: Part, folder: Path, repeats: int
) -> Result:
    """Measure; a SIGTERM ends the run like Ctrl-C, so that no process is left behind."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        async with Benchmark(conditions, folder, Terminal(progress), repeats) as benchmark:
            if part is not Part.CALM:
                await benchmark.measure(arms)
            if part is not Part.LOADS:
                for arm in arms:
                    if arm.name == "mirage":
                        await benchmark.measure_calm(arm)
            return benchmark.result


if __name__ == "__main__":
    typer.run(main)
