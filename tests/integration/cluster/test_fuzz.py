"""Whatever is sent: no crash, no hang, and every answer a proper status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, detail_of, wish
from fuzzed_messages import methods, random_bytes, random_message
from tiny_agent import TinyAgent, engine

from mirage_core.wire import agent_codec
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import agent_pb2

CALLS = 3000
SESSION_MESSAGES = 2000
PROPER = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def call_once(channel: grpc.aio.Channel, method: Any, data: bytes) -> grpc.StatusCode:
    path = f"/mirage.v1.AdminService/{method.name}"
    try:
        if method.server_streaming:
            stream = channel.unary_stream(path)(data, timeout=2)
            async with asyncio.timeout(20):
                await stream.read()
            stream.cancel()
        else:
            await channel.unary_unary(path)(data, timeout=20)
    except grpc.aio.AioRpcError as error:
        check_proper(method.name, data, error)
        return error.code()
    return grpc.StatusCode.OK


def check_proper(name: str, data: bytes, error: grpc.aio.AioRpcError) -> None:
    assert error.code() in PROPER, (name, data, error.details())
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        assert error.details(), name
        assert detail_of(error).reason


def test_every_admin_call_answers_anything_with_a_proper_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(20261130)
    found: Counter[tuple[str, str]] = Counter()

    async def run() -> None:
        limits = {"calls_per_s": 1e6, "calls_burst": 1_000_000}
        async with ControlPlane(tmp_path, limits=limits) as plane:
            await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.agent("GPU-2", "node-1")
            await plane.register("chat")
            every = methods("AdminService")
            async with plane.channel(plane.controller) as channel:

                async def caller(share: int) -> None:
                    for i in range(share):
                        method = every[(i + rng.randrange(len(every))) % len(every)]
                        aware = i % 2 == 0
                        data = (
                            random_message(rng, method.input_type).SerializeToString()
                            if aware
                            else random_bytes(rng)
                        )
                        code = await call_once(channel, method, data)
                        found[method.name, code.name] += 1

                await asyncio.gather(*(caller(CALLS // 8) for _ in range(8)))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await plane.admin.Thaw(pb.ThawRequest())
            with contextlib.suppress(grpc.aio.AioRpcError):
                await plane.admin.RegisterModel(pb.RegisterModelRequest(wish=wish("alive")))
            assert (await plane.model("alive")).wish.name == "alive"

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], "no fault of its own"
    names = {each.name for each in methods("AdminService")}
    assert {name for name, _ in found} == names
    reached = {name for name, code in found if code in ("OK", "NOT_FOUND", "ALREADY_EXISTS")}
    assert reached == names, f"never past validation: {names - reached}"


def test_every_session_message_is_taken_or_ends_the_session_properly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(20261130)
    codes: Counter[str] = Counter()
    sent = 0

    def request() -> bytes:
        if rng.random() < 0.2:
            return random_bytes(rng)
        message = agent_pb2.SessionRequest()
        field = rng.choice(message.DESCRIPTOR.fields)
        part = random_message(rng, field.message_type)
        getattr(message, field.name).CopyFrom(part)
        return bytes(message.SerializeToString())

    async def session(channel: grpc.aio.Channel) -> None:
        """A hello (mostly), a few messages, and the end; what then comes is the status."""
        nonlocal sent
        hello = agent_codec.encode_hello(TinyAgent(f"GPU-{rng.randrange(5)}").hello)
        begin = agent_pb2.SessionRequest(hello=hello).SerializeToString()
        messages = [begin] if rng.random() < 0.9 else []
        messages += [request() for _ in range(rng.choice((1, 1, 3)))]
        sent += len(messages)

        async def send() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        call = channel.stream_stream("/mirage.v1.AgentService/Session")(send(), timeout=20)
        try:
            async for _ in call:
                pass
            codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            if error.details() == "Internal error from Core":
                # This side's own word, for writing to a stream that has just ended: whatever the
                # controller said is lost, so it is said nothing of.
                return
            check_proper("Session", b"", error)
            codes[error.code().name] += 1

    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            address = plane.controller.addresses.agents
            async with grpc.aio.insecure_channel(address) as channel:
                while sent < SESSION_MESSAGES:
                    await session(channel)
            agent = await plane.agent("GPU-alive")
            assert agent.holds

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], "no fault of its own"
    assert min(codes["OK"], codes["INVALID_ARGUMENT"]) > 50, codes
