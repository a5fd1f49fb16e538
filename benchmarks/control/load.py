"""Full load: from an admin call to the agents' acknowledgements, and the most agents that are held.

``one``: the priority of one model, which one agent applies.  ``all``: a freeze or its end, which
every agent applies.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.control.stage import ControllerProcess, Cores, GeneratorProcess, Stage

ONE_TARGET_MS = 50.0
ALL_TARGET_S = 1.0
GENERATOR_LIMIT = 0.8
"""Of its core; beyond it the load itself would be late."""
_CORE_FULL = 0.97
_SETTLE_S = 3.0
_ONE_PER_S = 20.0
_ALL_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Windows:
    """How long each thing is looked at."""

    quiet_s: float
    one_s: float
    all_times: int


def percentile(values: Sequence[float | None], share: float) -> float:
    """Nearest rank; a sample that never came is infinitely late."""
    ranked = sorted(math.inf if each is None else each for each in values)
    return ranked[min(len(ranked) - 1, math.ceil(share * len(ranked)) - 1)]


async def measure(
    controller: ControllerProcess, generator: GeneratorProcess, agents: int, windows: Windows
) -> dict[str, Any]:
    """Everything at one number of agents, which are connected already."""
    await asyncio.sleep(_SETTLE_S)
    lag_before = controller.metrics()
    quiet = await _during(controller, generator, lambda: asyncio.sleep(windows.quiet_s))
    ones: list[float | None] = []
    alls: list[float | None] = []

    async def one() -> None:
        answer = await generator.do("one", rate_per_s=_ONE_PER_S, seconds=windows.one_s)
        ones.extend(answer["latencies_s"])

    async def all_of_them() -> None:
        answer = await generator.do("all", times=windows.all_times, pause_s=_ALL_PAUSE_S)
        alls.extend(answer["latencies_s"])

    with_one = await _during(controller, generator, one)
    with_all = await _during(controller, generator, all_of_them)
    fleet = await generator.do("fleet")
    return {
        "agents": agents,
        "connected": fleet["connected"],
        "sessions_lost": fleet["sessions"] - agents,
        "directive_one_p50_ms": 1000 * percentile(ones, 0.5),
        "directive_one_p99_ms": 1000 * percentile(ones, 0.99),
        "directive_one_samples": len(ones),
        "directive_all_p50_s": percentile(alls, 0.5),
        "directive_all_p99_s": percentile(alls, 0.99),
        "directive_all_samples": len(alls),
        "controller_cores": quiet["controller_cores"],
        "controller_cores_directives": max(
            with_one["controller_cores"], with_all["controller_cores"]
        ),
        "generator_core_share": max(
            each["generator_cores"] for each in (quiet, with_one, with_all)
        ),
        "controller_rss_mb": controller.rss_mb(),
        **_lag(lag_before, controller.metrics()),
    }


async def _during(
    controller: ControllerProcess, generator: GeneratorProcess, what: Callable[[], Any]
) -> dict[str, float]:
    """Cores that both sides used while ``what`` went on."""
    before, cpu_before_s = await generator.do("fleet"), controller.cpu_s()
    await what()
    after, cpu_after_s = await generator.do("fleet"), controller.cpu_s()
    took_s = after["at_s"] - before["at_s"]
    return {
        "controller_cores": (cpu_after_s - cpu_before_s) / took_s,
        "generator_cores": (after["cpu_s"] - before["cpu_s"]) / took_s,
    }


def _lag(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """How late the controller's loop woke: mean, and the bucket that holds the 99th percentile."""
    name = "mirage_loop_lag_seconds"
    count = after[f"{name}_count"] - before[f"{name}_count"]
    mean_s = (after[f"{name}_sum"] - before[f"{name}_sum"]) / max(1.0, count)
    p99_s = math.inf
    for key in after:
        if key.startswith(f"{name}_bucket") and after[key] - before.get(key, 0.0) >= 0.99 * count:
            p99_s = min(p99_s, float(key.split('le="')[1].split('"')[0]))
    return {"loop_lag_mean_ms": 1000 * mean_s, "loop_lag_p99_below_ms": 1000 * p99_s}


def limit_of(found: dict[str, Any]) -> str | None:
    """What stands against more agents; None: nothing yet."""
    if found["generator_core_share"] > GENERATOR_LIMIT:
        return f"the load generator: over {GENERATOR_LIMIT:.0%} of its own core"
    if found["connected"] < found["agents"]:
        return "not all agents stay connected"
    if found["controller_cores_directives"] > _CORE_FULL:
        return "the controller's core is full"
    if found["directive_one_p99_ms"] > ONE_TARGET_MS:
        return f"one directive takes longer than {ONE_TARGET_MS:g} ms (p99)"
    if found["directive_all_p99_s"] > ALL_TARGET_S:
        return f"directives to all take longer than {ALL_TARGET_S:g} s (p99)"
    return None


async def run(
    folder: Path,
    cores: Cores,
    *,
    agents: int,
    step: int,
    most: int,
    windows: Windows,
    search: Windows,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """At ``agents``, then ``step`` more at a time, or fewer if those are too many."""
    async with Stage(folder / "load", cores, agents=most) as stage:
        generator = await stage.start()
        controller = stage.controllers[0]
        tell(f"{agents} agents connect")
        grown = await generator.do("grow", count=agents)
        await generator.do("watch")
        tell(f"{agents} agents: directives to one and to all")
        first = await measure(controller, generator, agents, windows)
        first["connect_s"] = grown["seconds"]
        steps, limit, held = [first], limit_of(first), agents
        while limit is None and held + step <= most:
            tell(f"{held + step} agents")
            await generator.do("grow", count=held + step)
            found = await measure(controller, generator, held + step, search)
            steps.append(found)
            limit = limit_of(found)
            if limit is None:
                held += step
    if first is steps[-1] and limit is not None:
        held = 0
        for fewer in range(agents - step, 0, -step):
            tell(f"{fewer} agents")
            async with Stage(folder / f"load-{fewer}", cores, agents=fewer) as stage:
                generator = await stage.start()
                await generator.do("grow", count=fewer)
                await generator.do("watch")
                found = await measure(stage.controllers[0], generator, fewer, search)
            steps.append(found)
            if limit_of(found) is None:
                held = fewer
                break
    return {
        **{name: value for name, value in first.items() if name != "connected"},
        "max_agents": held,
        "limited_by": limit or f"the benchmark's own end, {most} agents",
        "load_steps": steps,
    }
