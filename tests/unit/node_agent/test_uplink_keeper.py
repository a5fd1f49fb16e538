from __future__ import annotations

import asyncio
import errno
import json
import logging
import random
from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest

from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    Authority,
    DirectDevice,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveSnapshot,
    LeaderWelcome,
    NodeName,
    Outcome,
    StoreIncarnation,
)
from mirage_core.model import DeviceGeometry, DeviceId
from mirage_core.telemetry.logs import JsonFormatter
from mirage_core.telemetry.traces import traceparent_of
from mirage_core.wire.agent_codec import encode_directive_snapshot
from mirage_core.wire.cluster_codec import encode_directive
from node_agent import uplink_keeper
from node_agent.directives import NOTHING_HELD, Held
from node_agent.directives_file import DirectivesInMemory
from node_agent.metrics import Metrics
from node_agent.uplink import Uplink
from node_agent.uplink_keeper import Keeper
from node_agent.uplink_reports import DeviceReport
from node_agent.uplink_settings import UplinkSettings

SAID = Authority(StoreIncarnation("a"), 1, 1)
FREEZE = Directive(DirectiveId("op-1"), SAID, DirectDevice(freeze=True))
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACED = replace(FREEZE, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")


class Clock:
    def monotonic_s(self) -> float:
        return 0.0


class Device:
    """Notes in which order things happen, and under which trace."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.traceparents: list[str] = []

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        self.story.append(f"apply {len(bodies)}")
        self.traceparents.append(traceparent_of(trace.get_current_span()))

    def report(self) -> DeviceReport:
        return DeviceReport(0, 0, ())


class Store(DirectivesInMemory):
    def __init__(self, story: list[str]) -> None:
        super().__init__()
        self.story = story
        self.full = False

    def save(self, held: Held) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.story.append(f"save {len(held.directives)}")
        super().save(held)


def keeper_of(story: list[str], device: Device | None = None) -> tuple[Keeper, Store]:
    store = Store(story)
    keeper = Keeper(device or Device(story), store, page_bytes=1)
    assert keeper.welcome(LeaderWelcome(SAID, "", 1.0, 1.0)) is None
    return keeper, store


def test_a_directive_is_on_disk_before_it_is_applied_and_applied_before_it_is_answered():
    story: list[str] = []
    keeper, _ = keeper_of(story)
    answers = asyncio.run(keeper.obey(encode_directive(FREEZE)))
    assert story == ["save 0", "save 1", "apply 1"]
    assert [each.outcome for each in answers] == [Outcome.APPLIED]
    again = asyncio.run(keeper.obey(encode_directive(FREEZE)))
    assert again == answers
    assert story == ["save 0", "save 1", "apply 1"], "what is held is neither kept nor applied anew"
    assert keeper.outcomes[Outcome.APPLIED] == 2


def test_a_disk_that_is_full_lets_nothing_be_applied():
    story: list[str] = []
    keeper, store = keeper_of(story)
    store.full = True
    with pytest.raises(OSError, match="no space"):
        asyncio.run(keeper.obey(encode_directive(FREEZE)))
    assert story == ["save 0"]
    assert keeper.held.bodies() == NOTHING_HELD.bodies()


def test_the_span_of_a_directive_belongs_to_the_trace_of_its_admin_call(monkeypatch, caplog):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(uplink_keeper, "_tracer", provider.get_tracer("test"))
    caplog.set_level(logging.INFO, "mirage.uplink")
    device = Device([])
    keeper, _ = keeper_of([], device)
    asyncio.run(keeper.obey(encode_directive(TRACED)))
    span = exporter.get_finished_spans()[0]
    assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == TRACED.traceparent[3:52]
    assert device.traceparents == [f"00-{TRACE}-{span.context.span_id:016x}-01"]
    assert span.attributes["mirage.outcome"] == "applied"
    line = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert (line["operation_id"], TRACE in line["traceparent"]) == ("op-1", True)


@pytest.mark.parametrize(
    ("sent", "applied_under"),
    [(TRACED.traceparent, TRACED.traceparent), ("", ""), ("00-hello", "")],
    ids=["a trace", "none", "what is no trace"],
)
def test_without_a_collector_the_trace_goes_on_as_it_came(sent, applied_under):
    device = Device([])
    keeper, _ = keeper_of([], device)
    answers = asyncio.run(keeper.obey(encode_directive(replace(FREEZE, traceparent=sent))))
    assert [each.outcome for each in answers] == [Outcome.APPLIED]
    assert device.traceparents == [applied_under]


def test_directives_of_a_snapshot_are_logged_with_their_traces_and_applied_under_none(caplog):
    caplog.set_level(logging.INFO, "mirage.uplink")
    device = Device([])
    keeper, _ = keeper_of([], device)
    asyncio.run(keeper.obey_all(encode_directive_snapshot(DirectiveSnapshot(SAID, (TRACED,)))))
    line = json.loads(JsonFormatter().format(caplog.records[-1]))
    assert (line["operation_id"], line["traceparent"]) == ("op-1", TRACED.traceparent)
    assert device.traceparents == [""]


def test_metrics_tell_of_the_uplink_and_of_answers():
    story: list[str] = []
    hello = AgentHello(NodeName("n"), DeviceId("d"), AgentIncarnation("i"), 4096, 10, "n")
    settings = UplinkSettings(controllers=("127.0.0.1:1",), node="n")
    uplink = Uplink(hello, settings, Device(story), Store(story), Clock(), random.Random(0))
    uplink.keeper.welcome(LeaderWelcome(SAID, "", 1.0, 1.0))
    asyncio.run(uplink.keeper.obey(encode_directive(FREEZE)))
    metrics = Metrics(DeviceGeometry(DeviceId("d"), 4096, 10))
    metrics.watch_uplink(uplink)
    text = generate_latest(metrics.registry).decode()
    assert 'mirage_directives_total{outcome="applied"} 1.0' in text
    assert "mirage_uplink_connected 0.0" in text
