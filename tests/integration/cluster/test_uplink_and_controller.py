"""The agent's own uplink with the real controller, over gRPC and a real redis-server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from control_plane import ControlPlane, condition, until, until_async

from cluster.clocks import BootClock
from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    DecisionInput,
    DirectiveBody,
    DirectModel,
    Effect,
    EngineObservation,
    Event,
    Explanation,
    MoveChosen,
    NodeName,
)
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common
from node_agent.directives_file import DirectivesFile
from node_agent.uplink import Uplink
from node_agent.uplink_reports import DeviceReport
from node_agent.uplink_settings import UplinkSettings

CHAT = ModelName("chat")
ENGINE = EngineObservation(
    EngineId("e1"), CHAT, 30, 0, 10, 4, 0, active=True, unit_pages=30, lent_pages=0
)


class DeviceOfPages:
    """What an uplink needs of a device; it keeps what it was told."""

    def __init__(self) -> None:
        self.bodies: tuple[DirectiveBody, ...] = ()
        self.now = DeviceReport(60, 0, (ENGINE,))

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        self.bodies = bodies

    def report(self) -> DeviceReport:
        return self.now

    def model(self) -> DirectModel | None:
        found = [each for each in self.bodies if isinstance(each, DirectModel)]
        return found[0] if found else None


@asynccontextmanager
async def uplink(folder: Path, *addresses: str) -> AsyncIterator[tuple[Uplink, DeviceOfPages]]:
    device = DeviceOfPages()
    hello = AgentHello(
        NodeName("node-1"), DeviceId("GPU-1"), AgentIncarnation("1"), 1 << 20, 100, "node-1"
    )
    link = Uplink(
        hello,
        UplinkSettings(controllers=addresses, node="node-1"),
        device,
        DirectivesFile(folder / "directives.json"),
        BootClock(),
        random.Random(1),
    )
    running = asyncio.create_task(link.run())
    try:
        yield link, device
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_priority_freeze_and_explanation_go_through_the_agents_own_uplink(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            ControlPlane(tmp_path) as plane,
            uplink(tmp_path, plane.controller.addresses.agents) as (link, device),
        ):
            await until(lambda: len(plane.controller.sessions) == 1)
            await plane.register()
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=7))
            await until_async(plane.applied)
            directed = device.model()
            assert directed is not None
            assert directed.priority == 7
            await plane.admin.Freeze(pb.FreezeRequest())

            async def frozen() -> bool:
                cluster = (await plane.admin.GetCluster(pb.GetClusterRequest())).cluster
                applied = condition(cluster.status, "Applied").status
                return bool(cluster.wish.freeze and applied == common.TRUTH_TRUE)

            await until_async(frozen)
            assert any(getattr(each, "freeze", False) for each in device.bodies)
            link.tell(
                Explanation(
                    DeviceId("GPU-1"),
                    1,
                    1.0,
                    Effect.FROZEN,
                    CHAT,
                    8,
                    0,
                    (DecisionInput(EngineId("e1"), CHAT, 7, True, False, None, 10, 4, 30, 0, 0),),
                    (),
                    (MoveChosen(EngineId("e1"), CHAT, "apply plan", 8),),
                )
            )
            link.tell(Event("EngineDied", "device/GPU-1", "it ended", 1.0))

            async def explained() -> bool:
                answer = await plane.admin.Explain(pb.ExplainRequest(model="chat"))
                return bool(answer.explanations)

            await until_async(explained)

            async def told() -> bool:
                found = await plane.admin.ListEvents(pb.ListEventsRequest(subject="device/GPU-1"))
                died = [each for each in found.events if each.kind == "EngineDied"]
                return bool(died and died[0].actor == "device/GPU-1")

            await until_async(told)

    asyncio.run(run())


def test_agent_holds_to_its_directives_without_a_controller_and_meets_the_next(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            address = plane.controller.addresses.agents
            async with uplink(tmp_path, address):
                await until(lambda: len(plane.controller.sessions) == 1)
                await plane.register(priority=4)
                await until_async(plane.applied)
            async with uplink(tmp_path, "127.0.0.1:1") as (_, alone):
                await until(lambda: alone.model() is not None)
                held = alone.model()
                assert held is not None
                assert held.priority == 4
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=5))
            async with uplink(tmp_path, "127.0.0.1:1", address) as (_, device):
                await until(lambda: (m := device.model()) is not None and m.priority == 5)
                await until_async(plane.applied)

    asyncio.run(run())


def test_uplink_is_sent_from_a_standby_to_the_leader(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            standby = await plane.start_controller()
            await until(lambda: standby.leader().agents)
            async with uplink(tmp_path, standby.addresses.agents):
                await until(lambda: len(plane.controller.sessions) == 1)

    asyncio.run(run())
