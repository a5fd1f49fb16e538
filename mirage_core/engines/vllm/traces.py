"""Moves that an operator's directive led to: a span and a log line each, in the directive's trace.

vLLM sets OpenTelemetry up in the engine core's process if there is a collector (its option
``--otlp-traces-endpoint``, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT): a thread of its own sends the
spans, so no step waits.  Without a collector the spans are nothing, and the log line remains.
"""

from __future__ import annotations

import logging

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from mirage_core.model import EngineId
from mirage_core.telemetry.traces import context_of, trace_id_of
from mirage_core.wire.messages import ApplyPlan, Shrink

_log = logging.getLogger("vllm.mirage.moves")
_tracer = trace.get_tracer("mirage.engine")


class MoveTraces:
    """Spans from the reception of a move to its answer; a move without a trace leaves none."""

    def __init__(self, engine: EngineId) -> None:
        self._engine = engine
        self._open: dict[int, tuple[Shrink | ApplyPlan, Span]] = {}

    def received(self, move: Shrink | ApplyPlan) -> None:
        if not move.traceparent:
            return
        span = _tracer.start_span(
            "shrink pool" if isinstance(move, Shrink) else "apply plan",
            context_of(move.traceparent),
            SpanKind.CONSUMER,
            attributes={"mirage.engine": self._engine, "mirage.move": move.operation},
        )
        self._open[move.operation] = (move, span)

    def answered(self, operation_id: int, refusal: str = "") -> None:
        """The move is done, or refused for a reason."""
        move, span = self._open.pop(operation_id, (None, None))
        if move is None or span is None:
            return
        if refusal:
            span.set_status(Status(StatusCode.ERROR, refusal))
        span.end()
        _log.info(
            "%s of operation %d: %s, trace %s",
            type(move).__name__,
            operation_id,
            f"refused, {refusal}" if refusal else "done",
            trace_id_of(move.traceparent),
        )

    def abandoned(self, reason: str) -> None:
        """Nobody waits for answers any more."""
        for operation_id in list(self._open):
            self.answered(operation_id, reason)
