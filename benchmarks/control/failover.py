"""Leaders that are killed, stopped past their lease, or that merely have much to do."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.control.load import percentile
from benchmarks.control.stage import ControllerProcess, Cores, GeneratorProcess, Stage, StageError

CONTROLLERS = 3
FOLLOWING_SHARE = 0.99
_PATIENCE_S = 60.0
_TEMPTING = 50
_STOPS_S = (3.2, 8.0)
"""Past the lease of 2 s: while agents still count the missed heartbeats, and after they left."""
_AFTER_S = 5.0
_SOAK_ONE_PER_S = 5.0
_SOAK_ROUND_S = 10.0


async def run(
    folder: Path,
    cores: Cores,
    *,
    agents: int,
    kills: int,
    soak_s: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    async with Stage(folder / "failover", cores, agents=agents, controllers=CONTROLLERS) as stage:
        generator = await stage.start()
        tell(f"{agents} agents connect to three controllers")
        await generator.do("grow", count=agents)
        await generator.do("watch")
        soak = await _soak(generator, soak_s, tell)
        killed = [await _kill(stage, generator, each, kills, tell) for each in range(kills)]
        stopped = [await _stop(stage, generator, pause_s, tell) for pause_s in _STOPS_S]
        fleet = await generator.do("fleet")
    return {
        "failover_s": killed,
        "failover_s_max": max(killed),
        **soak,
        "stopped_leader": stopped,
        "deposed_leader_obeyed": fleet["obeyed_deposed"],
    }


async def _soak(
    generator: GeneratorProcess, soak_s: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """All agents report, one directive goes out every 200 ms, one to all every ten seconds."""
    before = await generator.do("fleet")
    ones: list[float | None] = []
    alls: list[float | None] = []
    began_s = time.monotonic()
    while (gone_s := time.monotonic() - began_s) < soak_s:
        tell(f"full load: {gone_s:.0f} of {soak_s:.0f} s, no leader should change")
        answer = await generator.do("one", rate_per_s=_SOAK_ONE_PER_S, seconds=_SOAK_ROUND_S)
        ones += answer["latencies_s"]
        alls += (await generator.do("all", times=1, pause_s=0.0))["latencies_s"]
    after = await generator.do("fleet")
    return {
        "soak_s": time.monotonic() - began_s,
        "spurious_failovers": after["elections"] - before["elections"],
        "soak_sessions_lost": after["sessions"] - before["sessions"],
        "soak_one_p99_ms": 1000 * percentile(ones, 0.99),
        "soak_all_p99_s": percentile(alls, 0.99),
    }


async def _kill(
    stage: Stage, generator: GeneratorProcess, number: int, kills: int, tell: Callable[[str], None]
) -> float:
    """Seconds from kill -9 of the leader until nearly all agents follow the next one."""
    tell(f"leader killed, {number + 1} of {kills}")
    leader, epoch = await _leader(stage, generator)
    killed_s = time.monotonic()
    await leader.kill()
    followed_s = await _followed(generator, epoch)
    await leader.start()
    await leader.await_ready()
    await _all_connected(generator)
    return followed_s - killed_s


async def _stop(
    stage: Stage, generator: GeneratorProcess, pause_s: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """SIGSTOP with work in flight, another leader meanwhile, SIGCONT: nobody may obey it."""
    tell(f"leader stopped for {pause_s:g} s and continued")
    leader, epoch = await _leader(stage, generator)
    before = await generator.do("fleet")
    await generator.do("tempt", wishes=_TEMPTING)
    leader.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(pause_s)
        at_continue = await generator.do("fleet")
    finally:
        leader.send(signal.SIGCONT)
    await asyncio.sleep(_AFTER_S)
    await _followed(generator, epoch)
    await generator.do("settle")
    await _all_connected(generator)
    after = await generator.do("fleet")
    return {
        "stopped_s": pause_s,
        "sessions_still_open": at_continue["connected"],
        "heard_of_another": at_continue["heard_epoch"] > before["heard_epoch"],
        "obeyed": after["obeyed_deposed"] - before["obeyed_deposed"],
    }


async def _leader(stage: Stage, generator: GeneratorProcess) -> tuple[ControllerProcess, int]:
    status = await generator.do("status")
    return stage.leader(status["leader"]), status["heard_epoch"]  # a standby shows no epoch


async def _followed(generator: GeneratorProcess, epoch: int) -> float:
    answer = await generator.do(
        "follow", above_epoch=epoch, share=FOLLOWING_SHARE, patience_s=_PATIENCE_S
    )
    if answer["at_s"] is None:
        raise StageError(f"no new leader is followed after {_PATIENCE_S:g} s: {answer}")
    return float(answer["at_s"])


async def _all_connected(generator: GeneratorProcess) -> None:
    answer = await generator.do("follow", above_epoch=-1, share=1.0, patience_s=_PATIENCE_S)
    if answer["at_s"] is None:
        raise StageError(f"not all agents came back in {_PATIENCE_S:g} s: {answer}")
