"""The operator of the benchmark: admin calls, and the watch that sees what came of them.

A change is applied when the operator is told so: its watch shows the directive that follows from
it with the answer APPLIED.  Times run from when a call was due, not from when it could be made.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from benchmarks.control.agents import device_of, model_of
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import admin_pb2_grpc
from mirage_core.wire.v1 import common_pb2 as common

CALL_S = 30.0
MODELS_A_CALL = 500
WEIGHTS_BYTES = 2 << 30


class Operator:
    """Calls whoever leads of ``servers``; use as a context."""

    def __init__(self, servers: Sequence[str], certificates: Path) -> None:
        credentials = grpc.ssl_channel_credentials(
            (certificates / "ca.pem").read_bytes(),
            (certificates / "operator.key").read_bytes(),
            (certificates / "operator.pem").read_bytes(),
        )
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", 64 << 20),
            ("grpc.max_reconnect_backoff_ms", 500),
        )
        self._channels = {
            server: grpc.aio.secure_channel(server, credentials, options=options)
            for server in servers
        }
        self._stubs = {
            server: admin_pb2_grpc.AdminServiceStub(channel)
            for server, channel in self._channels.items()
        }
        self.leader = servers[0]
        self.failures: Counter[str] = Counter()
        self._watching: asyncio.Task[None] | None = None
        self._applied: dict[tuple[str, str], tuple[common.Directive, float]] = {}
        self._frozen: set[str] = set()
        self._froze_s = 0.0
        """when a device was last seen to be frozen, or no longer"""
        self._moved = asyncio.Event()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for channel in self._channels.values():
            await channel.close()

    async def call(self, method: str, request: Any, *, patience_s: float = 60.0) -> Any:
        """Repeated, with one request id, until it is answered with OK."""
        options = getattr(request, "options", None)
        if options is not None and not options.request_id:
            options.request_id = uuid.uuid4().hex
        servers = list(self._stubs)
        until_s = time.monotonic() + patience_s
        while True:
            try:
                return await getattr(self._stubs[self.leader], method)(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                self.failures[error.code().name] += 1
                if time.monotonic() > until_s or error.code() not in _REPEATED:
                    raise
                turn = servers.index(self.leader) + 1
                self.leader = servers[turn % len(servers)]
                await asyncio.sleep(0.02)

    async def register(self, first: int, count: int) -> None:
        """A model for each agent, placed on its device, all as one file would be applied."""
        for begin in range(first, count, MODELS_A_CALL):
            wishes = [
                common.ModelWish(
                    name=model_of(number),
                    weights_digest="00",
                    spec=common.ModelSpec(weights_bytes=WEIGHTS_BYTES),
                    placement=common.Placement(devices=[device_of(number)]),
                )
                for number in range(begin, min(begin + MODELS_A_CALL, count))
            ]
            await self.call("Apply", pb.ApplyRequest(models=wishes))

    # ---- what the watch shows

    def watch(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            request = pb.WatchRequest(kinds=[pb.RESOURCE_KIND_DIRECTIVE])
            try:
                async for response in self._stubs[self.leader].Watch(request):
                    record = response.directive
                    if record.outcome == common.DIRECTIVE_OUTCOME_APPLIED:
                        self._see_applied(record, time.monotonic())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)

    def _see_applied(self, record: pb.DirectiveRecord, at_s: float) -> None:
        if record.key == "device":
            say = self._frozen.add if record.directive.device.freeze else self._frozen.discard
            say(record.device)
            self._froze_s = at_s
        else:
            self._applied[record.device, record.key] = (record.directive, at_s)
        self._moved.set()

    async def change_one(self, number: int, priority: int, due_s: float) -> float:
        """Seconds from ``due_s`` until one agent has applied a priority."""
        subject = (device_of(number), f"model/{model_of(number)}")
        request = pb.SetModelPriorityRequest(name=model_of(number), priority=priority)
        await self.call("SetModelPriority", request)
        while True:
            directive, at_s = self._applied.get(subject, (None, 0.0))
            if directive is not None and directive.model.priority == priority:
                return at_s - due_s
            await self._next()

    async def change_all(self, count: int, freeze: bool, due_s: float) -> float:
        """Seconds from ``due_s`` until all agents have applied a freeze or its end."""
        request = pb.FreezeRequest() if freeze else pb.ThawRequest()
        await self.call("Freeze" if freeze else "Thaw", request)
        while len(self._frozen) != (count if freeze else 0):
            await self._next()
        return self._froze_s - due_s

    async def _next(self) -> None:
        self._moved.clear()
        await self._moved.wait()


_REPEATED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
)
