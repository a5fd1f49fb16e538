"""Redis killed, paused, and losing replies: no accepted wish is lost, none is done twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from control_plane import ControlPlane, detail_of, until, until_async
from tiny_agent import engine

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common


def passes(error: grpc.aio.AioRpcError) -> bool:
    """Whether the controller said that it may be otherwise later."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return True
    reasons = (common.ERROR_REASON_STORE_UNAVAILABLE, common.ERROR_REASON_NOT_LEADER)
    return error.code() is grpc.StatusCode.UNAVAILABLE and detail_of(error).reason in reasons


async def set_priority(plane: ControlPlane, priority: int) -> None:
    """As a careful caller does it: again with the same id, until it is answered."""
    request = pb.SetModelPriorityRequest(
        options=pb.WriteOptions(request_id=f"set-{priority}"), name="chat", priority=priority
    )

    async def accepted() -> bool:
        try:
            await plane.admin.SetModelPriority(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            if not passes(error):
                raise
            return False
        return True

    await until_async(accepted)


def test_store_killed_and_started_again_loses_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            for priority in range(1, 4):
                await set_priority(plane, priority)
                await plane.redis.kill()
                writing = asyncio.create_task(set_priority(plane, 10 + priority))
                await asyncio.sleep(0)
                await plane.redis.start()
                await writing
                shown = await plane.model()
                assert shown.wish.priority == 10 + priority

                def obeyed(wanted: int = 10 + priority) -> bool:
                    held = agent.holds.get("model/chat")  # type: ignore[call-overload]
                    return held is not None and held.body.priority == wanted

                await until(obeyed)
            found = await plane.admin.ListEvents(pb.ListEventsRequest(subject="model/chat"))
            once = [
                e.attributes["request_id"] for e in found.events if "request_id" in e.attributes
            ]
            assert len(once) == len(set(once)), "no request is done twice"
            epochs = [each.authority.epoch for each in agent.obeyed]
            assert epochs == sorted(epochs)

    asyncio.run(run())


def test_call_ends_at_its_deadline_while_the_store_is_silent(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register()
            plane.redis.send(signal.SIGSTOP)
            try:
                request = pb.SetModelPriorityRequest(name="chat", priority=1)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await plane.admin.SetModelPriority(request, timeout=0.3)
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                assert (await plane.model()).wish.name == "chat", "reads go on"
            finally:
                plane.redis.send(signal.SIGCONT)
            await set_priority(plane, 2)

    asyncio.run(run())
