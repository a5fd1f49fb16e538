"""Spans of directives: one each, however often it is sent."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.tracing import Tracing
from mirage_core.cluster_model import (
    Acknowledgement,
    Authority,
    DirectDevice,
    Directive,
    DirectiveId,
    Outcome,
    StoreIncarnation,
)
from mirage_core.model import DeviceId

GPU = DeviceId("GPU-1")
SAID = Authority(StoreIncarnation("a"), 1, 1)
FREEZE = Directive(DirectiveId("op-1"), SAID, DirectDevice(freeze=True))
TRACED = replace(FREEZE, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def answer(outcome: Outcome) -> Acknowledgement:
    return Acknowledgement(FREEZE.operation, FREEZE.key, SAID, outcome)


def test_directive_sent_again_has_one_span_and_what_follows_is_its_child() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, "test")
    first, again = tracing.directive_sent(GPU, TRACED), tracing.directive_sent(GPU, TRACED)
    assert first == again
    tracing.directive_answered(GPU, TRACED, answer(Outcome.ACCEPTED))
    tracing.directive_answered(GPU, TRACED, answer(Outcome.APPLIED))
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == TRACED.traceparent[3:52]
    assert first.traceparent[36:52] == f"{span.context.span_id:016x}"
    assert replace(first, traceparent=TRACED.traceparent) == TRACED


def test_directive_without_a_trace_or_a_collector_is_sent_as_it_is() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, "test")
    assert tracing.directive_sent(GPU, FREEZE) == FREEZE
    tracing.close()
    assert not exporter.get_finished_spans()
    assert Tracing(None, "test").directive_sent(GPU, TRACED) == TRACED
