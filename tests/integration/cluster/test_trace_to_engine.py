"""One trace from an admin call to what follows from it, as an OTLP collector receives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, until, until_async
from otlp_collector import Collector

from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from agent_node import Node, wait_until

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STEPS = ("SetModelPinned", "directive model/b", "apply directive")
CONTROLLER, AGENT = SERVICES = ("mirage-controller", "mirage-agent")
MOVES = ("shrink pool", "apply plan")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Processes started meanwhile send what they have soon."""
    collector = Collector()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds
    yield collector
    collector.close()


def told(node: Node) -> list[str]:
    """What the agent's log says of the trace."""
    lines = [json.loads(line) for line in node.agent.log.read_text().splitlines()]
    return [line["message"] for line in lines if TRACE in line.get("traceparent", "")]


def test_one_trace_leads_from_the_admin_call_to_the_moves_of_engines(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``b`` has lent units to ``a``; pinning ``b`` makes ``a`` shrink, and then ``b`` whole."""
    pytest.importorskip("vllm")
    node = Node(tmp_path / "node")
    node.agent.folder.mkdir()
    (tmp_path / "plane").mkdir()

    def lend() -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://{collector.address}")
        a, b = (node.start_engine(name=f"{model}-1", model=model) for model in "ab")
        a.do("ask", granules=25)
        b.until(lambda s: s["cycled"], "b lends")
        a.until(lambda s: s["pool_granules"] == 26, "a has b's pages")
        a.do("load", active=False, live=0)

    async def run() -> None:
        async with ControlPlane(tmp_path / "plane", otlp_endpoint=collector.address) as plane:
            options = ("--controller", plane.controller.addresses.agents, "--node", "node-1")
            traced = (
                "--otlp-endpoint",
                collector.address,
                "--json-logs",
                "--reversion-hold-s",
                "1000",
            )
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
            await until(lambda: len(collector.of(TRACE, *MOVES)) == asked, "each move's span")
            await until(
                lambda: all(collector.of(TRACE, each) for each in STEPS), "the spans before them"
            )

    try:
        asyncio.run(run())
        node.check()
    finally:
        node.close()
    call, directive, applied = (collector.of(TRACE, name)[0] for name in STEPS)
    assert [call[0], directive[0], applied[0]] == [CONTROLLER, CONTROLLER, AGENT]
    assert call[1].parent_span_id.hex() == CALLER
    assert directive[1].parent_span_id == call[1].span_id
    assert applied[1].parent_span_id == directive[1].span_id
    moves = [span for service, span in collector.of(TRACE, *MOVES) if service not in SERVICES]
    assert {move.parent_span_id for move in moves} == {applied[1].span_id}
    movers = {
        (span.name, attribute.value.string_value)
        for span in moves
        for attribute in span.attributes
        if attribute.key == "mirage.engine"
    }
    assert movers == {("shrink pool", "a-1"), ("apply plan", "b-1")}
    assert any(line.startswith("directive model/b") for line in told(node))


def test_spans_of_all_that_mirage_up_starts_meet_in_one_collector(
    tmp_path: Path, collector: Collector
) -> None:
    environment = {**os.environ, "MIRAGE_CONFIG": str(tmp_path / "client.yaml")}
    mirage = str(Path(sys.executable).with_name("mirage"))
    options = ["--state-dir", str(tmp_path / "state"), "--device-bytes", "8MiB"]
    options += ["--admin-port", "0", "--agent-port", "0", "--otlp-endpoint", collector.address]
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [mirage, "up", *options], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        wait_until(lambda: "Ctrl-C ends all" in (tmp_path / "log").read_text(), "it is up")
        subprocess.run([mirage, "freeze", "--wait", "30"], env=environment, check=True)
    finally:
        up.send_signal(signal.SIGINT)
        code = up.wait(60)
    assert code == 0, (tmp_path / "log").read_text()
    (call,) = collector.named("Freeze")
    trace = call.trace_id.hex()
    ((sender, directive),) = collector.of(trace, "directive device")
    ((obeyer, applied),) = collector.of(trace, "apply directive")
    assert (sender, obeyer) == (CONTROLLER, AGENT)
    assert directive.parent_span_id == call.span_id
    assert applied.parent_span_id == directive.span_id
