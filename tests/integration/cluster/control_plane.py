"""A control plane for tests: a real redis-server, controllers in this process, tiny agents."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_status import rpc_status
from tiny_agent import TinyAgent

from cluster.clocks import BootClock, SystemWallClock
from cluster.config import load_config
from cluster.controller.controller import Controller
from cluster.store.redis_store import RedisStore
from cluster.store.server import embedded_redis
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import admin_pb2_grpc
from mirage_core.wire.v1 import common_pb2 as common

PATIENCE_S = 20.0
LOOPBACK = {"admin_listen": "127.0.0.1:0", "agent_listen": "127.0.0.1:0"}


async def until(holds: Callable[[], Any], what: str = "it") -> None:
    """Wait for what is about to happen; nothing here depends on how long it takes."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


async def until_async(holds: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.02)


def wish(name: str = "chat", **fields: Any) -> common.ModelWish:
    spec = fields.pop("spec", common.ModelSpec(weights_bytes=10 << 20))
    return common.ModelWish(name=name, weights_digest="abcd", spec=spec, **fields)


def detail_of(error: grpc.aio.AioRpcError) -> common.ErrorDetail:
    """What every status that is not OK carries."""
    status = rpc_status.from_call(error)
    assert status is not None, f"{error.code()} has no details"
    detail = common.ErrorDetail()
    assert status.details[0].Unpack(detail)
    return detail


class ControlPlane:
    """``settings`` are of every controller; the first to start leads."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {**LOOPBACK, **settings}
        self._stack = AsyncExitStack()
        self._agents: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.redis, self.url = embedded_redis(self.folder)
        await self._stack.enter_async_context(self.redis)
        self.controller = await self.start_controller()
        self.admin = await self.stub(self.controller)
        await until(lambda: self.controller.term, "a leader")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._agents:
            task.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)
        await self._stack.aclose()

    async def start_controller(self, **settings: Any) -> Controller:
        config = load_config(None, {"store": {"url": self.url}, **self.settings, **settings})
        controller = Controller(
            config, RedisStore(config.store), BootClock(), SystemWallClock(), uuid.uuid4().hex
        )
        await controller.start()
        running = asyncio.create_task(controller.run())

        async def stop() -> None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await controller.stop()

        self._stack.push_async_callback(stop)
        return controller

    async def stub(
        self, controller: Controller, credentials: grpc.ChannelCredentials | None = None
    ) -> Any:
        channel = self.channel(controller, credentials)
        await self._stack.enter_async_context(channel)
        return admin_pb2_grpc.AdminServiceStub(channel)

    def channel(
        self, controller: Controller, credentials: grpc.ChannelCredentials | None = None
    ) -> grpc.aio.Channel:
        address = controller.addresses.admin
        if credentials is None:
            return grpc.aio.insecure_channel(address)
        return grpc.aio.secure_channel(address, credentials)

    async def agent(
        self, device: str = "GPU-1", node: str = "node-1", *engines: Any, **fields: Any
    ) -> TinyAgent:
        """An agent that is connected and was told all."""
        agent = TinyAgent(device, node, **fields)
        agent.engines = engines
        addresses = self.controller.addresses.agents
        self._agents.append(asyncio.create_task(agent.run(addresses)))
        await until(lambda: "device" in agent.holds, f"{device} to be welcomed")
        return agent

    def run_agent(self, agent: TinyAgent, *addresses: str) -> None:
        self._agents.append(asyncio.create_task(agent.run(*addresses)))

    async def register(self, name: str = "chat", **fields: Any) -> pb.Model:
        request = pb.RegisterModelRequest(wish=wish(name, **fields))
        return (await self.admin.RegisterModel(request)).model

    async def model(self, name: str = "chat") -> pb.Model:
        return (await self.admin.GetModel(pb.GetModelRequest(name=name))).model

    async def applied(self, name: str = "chat") -> bool:
        status = (await self.model(name)).status
        return status.HasField("observed_revision") and (
            status.observed_revision == status.desired_revision
        )


def condition(status: common.Status, kind: str) -> common.Condition:
    return next(each for each in status.conditions if each.kind == kind)
