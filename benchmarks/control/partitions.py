"""The network between leader, Redis and agents cut by blackhole routes, in network namespaces.

    namespace hub                               namespace away
    redis-server     10.77.9.1  ─┐           ┌─ controller 0: to Redis as 10.77.8.2
    agents, operator 10.77.0.1  ─┼── veth ───┤                listens at  10.77.0.2
    controller 1     10.77.0.1  ─┘           └─

A blackhole route in the hub to 10.77.8.2 swallows what Redis answers, one to 10.77.0.2 what agents
say; neither side is told.  Needs root; nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.control.agents import node_of
from benchmarks.control.certificates import Authority
from benchmarks.control.stage import (
    ControllerProcess,
    Cores,
    GeneratorProcess,
    StageError,
    controller_settings,
)
from cluster.store.server import RedisProcess, find_redis_server

_HUB, _AWAY = "10.77.0.1", "10.77.0.2"
_REDIS, _AWAY_TO_REDIS = "10.77.9.1", "10.77.8.2"
_PATIENCE_S = 60.0
_CUT_S = 8.0


def obstacle() -> str | None:
    """Why partitions cannot be made here; None: they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    name = f"mirage-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return "this machine allows no network namespaces"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


async def run(
    folder: Path, cores: Cores, *, agents: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    reason = obstacle()
    if reason is not None:
        return {"partitions": {"not_run": reason}}
    folder = folder / "partitions"
    folder.mkdir(parents=True, exist_ok=True)
    async with _network() as (hub, away), AsyncExitStack() as stack:
        redis = RedisProcess(
            folder / "redis",
            {
                "bind": _REDIS,
                "port": "6379",
                "protected-mode": "no",
                "appendonly": "yes",
                "appendfsync": "always",
                "save": "",
            },
            binary=_in_namespace(folder, hub),
        )
        await stack.enter_async_context(redis)
        certificates = folder / "certificates"
        authority = Authority(certificates)
        authority.issue("controller", addresses=[_HUB, _AWAY])
        authority.issue("operator")
        for number in range(agents):
            authority.issue(node_of(number))
        controllers = []
        for name, address, space in (("away", _AWAY, away), ("hub", _HUB, hub)):
            settings = controller_settings(
                f"redis://{_REDIS}:6379", f"{address}:7611", f"{address}:7612", 7613, certificates
            )
            controller = ControllerProcess(name, folder, settings, cores.control, _exec(space))
            await controller.start()
            stack.push_async_callback(controller.kill)
            await controller.await_ready()
            controllers.append(controller)
        generator = GeneratorProcess(
            folder,
            {
                "admins": [each.admin for each in controllers],
                "agents": [each.agents for each in controllers],
                "certificates": str(certificates),
            },
            cores.load,
            _exec(hub),
        )
        await generator.start(piped=True)
        stack.push_async_callback(generator.kill)
        await generator.do("grow", count=agents)
        tell("the leader is cut off from Redis")
        redis_cut = await _cut_from_redis(hub, generator)
        await _let_lead(controllers[1], generator)
        tell("the agents are cut off from the leader")
        agents_cut = await _cut_agents(hub, generator)
        fleet = await generator.do("fleet")
    return {
        "partitions": {
            "leader_from_redis": redis_cut,
            "agents_from_leader": agents_cut,
            "obeyed_deposed": fleet["obeyed_deposed"],
        }
    }


async def _cut_from_redis(hub: str, generator: GeneratorProcess) -> dict[str, Any]:
    """The leader away hears nothing of Redis any more, but its agents do hear it."""
    before = await generator.do("status")
    await generator.do("tempt", wishes=20)
    cut_s = time.monotonic()
    _ip(hub, "route", "replace", "blackhole", f"{_AWAY_TO_REDIS}/32")
    answer = await generator.do(
        "follow", above_epoch=before["heard_epoch"], share=1.0, patience_s=_PATIENCE_S
    )
    _ip(hub, "route", "replace", f"{_AWAY_TO_REDIS}/32", "via", _AWAY)
    if answer["at_s"] is None:
        raise StageError(f"no other leader after {_PATIENCE_S:g} s: {answer}")
    await generator.do("settle")
    await asyncio.sleep(_CUT_S)  # the deposed one comes back, and must not act
    after = await generator.do("fleet")
    return {
        "another_leader_followed_s": answer["at_s"] - cut_s,
        "elections": after["elections"] - before["elections"],
        "obeyed_deposed": after["obeyed_deposed"] - before["obeyed_deposed"],
    }


async def _let_lead(standby: ControllerProcess, generator: GeneratorProcess) -> None:
    """The controller away leads again: the other one is killed and started anew."""
    before = await generator.do("status")
    await standby.kill()
    answer = await generator.do(
        "follow", above_epoch=before["heard_epoch"], share=1.0, patience_s=_PATIENCE_S
    )
    if answer["at_s"] is None:
        raise StageError("the controller away does not lead again")
    await standby.start()
    await standby.await_ready()


async def _cut_agents(hub: str, generator: GeneratorProcess) -> dict[str, Any]:
    """The leader has Redis and no agents: it stays leader, and they hold to what they were told."""
    before = await generator.do("fleet")
    _ip(hub, "route", "replace", "blackhole", f"{_AWAY}/32")
    await asyncio.sleep(_CUT_S)
    during = await generator.do("fleet")
    _ip(hub, "route", "del", "blackhole", f"{_AWAY}/32")
    healed_s = time.monotonic()
    answer = await generator.do("follow", above_epoch=-1, share=1.0, patience_s=_PATIENCE_S)
    after = await generator.do("fleet")
    return {
        "connected_when_cut": during["connected"],
        "elections": after["elections"] - before["elections"],
        "all_back_s": answer["at_s"] - healed_s if answer["at_s"] is not None else None,
        "obeyed_deposed": after["obeyed_deposed"] - before["obeyed_deposed"],
    }


# ---- namespaces


@asynccontextmanager
async def _network() -> AsyncIterator[tuple[str, str]]:
    """(hub, away); both are gone afterwards, with all that is in them."""
    hub, away = f"mirage-{os.getpid()}-hub", f"mirage-{os.getpid()}-away"
    try:
        for name in (hub, away):
            _run("ip", "netns", "add", name)
            _ip(name, "link", "set", "lo", "up")
        _ip(hub, "link", "add", "to-away", "type", "veth", "peer", "name", "to-hub", "netns", away)
        _ip(hub, "addr", "add", f"{_HUB}/24", "dev", "to-away")
        _ip(hub, "addr", "add", f"{_REDIS}/32", "dev", "lo")
        _ip(hub, "link", "set", "to-away", "up")
        _ip(away, "addr", "add", f"{_AWAY}/24", "dev", "to-hub")
        _ip(away, "addr", "add", f"{_AWAY_TO_REDIS}/32", "dev", "lo")
        _ip(away, "link", "set", "to-hub", "up")
        _ip(away, "route", "add", f"{_REDIS}/32", "via", _HUB, "src", _AWAY_TO_REDIS)
        _ip(hub, "route", "add", f"{_AWAY_TO_REDIS}/32", "via", _AWAY)
        yield hub, away
    finally:
        for name in (hub, away):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _exec(namespace: str) -> Sequence[str]:
    return ("ip", "netns", "exec", namespace)


def _in_namespace(folder: Path, namespace: str) -> Path:
    """A program that is redis-server in ``namespace``."""
    script = folder / "redis-server-in-namespace"
    command = " ".join([*_exec(namespace), str(find_redis_server())])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def _ip(namespace: str, *arguments: str) -> None:
    _run("ip", "-n", namespace, *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise StageError(f"{' '.join(command)}: {done.stderr.strip()}")
