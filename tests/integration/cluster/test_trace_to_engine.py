"""One trace from an admin call to the moves of engines, as an OTLP collector receives it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from control_plane import ControlPlane, until, until_async
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

pytest.importorskip("vllm")

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from agent_node import Node

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STEPS = ("SetModelPinned", "directive model/b", "apply directive")
MOVES = ("shrink pool", "apply plan")


class Collector(otlp_grpc.TraceServiceServicer):
    """Keeps the spans of ``TRACE``, each with the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource_spans in request.resource_spans:
            named = {
                each.key: each.value.string_value for each in resource_spans.resource.attributes
            }
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    if span.trace_id.hex() == TRACE:
                        self.spans.append((named["service.name"], span))
        return otlp.ExportTraceServiceResponse()

    def of(self, *names: str) -> list[Any]:
        return [span for _, span in self.spans if span.name in names]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, str]]:
    """A collector and its address; processes started meanwhile send to it soon."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    otlp_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds
    yield collector, f"127.0.0.1:{port}"
    server.stop(None).wait()


def told(node: Node) -> list[str]:
    """What the agent's log says of the trace."""
    lines = [json.loads(line) for line in node.agent.log.read_text().splitlines()]
    return [line["message"] for line in lines if TRACE in line.get("traceparent", "")]


def test_one_trace_leads_from_the_admin_call_to_the_moves_of_engines(
    tmp_path: Path, collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``b`` has lent units to ``a``; pinning ``b`` makes ``a`` shrink, and then ``b`` whole."""
    received, address = collector
    node = Node(tmp_path / "node")
    node.agent.folder.mkdir()
    (tmp_path / "plane").mkdir()

    def lend() -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://{address}")
        a, b = (node.start_engine(name=f"{model}-1", model=model) for model in "ab")
        a.do("ask", granules=25)
        b.until(lambda s: s["cycled"], "b lends")
        a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
        a.do("load", active=False, live=0)

    async def run() -> None:
        async with ControlPlane(tmp_path / "plane", otlp_endpoint=address) as plane:
            options = ("--controller", plane.controller.addresses.agents, "--node", "node-1")
            traced = ("--otlp-endpoint", address, "--json-logs", "--reversion-hold-s", "1000")
            await asyncio.to_thread(node.agent.start, *options, *traced)
            await until(lambda: len(plane.controller.sessions) == 1)
            for model in "ab":
                await plane.register(model, spec=common.ModelSpec(weights_bytes=1 << 20))
                await until_async(lambda model=model: plane.applied(model))
            await asyncio.to_thread(lend)
            request = pb.SetModelPinnedRequest(name="b", pinned=True)
            traceparent = f"00-{TRACE}-{CALLER}-01"
            await plane.admin.SetModelPinned(request, metadata=(("traceparent", traceparent),))
            b = node.engines[1]
            await asyncio.to_thread(b.until, lambda s: not s["cycled"], "b has its units back")
            asked = sum("is asked for" in line for line in told(node))
            await until(lambda: len(received.of(*MOVES)) == asked, "each move's span")
            await until(lambda: all(map(received.of, STEPS)), "the spans before them")

    try:
        asyncio.run(run())
        node.check()
    finally:
        node.close()
    call, directive, applied = (received.of(name)[0] for name in STEPS)
    assert call.parent_span_id.hex() == CALLER
    assert directive.parent_span_id == call.span_id
    assert applied.parent_span_id == directive.span_id
    moves = received.of(*MOVES)
    assert {move.parent_span_id for move in moves} == {applied.span_id}
    movers = {
        (span.name, attribute.value.string_value)
        for span in moves
        for attribute in span.attributes
        if attribute.key == "mirage.engine"
    }
    assert movers == {("shrink pool", "a-1"), ("apply plan", "b-1")}
    services = [service for service, _ in received.spans]
    assert {"mirage-controller", "mirage-agent"} < set(services), "and the engines' own"
    assert any(line.startswith("directive model/b") for line in told(node))
