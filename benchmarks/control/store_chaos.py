"""Redis killed, paused, and its replies dropped after the commit, while operators write.

Every write has an id and is repeated until it is accepted.  What the store's own history says
afterwards is held against what was accepted: each once, at the revision that the operator was told.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from benchmarks.control.stage import LOOPBACK, Cores, GeneratorProcess, Stage, StageError
from cluster.store.port import Change, Position
from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from tests.chaos.reply_dropping_proxy import ReplyDroppingProxy

WRITERS = 8
DROP_EVERY = 40
"""Of so many replies one is dropped after the server has done the work."""
_OPERATOR = "operator"
_BETWEEN_WRITES = 40
_PATIENCE_S = 120.0


async def run(
    folder: Path,
    cores: Cores,
    *,
    agents: int,
    kills: int,
    pause_s: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    async with Stage(folder / "store", cores, agents=agents, controllers=2) as stage:
        async with ReplyDroppingProxy((LOOPBACK, stage.redis_port)) as proxy:
            generator = await stage.start(f"redis://{LOOPBACK}:{proxy.port}")
            tell(f"{agents} agents connect")
            await generator.do("grow", count=agents)
            begin = await _position(stage)
            await generator.do("write", writers=WRITERS)
            proxy.drop_every = DROP_EVERY
            for number in range(kills):
                tell(f"Redis killed and restarted, {number + 1} of {kills}")
                await _more_writes(generator)
                await stage.redis.kill()
                await stage.redis.start()
            tell(f"Redis paused for {pause_s:g} s")
            await _more_writes(generator)
            stage.redis.send(signal.SIGSTOP)
            await asyncio.sleep(pause_s)
            during = await generator.do("fleet")
            stage.redis.send(signal.SIGCONT)
            await _more_writes(generator)
            proxy.drop_every = 0
            written = await generator.do("written")
            back = await generator.do("follow", above_epoch=-1, share=1.0, patience_s=_PATIENCE_S)
            fleet = await generator.do("fleet")
            tell("the store's history is read")
            times, revisions = await _history(stage, begin)
        accepted: dict[str, int] = written["accepted"]
    return {
        "writes_accepted": len(accepted),
        "writes_lost": sum(each not in revisions for each in accepted),
        "writes_twice": sum(count > 1 for count in times.values()),
        "store_chaos": {
            "kills": kills,
            "pause_s": pause_s,
            "replies_dropped": proxy.dropped,
            "told_another_revision": sum(
                revisions.get(each, at) != at for each, at in accepted.items()
            ),
            "failed_calls": written["failures"],
            "agents": agents,
            "connected_when_paused": during["connected"],
            "all_agents_back": back["at_s"] is not None,
            "elections": fleet["elections"],
            "obeyed_deposed": fleet["obeyed_deposed"],
        },
    }


async def _more_writes(generator: GeneratorProcess) -> None:
    """Until some more writes were accepted."""
    goal = (await generator.do("accepted"))["accepted"] + _BETWEEN_WRITES
    until_s = time.monotonic() + _PATIENCE_S
    while (await generator.do("accepted"))["accepted"] < goal:
        if time.monotonic() > until_s:
            raise StageError(f"no write was accepted for {_PATIENCE_S:g} s")
        await asyncio.sleep(0.02)


async def _position(stage: Stage) -> Position:
    store = RedisStore(StoreSettings(url=stage.redis_url))
    try:
        return (await store.open()).position
    finally:
        await store.close()


async def _history(stage: Stage, begin: Position) -> tuple[Counter[str], dict[str, int]]:
    """How often each write of the operator's is in the history, and at what revision."""
    store = RedisStore(StoreSettings(url=stage.redis_url))
    times: Counter[str] = Counter()
    revisions: dict[str, int] = {}
    try:
        last = (await store.open()).revision
        async with aclosing(store.watch(begin)) as watch:
            async for change in watch:
                if not isinstance(change, Change):
                    continue
                actor, _, chosen = change.request_id.partition(":")
                if actor == _OPERATOR and chosen.startswith("w"):
                    times[chosen] += 1
                    revisions[chosen] = change.position.revision
                if change.position.revision >= last:
                    break
    finally:
        await store.close()
    return times, revisions
