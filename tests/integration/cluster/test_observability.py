"""What a stranger can find out by the usual means: health, reflection, metrics, traces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from control_plane import ControlPlane, until, until_async
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tiny_agent import engine

from cluster.controller import controller as controller_module
from cluster.controller.servers import LIVENESS, READINESS
from cluster.tracing import Tracing
from mirage_core.wire.v1 import admin_pb2 as pb


def test_liveness_and_readiness_differ(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane, plane.channel(plane.controller) as channel:
            health = health_pb2_grpc.HealthStub(channel)

            async def status(service: str) -> int:
                request = health_pb2.HealthCheckRequest(service=service)
                return int((await health.Check(request)).status)

            serving = health_pb2.HealthCheckResponse.SERVING

            async def ready() -> bool:
                return await status(READINESS) == serving

            await until_async(ready)
            await plane.redis.kill()

            async def unready() -> bool:
                return not await ready()

            await until_async(unready)
            assert await status(LIVENESS) == serving, "a store that is gone is no reason to restart"

    asyncio.run(run())


def test_client_without_stubs_drives_the_api_through_reflection(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            address = plane.controller.addresses.admin

            def drive() -> str:
                with grpc.insecure_channel(address) as channel:
                    database = ProtoReflectionDescriptorDatabase(channel)
                    assert "mirage.v1.AdminService" in database.get_services()
                    pool = descriptor_pool.DescriptorPool(database)
                    service = pool.FindServiceByName("mirage.v1.AdminService")
                    method = service.FindMethodByName("RegisterModel")
                    ask, tell = (
                        GetMessageClass(each) for each in (method.input_type, method.output_type)
                    )
                    call = channel.unary_unary(
                        f"/{service.full_name}/{method.name}",
                        request_serializer=ask.SerializeToString,
                        response_deserializer=tell.FromString,
                    )
                    request = ask()
                    request.wish.name, request.wish.weights_digest = "chat", "ab"
                    request.wish.spec.weights_bytes = 1
                    return str(call(request, timeout=20).model.wish.uid)

            uid = await asyncio.to_thread(drive)
            assert (await plane.model()).wish.uid == uid

    asyncio.run(run())


def test_span_of_the_call_leads_to_that_of_the_directive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, "test")
    monkeypatch.setattr(controller_module.Tracing, "to", lambda *_: tracing)
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            agent = await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            request = pb.SetModelPriorityRequest(name="chat", priority=5)
            await plane.admin.SetModelPriority(request, metadata=(("traceparent", theirs),))
            await until_async(plane.applied)
            held = agent.holds["model/chat"]  # type: ignore[index]
            assert theirs[3:35] in held.traceparent
            events = (await plane.admin.ListEvents(pb.ListEventsRequest())).events
            assert any(theirs[3:35] in each.traceparent for each in events)

    asyncio.run(run())
    spans = {each.name: each for each in exporter.get_finished_spans()}
    call, directive = spans["SetModelPriority"], spans["directive model/chat"]
    assert call.context is not None
    assert directive.parent is not None
    assert f"{call.context.trace_id:032x}" == theirs[3:35]
    assert {call.context.span_id} >= {
        each.parent.span_id
        for each in exporter.get_finished_spans()
        if each.name == "directive model/chat"
        and each.parent is not None
        and each.parent.trace_id == call.context.trace_id
    }


def test_metrics_count_calls_agents_and_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with ControlPlane(tmp_path) as plane:
            await plane.agent("GPU-1", "node-1", engine("chat"))
            await plane.register()
            await until_async(plane.applied)
            value = plane.controller.metrics.registry.get_sample_value
            assert value("mirage_leading") == 1
            assert value("mirage_agents_connected") == 1
            assert value("mirage_calls_total", {"method": "RegisterModel", "code": "OK"}) == 1
            assert (value("mirage_directive_answers_total", {"outcome": "applied"}) or 0) >= 3
            await until(lambda: (value("mirage_session_reports_total") or 0) >= 1)

    asyncio.run(run())
