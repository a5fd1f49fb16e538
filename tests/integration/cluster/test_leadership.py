"""Who leads, and that nobody obeys anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, detail_of, until, until_async, wish
from tiny_agent import TinyAgent, engine

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import admin_pb2_grpc
from mirage_core.wire.v1 import common_pb2 as common

REPOSITORY = Path(__file__).resolve().parents[3]


def test_standby_reads_refuses_writes_and_names_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register()
            other = await plane.start_controller()
            standby = await plane.stub(other)
            leader = plane.controller.addresses
            await until(lambda: other.leader().admin == leader.admin)

            async def mirrored() -> bool:
                return bool((await standby.ListModels(pb.ListModelsRequest())).models)

            await until_async(mirrored)
            shown = (await standby.GetModel(pb.GetModelRequest(name="chat"))).model
            assert shown.wish.name == "chat"
            assert shown.status.conditions[0].reason == "Standby"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await standby.SetModelPriority(pb.SetModelPriorityRequest(name="chat"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            detail = detail_of(caught.value)
            assert detail.reason == common.ERROR_REASON_NOT_LEADER
            assert detail.leader_address == leader.admin
            agent = TinyAgent("GPU-1")
            with pytest.raises(grpc.aio.AioRpcError):
                await agent.session(other.addresses.agents)
            assert agent.named == [leader.agents]

    asyncio.run(run())


class Process:
    """``python -m cluster.controller``, to be killed and stopped."""

    def __init__(self, process: asyncio.subprocess.Process, admin: str, agents: str) -> None:
        self.process = process
        self.admin = admin
        self.agents = agents

    @classmethod
    async def start(cls, url: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cluster.controller",
            "--redis",
            url,
            "--admin-listen",
            "127.0.0.1:0",
            "--agent-listen",
            "127.0.0.1:0",
            cwd=REPOSITORY,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode()
            if "operators: " in line:
                admin, _, agents = line.partition("operators: ")[2].partition(", agents: ")
                return cls(process, admin, agents.strip())
        raise AssertionError("the controller did not start")

    async def drain(self) -> None:
        assert self.process.stderr is not None
        await self.process.stderr.read()

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def end(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        await self.process.wait()


class Pair:
    """Two controllers as processes, and an agent that knows both."""

    def __init__(self, folder: Path) -> None:
        self.plane = ControlPlane(folder)

    async def __aenter__(self) -> Pair:
        from cluster.store.server import embedded_redis

        self.redis, url = embedded_redis(self.plane.folder)
        await self.redis.start()
        self.first = await Process.start(url)
        self.drains = [asyncio.create_task(self.first.drain())]
        self.agent = TinyAgent("GPU-1")
        self.agent.engines = (engine("chat"),)
        await self._led_by(self.first)
        self.second = await Process.start(url)
        self.drains.append(asyncio.create_task(self.second.drain()))
        self.running = asyncio.create_task(self.agent.run(self.first.agents, self.second.agents))
        await until(lambda: "device" in self.agent.holds)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.first.end()
        await self.second.end()
        await self.redis.stop()
        for task in self.drains:
            task.cancel()

    async def _led_by(self, process: Process) -> None:
        async with self.admin(process) as admin:

            async def leads() -> bool:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    cluster = (await admin.GetCluster(pb.GetClusterRequest())).cluster
                    return bool(cluster.leader_epoch)
                return False

            await until_async(leads)

    @contextlib.asynccontextmanager
    async def admin(self, process: Process) -> Any:
        async with grpc.aio.insecure_channel(process.admin) as channel:
            yield admin_pb2_grpc.AdminServiceStub(channel)

    def priority(self) -> int | None:
        held = self.agent.holds.get("model/chat")  # type: ignore[call-overload]
        return None if held is None else held.body.priority


def test_killed_leader_is_replaced_and_no_accepted_wish_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with Pair(tmp_path) as pair:
            async with pair.admin(pair.first) as admin:
                await admin.RegisterModel(pb.RegisterModelRequest(wish=wish(priority=1)))
                await until(lambda: pair.priority() == 1)
                pair.first.send(signal.SIGSTOP)
            epoch = pair.agent.latest.epoch  # type: ignore[union-attr]
            pair.first.send(signal.SIGKILL)
            await pair._led_by(pair.second)
            await until(lambda: pair.agent.latest.epoch > epoch)  # type: ignore[union-attr]
            async with pair.admin(pair.second) as admin:
                shown = (await admin.GetModel(pb.GetModelRequest(name="chat"))).model
                assert shown.wish.priority == 1
                await admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=2))
                await until(lambda: pair.priority() == 2)

    asyncio.run(run())


def test_standby_holds_an_agent_that_lost_its_leader_until_one_is_elected(tmp_path: Path) -> None:
    async def run() -> None:
        async with Pair(tmp_path) as pair:
            pair.running.cancel()
            await asyncio.gather(pair.running, return_exceptions=True)
            epoch = pair.agent.latest.epoch  # type: ignore[union-attr]
            os.kill(pair.first.process.pid, signal.SIGKILL)
            pair.agent.named.clear()
            pair.running = asyncio.create_task(pair.agent.run(pair.second.agents))
            await until(lambda: pair.agent.latest.epoch > epoch)  # type: ignore[union-attr]
            assert pair.first.agents not in pair.agent.named, "a dead leader is not gone back to"

    asyncio.run(run())


def test_standby_sends_an_agent_back_to_a_leader_that_is_seen_to_live(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent()
            assert agent.latest is not None
            standby = await plane.start_controller()
            leader = plane.controller.addresses
            await until(lambda: standby.leader().admin == leader.admin)
            other = TinyAgent("GPU-2")
            other.latest = agent.latest  # it comes from this very leader
            with pytest.raises(grpc.aio.AioRpcError):
                await other.session(standby.addresses.agents)
            assert other.named == [leader.agents]
            assert standby.sessions.waiting == 0

    asyncio.run(run())


def test_leader_that_was_stopped_past_its_lease_is_obeyed_by_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with Pair(tmp_path) as pair:
            async with pair.admin(pair.first) as admin:
                await admin.RegisterModel(pb.RegisterModelRequest(wish=wish(priority=1)))
                await until(lambda: pair.priority() == 1)
            epoch = pair.agent.latest.epoch  # type: ignore[union-attr]
            # Another agent keeps its stream to the leader while that is stopped.
            loyal = TinyAgent("GPU-2")
            loyal_runs = asyncio.create_task(loyal.run(pair.first.agents))
            await until(lambda: "device" in loyal.holds)
            os.kill(pair.first.process.pid, signal.SIGSTOP)
            await pair._led_by(pair.second)
            obeyed = len(loyal.obeyed)
            async with pair.admin(pair.second) as admin:
                await admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=2))
            os.kill(pair.first.process.pid, signal.SIGCONT)
            async with pair.admin(pair.first) as admin:

                async def refuses() -> bool:
                    try:
                        await admin.SetModelPriority(
                            pb.SetModelPriorityRequest(name="chat", priority=3)
                        )
                    except grpc.aio.AioRpcError as error:
                        detail = detail_of(error)
                        assert detail.reason == common.ERROR_REASON_NOT_LEADER
                        return detail.leader_address == pair.second.admin
                    raise AssertionError("a deposed leader accepted a write")

                await until_async(refuses)
            assert len(loyal.obeyed) == obeyed, "the deposed leader directs nothing"
            pair.running.cancel()
            pair.running = asyncio.create_task(
                pair.agent.run(pair.second.agents, pair.first.agents)
            )
            await until(lambda: pair.priority() == 2)
            assert pair.agent.latest.epoch > epoch  # type: ignore[union-attr]
            loyal_runs.cancel()
            await asyncio.gather(loyal_runs, return_exceptions=True)

    asyncio.run(run())


def test_store_that_lost_its_history_is_declared_and_agents_are_not_stuck(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            await until(lambda: "model/chat" in agent.holds)
            before = agent.latest
            assert before is not None
            from redis.asyncio import Redis

            redis = Redis.from_url(plane.url)
            await redis.flushall()
            await redis.aclose()
            await until(lambda: agent.latest is not None and agent.latest.store != before.store)
            await until(lambda: "device" in agent.holds)
            assert before.store in agent.welcomes[-1].retired

            async def told() -> bool:
                try:
                    found = await plane.admin.ListEvents(pb.ListEventsRequest())
                except grpc.aio.AioRpcError:
                    return False
                return any(each.kind == "StoreHistoryLost" for each in found.events)

            await until_async(told)

            async def accepts() -> bool:
                try:
                    await plane.register()
                except grpc.aio.AioRpcError as error:
                    if not detail_of(error).retryable:
                        raise
                    return False
                return True

            await until_async(accepts)
            await until(lambda: "model/chat" in agent.holds)

    asyncio.run(run())


def test_two_agents_of_one_device_the_newest_wins(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            first = await plane.agent("GPU-1")
            second = TinyAgent("GPU-1")
            object.__setattr__(second.hello, "incarnation", "GPU-1-2")
            session = asyncio.create_task(second.session(plane.controller.addresses.agents))
            await until(lambda: first.rejections)
            assert "another agent" in first.rejections[0].message
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)

    asyncio.run(run())


def test_silent_agent_is_given_up_and_shown_as_silent(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path, heartbeat_s=0.1) as plane:
            agent = TinyAgent("GPU-1")
            agent.silent = True
            with contextlib.suppress(grpc.aio.AioRpcError):
                await agent.session(plane.controller.addresses.agents)
            device = (await plane.admin.GetDevice(pb.GetDeviceRequest(device="GPU-1"))).device
            assert device.reachability == pb.REACHABILITY_SILENT
            assert plane.controller.sessions.counters.silent == 1

    asyncio.run(run())
