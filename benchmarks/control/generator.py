"""The load generator's process: ``python -m benchmarks.control.generator``.

Reads one command a line, as JSON with its name under ``do``; answers each with one line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.control.agents import Fleet, model_of
from benchmarks.control.operator import Operator
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

_WRITE_PAUSE_S = 0.005
_DRAIN_S = 60.0


class MonotonicClock:
    def monotonic_s(self) -> float:
        return time.monotonic()


class Generator:
    """One method for each command."""

    def __init__(self, admins: list[str], agents: list[str], certificates: Path) -> None:
        self._fleet = Fleet(agents, certificates, MonotonicClock())
        self._operator = Operator(admins, certificates)
        self._registered = 0
        self._samples = 0
        self._writers: list[asyncio.Task[None]] = []
        self._accepted: dict[str, int] = {}
        self._begun: list[asyncio.Task[Any]] = []

    async def grow(self, count: int, patience_s: float = 120.0) -> dict[str, Any]:
        """Until ``count`` agents are connected, each with its model placed on it."""
        began_s = time.monotonic()
        self._fleet.grow(count)
        await self._operator.register(self._registered, count)
        self._registered = max(self._registered, count)
        while self._fleet.connected() < count:
            if time.monotonic() - began_s > patience_s:
                break
            await asyncio.sleep(0.1)
        # A thousand agents in one process must not stop together to look for garbage in each other.
        gc.collect()
        gc.freeze()
        return {"connected": self._fleet.connected(), "seconds": time.monotonic() - began_s}

    async def watch(self) -> dict[str, Any]:
        self._operator.watch()
        return {}

    async def one(self, rate_per_s: float, seconds: float) -> dict[str, Any]:
        """Priorities of one model after the other, at a fixed rate; latencies in seconds."""
        due_s = time.monotonic()
        tasks = []
        for _ in range(max(1, round(rate_per_s * seconds))):
            self._samples += 1
            # Steps of a prime number reach all agents before any again, for any usual count.
            number = self._samples * 7919 % len(self._fleet.agents)
            due_s += 1 / rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            change = self._operator.change_one(number, self._samples, due_s)
            tasks.append(asyncio.create_task(change))
        return {"latencies_s": await _finished(tasks)}

    async def all(self, times: int, pause_s: float) -> dict[str, Any]:
        """Freeze and thaw of all, ``pause_s`` apart; latencies in seconds."""
        latencies = []
        for turn in range(times):
            due_s = time.monotonic()
            change = self._operator.change_all(len(self._fleet.agents), turn % 2 == 0, due_s)
            latencies += await _finished([asyncio.create_task(change)])
            await asyncio.sleep(max(0.0, due_s + pause_s - time.monotonic()))
        if times % 2:
            await self._operator.change_all(len(self._fleet.agents), False, time.monotonic())
        return {"latencies_s": latencies}

    async def status(self) -> dict[str, Any]:
        cluster = (await self._operator.call("GetCluster", pb.GetClusterRequest())).cluster
        known = {"epoch": cluster.leader_epoch, "leader": cluster.leader_address}
        return {**known, **await self.fleet()}

    async def fleet(self) -> dict[str, Any]:
        """What the agents know, and what this process has cost."""
        watched = self._fleet.watched
        return {
            "connected": self._fleet.connected(),
            "sessions": self._fleet.sessions(),
            "heard_epoch": watched.epoch,
            "elections": len(watched.epochs),
            "obeyed_deposed": watched.obeyed_deposed,
            "cpu_s": time.process_time(),
            "at_s": time.monotonic(),
        }

    async def follow(self, above_epoch: int, share: float, patience_s: float) -> dict[str, Any]:
        """Until ``share`` of the agents follow a leader above ``above_epoch``; when that was, by
        the monotonic clock of this machine, or None."""
        wanted = share * len(self._fleet.agents)
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            if self._fleet.acknowledged(above_epoch + 1) >= wanted:
                return {"at_s": time.monotonic()}
            await asyncio.sleep(0.01)
        return {"at_s": None, "following": self._fleet.acknowledged(above_epoch + 1)}

    async def write(self, writers: int) -> dict[str, Any]:
        """Start writers that set priorities of models of their own, each write with its id."""
        wishes = [
            common.ModelWish(
                name=f"written-{writer}",
                weights_digest="00",
                spec=common.ModelSpec(weights_bytes=1 << 20),
                state=common.MODEL_STATE_INACTIVE,
            )
            for writer in range(writers)
        ]
        await self._operator.call("Apply", pb.ApplyRequest(models=wishes))
        self._writers = [asyncio.create_task(self._write_forever(w)) for w in range(writers)]
        return {}

    async def written(self) -> dict[str, Any]:
        """End the writers; the accepted writes' ids and revisions."""
        for writer in self._writers:
            writer.cancel()
        await asyncio.gather(*self._writers, return_exceptions=True)
        return {"accepted": self._accepted, "failures": dict(self._operator.failures)}

    async def accepted(self) -> dict[str, Any]:
        return {"accepted": len(self._accepted)}

    async def _write_forever(self, writer: int) -> None:
        number = 0
        while True:
            number += 1
            chosen = f"w{writer}-{number}"
            request = pb.SetModelPriorityRequest(
                options=pb.WriteOptions(request_id=chosen),
                name=f"written-{writer}",
                priority=number,
            )
            response = await self._operator.call("SetModelPriority", request, patience_s=600.0)
            self._accepted[chosen] = response.model.provenance.revision
            await asyncio.sleep(_WRITE_PAUSE_S)

    async def tempt(self, wishes: int) -> dict[str, Any]:
        """Begin so many priority changes and await none: work in flight for whatever comes."""
        for _ in range(wishes):
            self._samples += 1
            number = self._samples * 7919 % len(self._fleet.agents)
            request = pb.SetModelPriorityRequest(name=model_of(number), priority=self._samples)
            call = self._operator.call("SetModelPriority", request)
            self._begun.append(asyncio.create_task(call))
        return {}

    async def settle(self) -> dict[str, Any]:
        """Until all that was begun has ended."""
        begun, self._begun = self._begun, []
        await asyncio.gather(*begun, return_exceptions=True)
        return {}

    async def end(self) -> dict[str, Any]:
        await self._operator.close()
        await self._fleet.end()
        return {}


async def _finished(tasks: list[asyncio.Task[float]]) -> list[float | None]:
    """None for one that did not end in time, or failed."""
    await asyncio.wait(tasks, timeout=_DRAIN_S)
    found: list[float | None] = []
    for task in tasks:
        ok = task.done() and not task.cancelled() and task.exception() is None
        found.append(task.result() if ok else None)
        task.cancel()
    return found


async def main(settings: dict[str, Any]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(50_000)  # of many agents, each of which alone makes little
    generator = Generator(settings["admins"], settings["agents"], Path(settings["certificates"]))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        method: Callable[..., Awaitable[dict[str, Any]]] = getattr(generator, command.pop("do"))
        answer = await method(**command)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # thousands of channels need not be closed one by one


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
