"""Watches: what is, then what changes; resumed where they stopped, or told that they cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, detail_of
from tiny_agent import engine

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common


async def take_until(call: Any, holds: Any) -> list[pb.WatchResponse]:
    taken = []
    async with asyncio.timeout(20):
        async for response in call:
            taken.append(response)
            if holds(response):
                return taken
    raise AssertionError("the watch ended")


def is_end(response: pb.WatchResponse) -> bool:
    return response.HasField("snapshot_end")


def test_watch_begins_with_all_that_is_and_goes_on_with_what_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            call = plane.admin.Watch(pb.WatchRequest())
            snapshot = await take_until(call, is_end)
            kinds = [each.WhichOneof("body") for each in snapshot]
            assert kinds == ["cluster", "node", "device", "model", "snapshot_end"]
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=5))

            def applied(response: pb.WatchResponse) -> bool:
                status = response.model.status
                return (
                    response.model.wish.priority == 5
                    and status.observed_revision == status.desired_revision
                )

            changes = await take_until(call, applied)
            assert any(each.event.kind == "SetModelPriority" for each in changes)
            sequences = [each.sequence for each in snapshot + changes]
            assert sequences == sorted(sequences)
            call.cancel()

    asyncio.run(run())


def test_watch_resumes_after_what_was_handled(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.register("a")
            first = plane.admin.Watch(pb.WatchRequest(kinds=[pb.RESOURCE_KIND_MODEL]))
            end = (await take_until(first, is_end))[-1]
            first.cancel()
            await plane.register("b")
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="b", priority=2))
            request = pb.WatchRequest(
                kinds=[pb.RESOURCE_KIND_MODEL],
                after_sequence=end.sequence,
                store_incarnation=end.snapshot_end.store_incarnation,
            )
            again = plane.admin.Watch(request)
            told = await take_until(again, lambda r: r.model.wish.name == "b")
            assert told[-1].model.wish.priority == 2, "the latest state, once"
            again.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("fields", [{"after_sequence": 1 << 40}, {"store_incarnation": "other"}])
def test_watch_that_cannot_resume_is_out_of_range(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            cluster = (await plane.admin.GetCluster(pb.GetClusterRequest())).cluster
            known = {
                "after_sequence": cluster.revision,
                "store_incarnation": cluster.store_incarnation,
            }
            call = plane.admin.Watch(pb.WatchRequest(**{**known, **fields}))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call:
                    pass
            assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
            assert detail_of(caught.value).reason == common.ERROR_REASON_TRIMMED

    asyncio.run(run())


def test_directives_are_watched_when_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            kinds = [pb.RESOURCE_KIND_DIRECTIVE]
            call = plane.admin.Watch(pb.WatchRequest(kinds=kinds))
            await take_until(call, is_end)
            await plane.admin.SetModelPriority(pb.SetModelPriorityRequest(name="chat", priority=5))

            def answered(response: pb.WatchResponse) -> bool:
                directive = response.directive
                return (
                    directive.directive.model.priority == 5
                    and directive.outcome == common.DIRECTIVE_OUTCOME_APPLIED
                )

            await take_until(call, answered)
            call.cancel()

    asyncio.run(run())
