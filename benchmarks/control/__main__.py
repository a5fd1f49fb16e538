"""``python -m benchmarks.control``: the control plane under load and failures, on two cores."""

from __future__ import annotations

import asyncio
import json
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.control import failover, load, partitions, store_chaos
from benchmarks.control.load import Windows
from benchmarks.control.report import table
from benchmarks.control.stage import Cores, StageError

SOAK_S, QUICK_SOAK_S = 600.0, 30.0
FUZZ, QUICK_FUZZ = 100_000, 4_000
_FUZZ_SEED = 20261130


class Part(StrEnum):
    LOAD = "load"
    FAILOVER = "failover"
    STORE = "store"
    PARTITIONS = "partitions"
    FUZZ = "fuzz"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each part."""

    agents: int
    step: int
    most: int
    windows: Windows
    search: Windows
    leader_kills: int
    soak_s: float
    store_agents: int
    store_kills: int
    store_pause_s: float
    partition_agents: int
    fuzz_messages: int


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes instead of half an hour.")
    ] = False,
    agents: Annotated[int | None, typer.Option(help="Instead of 1,000 (200).")] = None,
    soak_s: Annotated[
        float | None, typer.Option(help="Full load without a failover, instead of 600 (30).")
    ] = None,
    only: Annotated[
        list[Part] | None, typer.Option(help="Only this part; the file's others are kept.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Results.")] = Path("build/bench/control.json"),
    logs: Annotated[
        Path | None, typer.Option(help="Folder for all logs and stores; else a temporary one.")
    ] = None,
) -> None:
    """Measure the controller; results go to build/bench/control.json."""
    sizes = _sizes(quick, agents, soak_s)
    parts = list(only or Part)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    found: dict[str, Any] = {}
    if only and output.exists():
        found = json.loads(output.read_text())
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mirage-control-") as temporary:
        folder = (logs or Path(temporary)).absolute()
        try:
            cores = Cores.of_this_machine()
            asyncio.run(_run(parts, sizes, folder, cores, found, console, output))
        except StageError as error:
            console.print("[red]failed[/red]:", str(error).replace("[", "\\["))
            raise typer.Exit(1) from None
        except asyncio.CancelledError:
            raise typer.Exit(143) from None
    console.print(table(found))
    console.print(f"written to {output}")


async def _run(
    parts: list[Part],
    sizes: Sizes,
    folder: Path,
    cores: Cores,
    found: dict[str, Any],
    console: Console,
    output: Path,
) -> None:
    """Each part's results are written as soon as it has ended; SIGTERM ends all that was begun."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    works: dict[Part, Callable[[Callable[[str], None]], Awaitable[dict[str, Any]]]] = {
        Part.LOAD: lambda tell: load.run(
            folder,
            cores,
            agents=sizes.agents,
            step=sizes.step,
            most=sizes.most,
            windows=sizes.windows,
            search=sizes.search,
            tell=tell,
        ),
        Part.FAILOVER: lambda tell: failover.run(
            folder,
            cores,
            agents=sizes.agents,
            kills=sizes.leader_kills,
            soak_s=sizes.soak_s,
            tell=tell,
        ),
        Part.STORE: lambda tell: store_chaos.run(
            folder,
            cores,
            agents=sizes.store_agents,
            kills=sizes.store_kills,
            pause_s=sizes.store_pause_s,
            tell=tell,
        ),
        Part.PARTITIONS: lambda tell: partitions.run(
            folder, cores, agents=sizes.partition_agents, tell=tell
        ),
        Part.FUZZ: lambda tell: _fuzz(folder, sizes.fuzz_messages, tell),
    }
    columns = (SpinnerColumn(), TextColumn("{task.fields[part]}"), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("", part="", total=None)
        for number, part in enumerate(parts):
            progress.update(bar, part=f"{number + 1}/{len(parts)} {part}")

            def tell(what: str) -> None:
                progress.update(bar, description=what)
                if not console.is_terminal:
                    console.print(f"{time.strftime('%H:%M:%S')} {what}")

            found.update(await works[part](tell))
            found["machine"] = {"cpu": platform.processor() or platform.machine(), "cores": 2}
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(found, indent=2) + "\n")


async def _fuzz(folder: Path, messages: int, tell: Callable[[str], None]) -> dict[str, Any]:
    tell(f"{messages} messages")
    folder = folder / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (str(messages), str(_FUZZ_SEED), str(folder))
    with (folder / "fuzz.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.control.fuzz",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        out, _ = await process.communicate()
    if process.returncode != 0:
        tail = (folder / "fuzz.log").read_text(errors="replace")[-2000:]
        raise StageError(f"the fuzzer ended with status {process.returncode}:\n{tail}")
    found: dict[str, Any] = json.loads(out)
    return found


def _sizes(quick: bool, agents: int | None, soak_s: float | None) -> Sizes:
    if quick:
        return Sizes(
            agents=agents or 200,
            step=100,
            most=(agents or 200) + 100,
            windows=Windows(5.0, 5.0, 5),
            search=Windows(3.0, 3.0, 3),
            leader_kills=2,
            soak_s=QUICK_SOAK_S if soak_s is None else soak_s,
            store_agents=50,
            store_kills=4,
            store_pause_s=6.0,
            partition_agents=50,
            fuzz_messages=QUICK_FUZZ,
        )
    return Sizes(
        agents=agents or 1000,
        step=250,
        most=(agents or 1000) + 3000,
        windows=Windows(30.0, 60.0, 30),
        search=Windows(10.0, 15.0, 8),
        leader_kills=5,
        soak_s=SOAK_S if soak_s is None else soak_s,
        store_agents=200,
        store_kills=20,
        store_pause_s=30.0,
        partition_agents=200,
        fuzz_messages=FUZZ,
    )


if __name__ == "__main__":
    typer.run(main)
