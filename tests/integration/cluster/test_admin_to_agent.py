"""From an admin call to an agent's acknowledgement, over real gRPC and a real redis-server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, condition, detail_of, until, until_async, wish
from tiny_agent import engine

from mirage_core.cluster_model import (
    DecisionInput,
    DirectDevice,
    DirectLending,
    DirectModel,
    Effect,
    Explanation,
    MoveChosen,
    Turn,
)
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.wire import agent_codec
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common


def body(agent: Any, key: str) -> Any:
    held = agent.holds.get(key)
    return held.body if held is not None else None


def test_priority_set_by_an_operator_is_applied_by_the_agent_and_shown_as_observed(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            agent.answers = False
            request = pb.SetModelPriorityRequest(name="chat", priority=-7)
            accepted = (await plane.admin.SetModelPriority(request)).model
            assert accepted.wish.priority == -7
            assert accepted.status.desired_revision == accepted.provenance.revision
            assert accepted.provenance.set_by == "local"
            await until(
                lambda: (
                    body(agent, "model/chat")
                    == DirectModel(ModelName("chat"), -7, None, False, None)
                )
            )
            shown = await plane.model()
            assert shown.status.observed_revision != shown.status.desired_revision
            assert condition(shown.status, "Applied").reason == "Pending"
            agent.answers = True
            agent.holds.clear()
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=8))
            await until_async(plane.applied)
            assert body(agent, "model/chat").priority == 8

    asyncio.run(run())


def test_life_of_a_model(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent()
            registered = await plane.register(priority=3)
            assert registered.wish.uid
            await until(lambda: body(agent, "model/chat"))
            assert body(agent, "placement").models == ("chat",)
            agent.report(engine("chat", active=True))
            await plane.admin.SetModelPinned(pb.SetModelPinnedRequest(name="chat", pinned=True))
            await plane.admin.SetModelFloor(
                pb.SetModelFloorRequest(name="chat", floor_bytes=1 << 20)
            )
            await plane.admin.DeactivateModel(pb.DeactivateModelRequest(name="chat"))
            wanted = DirectModel(ModelName("chat"), 3, 1 << 20, True, Turn.INACTIVE)
            await until(lambda: body(agent, "model/chat") == wanted)
            await plane.admin.ActivateModel(pb.ActivateModelRequest(name="chat"))
            updated = wish(priority=9)
            await plane.admin.UpdateModel(pb.UpdateModelRequest(wish=updated))
            await until(lambda: body(agent, "model/chat").priority == 9)
            shown = await plane.model()
            assert shown.wish.uid == registered.wish.uid
            assert [list(each.devices) for each in shown.replicas] == [["GPU-1"]]
            assert shown.replicas[0].active
            await plane.admin.DeleteModel(pb.DeleteModelRequest(name="chat"))
            await until(lambda: body(agent, "model/chat").turn is Turn.DRAINING)
            agent.report()

            async def gone() -> bool:
                return not (await plane.admin.ListModels(pb.ListModelsRequest())).models

            await until_async(gone)
            again = await plane.register()
            assert again.wish.uid != registered.wish.uid

    asyncio.run(run())


def test_bounds_of_lending_reach_the_agent_and_go_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent()
            await plane.register()
            bounds = common.LendingBounds(at_least_bytes=5, at_most_bytes=9)
            request = pb.SetModelLendingRequest(name="chat", lending=bounds)
            shown = (await plane.admin.SetModelLending(request)).model
            assert shown.wish.lending == bounds
            await until(lambda: body(agent, "lend/chat") == DirectLending(ModelName("chat"), 5, 9))
            await until_async(plane.applied)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await plane.admin.SetModelPinned(pb.SetModelPinnedRequest(name="chat", pinned=True))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "wish.lending.at_least_bytes" in str(refused.value.details())
            free = pb.SetModelLendingRequest(name="chat")
            shown = (await plane.admin.SetModelLending(free)).model
            assert not shown.wish.HasField("lending")
            await until(lambda: body(agent, "lend/chat") is None)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (common.LendingBounds(at_least_bytes=1 << 49), "wish.lending.at_least_bytes"),
        (common.LendingBounds(at_least_bytes=9, at_most_bytes=5), "lending.at_most_bytes"),
    ],
)
def test_bounds_of_lending_that_cannot_be_are_refused(
    tmp_path: Path, bounds: common.LendingBounds, field: str
) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register()
            request = pb.SetModelLendingRequest(name="chat", lending=bounds)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await plane.admin.SetModelLending(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert field in str(refused.value.details())

    asyncio.run(run())


def test_no_way_of_writing_a_wish_gets_round_what_cannot_be_lent(tmp_path: Path) -> None:
    """10 MiB of weights, 6 of them to be lent: by no call can they be pinned or floored away."""
    pinned = wish(lending=common.LendingBounds(at_least_bytes=6 << 20), pinned=True)
    floored = wish(lending=common.LendingBounds(at_least_bytes=6 << 20), floor_bytes=5 << 20)

    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register(lending=common.LendingBounds(at_least_bytes=6 << 20))
            before = (await plane.model()).wish
            admin = plane.admin
            for call in (
                admin.Apply(pb.ApplyRequest(models=[pinned])),
                admin.Apply(pb.ApplyRequest(models=[floored])),
                admin.UpdateModel(pb.UpdateModelRequest(wish=pinned)),
                admin.UpdateModel(pb.UpdateModelRequest(wish=floored)),
                admin.SetModelPinned(pb.SetModelPinnedRequest(name="chat", pinned=True)),
                admin.SetModelFloor(pb.SetModelFloorRequest(name="chat", floor_bytes=5 << 20)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "lending.at_least_bytes" in str(refused.value.details())
            assert (await plane.model()).wish == before
            await admin.SetModelFloor(pb.SetModelFloorRequest(name="chat", floor_bytes=4 << 20))
            assert (await plane.model()).wish.floor_bytes == 4 << 20

    asyncio.run(run())


def test_freeze_shadow_sharing_and_drains_reach_the_device(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent()
            admin = plane.admin
            await admin.Freeze(pb.FreezeRequest())
            await admin.SetShadow(pb.SetShadowRequest(shadow=True))
            await until(lambda: body(agent, "device") == DirectDevice(freeze=True, shadow=True))
            await admin.Thaw(pb.ThawRequest())
            await admin.SetShadow(pb.SetShadowRequest(shadow=False))
            await admin.SetDeviceSharing(
                pb.SetDeviceSharingRequest(device="GPU-1", sharing=common.SHARING_MODE_TEMPORAL)
            )
            await admin.DrainDevice(pb.DrainDeviceRequest(device="GPU-1"))
            await until(lambda: body(agent, "device").drain)
            assert body(agent, "device").sharing.name == "TEMPORAL"
            device = (await admin.GetDevice(pb.GetDeviceRequest(device="GPU-1"))).device
            assert condition(device.status, "Drained").status == common.TRUTH_TRUE
            await admin.UndrainDevice(pb.UndrainDeviceRequest(device="GPU-1"))
            await admin.DrainNode(pb.DrainNodeRequest(node="node-1"))
            await admin.UndrainNode(pb.UndrainNodeRequest(node="node-1"))
            await until(lambda: not body(agent, "device").drain)

            async def settled() -> bool:
                cluster = (await admin.GetCluster(pb.GetClusterRequest())).cluster
                return condition(cluster.status, "Applied").status == common.TRUTH_TRUE

            await until_async(settled)
            node = (await admin.GetNode(pb.GetNodeRequest(node="node-1"))).node
            assert list(node.devices) == ["GPU-1"]

    asyncio.run(run())


def test_explain_shows_the_decision_and_its_inputs(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            nothing = await plane.admin.Explain(pb.ExplainRequest(model="chat"))
            assert not nothing.explanations
            assert "no decision" in nothing.note
            donor = EngineId("chat-engine")
            chat = ModelName("chat")
            inputs = (DecisionInput(donor, chat, 0, False, False, 3.0, 50, 10, 100, 0, 0),)
            moves = (MoveChosen(donor, chat, "apply plan", 40),)
            for number in (1, 2):
                told = Explanation(
                    DeviceId("GPU-1"),
                    number,
                    1000.0 + number,
                    Effect.PERFORMED,
                    None,
                    40,
                    0,
                    inputs,
                    (),
                    moves,
                )
                agent.send(explanation=agent_codec.encode_explanation(told))
            term = plane.controller.term
            assert term is not None
            await until(lambda: len(term.explanations.get(DeviceId("GPU-1"), ())) == 2)
            shown = await plane.admin.Explain(pb.ExplainRequest(model="chat"))
            assert [each.number for each in shown.explanations] == [2]
            assert shown.explanations[0].moves[0].pages == 40
            assert "1 earlier" in shown.note

    asyncio.run(run())


def test_apply_changes_all_or_nothing_and_a_dry_run_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.agent()
            await plane.register("a")
            request = pb.ApplyRequest(
                models=[wish("a", priority=4), wish("b")],
                devices=[common.DeviceWish(device="GPU-1", drain=True)],
                cluster=common.ClusterWish(freeze=True),
            )
            request.options.dry_run = True
            planned = await plane.admin.Apply(request)
            kinds = {each.subject: each.kind for each in planned.changes}
            assert kinds == {
                "model/a": pb.CHANGE_KIND_UPDATED,
                "model/b": pb.CHANGE_KIND_CREATED,
                "device/GPU-1": pb.CHANGE_KIND_CREATED,
                "cluster/cluster": pb.CHANGE_KIND_CREATED,
            }
            assert list(planned.changes[0].fields) == ["priority"]
            assert (await plane.model("a")).wish.priority == 0
            request.options.dry_run = False
            applied = await plane.admin.Apply(request)
            assert (await plane.model("a")).provenance.revision == applied.revision
            assert (await plane.model("b")).provenance.revision == applied.revision
            again = await plane.admin.Apply(request)
            assert {each.kind for each in again.changes} == {pb.CHANGE_KIND_UNCHANGED}
            expecting = pb.ApplyRequest(models=[wish("a", priority=4)])
            expecting.options.expected_revision = applied.revision
            await plane.admin.Apply(expecting)
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="b", priority=1))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plane.admin.Apply(expecting)
            assert detail_of(caught.value).reason == common.ERROR_REASON_STALE_REVISION
            bad = pb.ApplyRequest(models=[wish("a", priority=9), common.ModelWish(name="c")])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plane.admin.Apply(bad)
            fields = [each.field for each in detail_of(caught.value).fields]
            assert fields == ["models[1].weights_digest", "models[1].spec.weights_bytes"]
            assert (await plane.model("a")).wish.priority == 4

    asyncio.run(run())


def test_repeated_request_is_done_once_and_answered_as_the_first_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            registered = await plane.register()
            careful = pb.WriteOptions(expected_revision=registered.provenance.revision)
            await plane.admin.SetModelPinned(
                pb.SetModelPinnedRequest(options=careful, name="chat", pinned=True)
            )
            options = pb.WriteOptions(request_id="once")
            first = pb.SetModelPriorityRequest(options=options, name="chat", priority=1)
            once = (await plane.admin.SetModelPriority(first)).model.provenance.revision
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=2))
            again = (await plane.admin.SetModelPriority(first)).model
            assert again.wish.priority == 2, "the retry changed nothing"
            other = pb.SetModelPriorityRequest(options=options, name="chat", priority=3)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plane.admin.SetModelPriority(other)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert detail_of(caught.value).reason == common.ERROR_REASON_REQUEST_ID_REUSED
            gone = pb.DeleteModelRequest(options=pb.WriteOptions(request_id="gone"), name="chat")
            await plane.admin.DeleteModel(gone)

            async def purged() -> bool:
                return not (await plane.admin.ListModels(pb.ListModelsRequest())).models

            await until_async(purged)
            answer = (await plane.admin.DeleteModel(gone)).model
            assert answer.wish.name == "chat", "what is gone can be deleted again"
            events = (await plane.admin.ListEvents(pb.ListEventsRequest())).events
            set_once = [e for e in events if e.attributes.get("request_id") == "local:once"]
            assert len(set_once) == 1
            assert once > 0

    asyncio.run(run())


def test_concurrent_writes_without_a_revision_all_count(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register()
            writes = [
                plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=1)),
                plane.admin.SetModelPinned(pb.SetModelPinnedRequest(name="chat", pinned=True)),
                plane.admin.SetModelFloor(pb.SetModelFloorRequest(name="chat", floor_bytes=5)),
            ]
            await asyncio.gather(*writes)
            shown = (await plane.model()).wish
            assert (shown.priority, shown.pinned, shown.floor_bytes) == (1, True, 5)

    asyncio.run(run())


def test_every_write_leaves_an_event_of_who_and_when(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register()
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=4))
            request = pb.ListEventsRequest(subject="model/chat")
            events = [
                each
                for each in (await plane.admin.ListEvents(request)).events
                if each.actor == "local"
            ]
            assert [each.kind for each in events] == ["RegisterModel", "SetModelPriority"]
            assert events[1].message == "model/chat: priority: 0 to 4"
            assert events[1].at_unix_s >= events[0].at_unix_s > 0
            assert events[1].attributes["peer"]

    asyncio.run(run())


def test_directives_can_be_listed_with_their_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            agent.refuse = {"model/chat": "no such engine"}  # type: ignore[dict-item]
            await plane.register()

            async def refused() -> bool:
                return condition((await plane.model()).status, "Applied").reason == "Refused"

            await until_async(refused)
            found = await plane.admin.ListDirectives(pb.ListDirectivesRequest(device="GPU-1"))
            by_key = {each.key: each for each in found.directives}
            assert set(by_key) == {"device", "placement", "model/chat"}
            assert by_key["device"].outcome == common.DIRECTIVE_OUTCOME_APPLIED
            assert by_key["model/chat"].outcome == common.DIRECTIVE_OUTCOME_REFUSED
            assert by_key["model/chat"].reason == "no such engine"
            operation = by_key["device"].directive.operation_id
            one = await plane.admin.GetDirective(pb.GetDirectiveRequest(operation_id=operation))
            assert one.directive.key == "device"

    asyncio.run(run())


def test_pages_give_every_device_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            names = [f"GPU-{i:02}" for i in range(7)]
            for name in names:
                await plane.agent(name, f"node-{int(name[-1]) % 2}")
            seen: list[str] = []
            token = ""
            while True:
                page = pb.PageOptions(page_size=3, page_token=token)
                found = await plane.admin.ListDevices(pb.ListDevicesRequest(page=page))
                seen += [each.wish.device for each in found.devices]
                token = found.next_page_token
                if not token:
                    break
            assert seen == names
            some = await plane.admin.ListDevices(pb.ListDevicesRequest(node="node-1"))
            assert len(some.devices) == 3
            nodes = await plane.admin.ListNodes(pb.ListNodesRequest())
            assert [each.wish.node for each in nodes.nodes] == ["node-0", "node-1"]

    asyncio.run(run())
