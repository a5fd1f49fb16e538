"""``mirage simulate``: a file that describes GPUs, models and traffic in, figures out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from mirage_core.simulator.config import RunConfig
from mirage_core.simulator.outputs import (
    draw_series,
    figures_by_model,
    figures_of,
    table,
    write_requests,
    write_steps,
)
from mirage_core.simulator.perfetto import write_trace
from mirage_core.simulator.results import Results
from mirage_core.simulator.run import simulate
from mirage_core.simulator.run_file import RunFile, build_run, read_run_file
from mirage_core.sizing.hardware import find_hardware

EXAMPLE = """\
gpu: GH200-96
arm: mirage           # or static, elastic, kv_swap, static_offload,
sharing: temporal     # cpu_attention; sharing may be spatial
quantum_s: 1.0
horizon_s: 300
models:
  - model: opt-13b
    memory_share: 0.35
    traffic: {rate_per_s: 4, arrivals: azure-code, lengths: sharegpt}
  - model: llama-3-8b
    memory_share: 0.20
    traffic: {rate_per_s: 8, arrivals: azure-conv, lengths: alpaca}
"""


def simulate_command(
    run: Annotated[Path, typer.Argument(help="The run, as YAML; see the example below.")],
    requests: Annotated[
        Path | None, typer.Option(help="Write a row a request: .parquet or .csv.")
    ] = None,
    steps: Annotated[
        Path | None, typer.Option(help="Write a row a stretch of steps: .parquet or .csv.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the run over time: .png.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for ui.perfetto.dev: .json.")
    ] = None,
    ends: Annotated[
        bool,
        typer.Option(
            "--range",
            help="Also run with the GPU's rates at the low and high ends of their ranges.",
        ),
    ] = False,
) -> None:
    """Replay traffic over simulated GPUs, with the product's own policy."""
    file = read_run_file(run)
    console = Console()
    config, results = _run(file, "requests", console)
    figures = figures_by_model(results, config.models)
    figures["all"] = figures_of(results)
    for name, place in (("all, slow GPU", 0.0), ("all, fast GPU", 1.0)) if ends else ():
        figures[name] = figures_of(_run(file.at_rates(place), name, console)[1])
    console.print(table(figures, f"{config.arm.name}, {figures['all'].span_s:.0f} s"))
    console.print(_counted(results), highlight=False)
    if not find_hardware(file.gpu).calibrated:
        console.print("Estimated from bandwidths and operations, not calibrated on this GPU.")
    engines = [
        f"{device.name} {engine.model}" for device in config.devices for engine in device.engines
    ]
    if requests is not None:
        write_requests(results, config.models, requests)
    if steps is not None and results.steps is not None:
        write_steps(results.steps, engines, steps)
    if plot is not None:
        draw_series(results, engines, config.models, plot)
    if trace is not None:
        write_trace(results, config, trace)
    for written in (requests, steps, plot, trace):
        if written is not None:
            console.print(f"written: {written}")


simulate_command.__doc__ = f"{simulate_command.__doc__}\n\n\b\nAn example:\n\n\b\n{EXAMPLE}"
"""The command's help; the rest of the fields are in ``run_file``."""


def _run(file: RunFile, what: str, console: Console) -> tuple[RunConfig, Results]:
    """Simulate, with a progress bar."""
    config, wanted = build_run(file)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(f"{config.arm.name}: {what}", total=len(wanted))
        results = simulate(config, wanted, _now_and_then(progress, task))
        progress.update(task, completed=len(wanted))
    return config, results


def _now_and_then(progress: Progress, task: TaskID) -> Callable[[int], None]:
    """Report every hundredth request or so: drawing costs more than simulating."""
    last = 0

    def report(done: int) -> None:
        nonlocal last
        if done >= last + 100:
            last = done
            progress.update(task, completed=done)

    return report


def _counted(results: Results) -> str:
    """Counters of the run, in a line."""
    found = {name: count for name, count in sorted(results.counters.items()) if count}
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in found.items())
