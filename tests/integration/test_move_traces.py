"""Moves that carry a trace, through vLLM's scheduler and a worker: a span and a log line each."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mirage_core.engines.vllm import traces
from mirage_core.model import RESIDENT, OperationId
from mirage_core.wire import messages as m
from mirage_core.wire.client import LinkLost
from tests.integration.storm import REPORT, StormScheduler
from tests.integration.test_overlapping_steps import LAYERS, StampingWorker, make_scheduler

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LOGGER = "vllm.mirage.moves"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Engine:
    """A scheduler and its worker; ``hear`` plays the agent, and steps pass until all is done."""

    def __init__(self) -> None:
        self.worker = StampingWorker(pages=14 * LAYERS)
        self.scheduler: StormScheduler = make_scheduler(self.worker, depth=1)
        self.memory: Any = self.scheduler.mirage
        self.memory.raging = False
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        welcome = SimpleNamespace(report_interval_s=1.0)
        self.memory._client = SimpleNamespace(inbox=self.inbox, welcome=welcome)

    def hear(self, *said: Any) -> None:
        for each in said:
            self.inbox.put(each)
        for _ in range(100):
            if not self.scheduler.has_requests():
                return
            output = self.scheduler.schedule()
            self.scheduler.update_from_output(output, self.worker.execute(output))
        raise AssertionError("the move does not come to an end")


@pytest.fixture
def spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", provider.get_tracer("test"))
    monkeypatch.setenv(REPORT, str(tmp_path / "storm.json"))
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, LOGGER)
    yield exporter
    logger.removeHandler(caplog.handler)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def seen(spans: InMemorySpanExporter) -> list[tuple[str, str | None]]:
    """Name and fault of each span; all must be children of the directive's."""

    def check(span: ReadableSpan) -> tuple[str, str | None]:
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == f"{TRACE}-{PARENT}"
        return span.name, span.status.description

    return [check(span) for span in spans.get_finished_spans()]


def test_moves_with_a_trace_are_spans_of_it_and_are_logged_with_its_id(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    granule_pages = engine.memory._geometry.granule_pages
    engine.memory.remapper._min_granules = 2
    engine.hear(m.Shrink(OperationId(1), granule_pages, 0.0))
    engine.hear(m.ApplyPlan(OperationId(2), RESIDENT))
    assert not spans.get_finished_spans(), "moves that follow from load have no trace"
    assert engine.memory.counts["Done"] == 2
    assert not logged(caplog)
    engine.hear(m.ApplyPlan(OperationId(3), RESIDENT, (), TRACEPARENT))
    engine.hear(m.Shrink(OperationId(4), granule_pages, 0.0, TRACEPARENT))
    minimum = "the pool is at its minimum"
    assert seen(spans) == [("apply plan", None), ("shrink pool", minimum)]
    assert logged(caplog) == [
        f"ApplyPlan of operation 3: done, trace {TRACE}",
        f"Shrink of operation 4: refused, {minimum}, trace {TRACE}",
    ]


def test_move_whose_agent_is_lost_ends_with_it(spans: InMemorySpanExporter) -> None:
    engine = Engine()
    engine.hear(m.ApplyPlan(OperationId(1), RESIDENT, (), TRACEPARENT), LinkLost("it was killed"))
    assert seen(spans) == [("apply plan", "it was killed")]
    assert engine.memory.counts["Done"] == 0
