"""OpenTelemetry spans from an admin call to the directives that follow from it.

The trace context travels as a W3C ``traceparent``: in the call's metadata, beside the wish in the
controller's memory, in the directive to the agent, whose own span is a child of the directive's.
A directive's span lasts from its first sending to its answer; those of a directive whose call
brought no trace are not made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from mirage_core.cluster_model import Acknowledgement, Directive, Outcome
from mirage_core.model import DeviceId
from mirage_core.telemetry.span_export import otlp_exporter, span_provider
from mirage_core.telemetry.traces import context_of, traceparent_of

_OPEN_SPANS = 10_000


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    return next((v for k, v in metadata if k == "traceparent" and isinstance(v, str)), "")


class Tracing:
    """Spans of this process; without an exporter none is recorded."""

    def __init__(self, exporter: SpanExporter | None, instance: str) -> None:
        self._provider: TracerProvider | None = None
        tracer: Tracer = trace.NoOpTracer()
        if exporter is not None:
            self._provider = span_provider(exporter, "mirage-controller", instance)
            tracer = self._provider.get_tracer("mirage.cluster")
        self.tracer = tracer
        self._open: OrderedDict[str, Span] = OrderedDict()

    @classmethod
    def to(cls, otlp_endpoint: str | None, instance: str) -> Tracing:
        """Spans go to an OTLP collector at HOST:PORT, in plain text; None: nowhere."""
        if otlp_endpoint is None:
            return cls(None, instance)
        return cls(otlp_exporter(otlp_endpoint), instance)

    def call_span(self, method: str, traceparent: str) -> Span:
        return self.tracer.start_span(method, context_of(traceparent), SpanKind.SERVER)

    def directive_sent(self, device: DeviceId, directive: Directive) -> Directive:
        """What is to be sent: what follows from it belongs to its span."""
        if self._provider is None or not directive.traceparent:
            return directive
        span = self._open.get(directive.operation) or self._open_span(device, directive)
        return replace(directive, traceparent=traceparent_of(span))

    def _open_span(self, device: DeviceId, directive: Directive) -> Span:
        span = self.tracer.start_span(
            f"directive {directive.key}",
            context_of(directive.traceparent),
            SpanKind.PRODUCER,
            attributes={
                "mirage.device": device,
                "mirage.operation": directive.operation,
                "mirage.revision": directive.authority.revision,
            },
        )
        self._open[directive.operation] = span
        if len(self._open) > _OPEN_SPANS:
            _, oldest = self._open.popitem(last=False)
            oldest.end()
        return span

    def directive_answered(
        self, device: DeviceId, directive: Directive, answer: Acknowledgement
    ) -> None:
        if answer.outcome is Outcome.ACCEPTED:
            return
        span = self._open.pop(directive.operation, None)
        if span is not None:
            span.set_attribute("mirage.outcome", answer.outcome.value)
            if answer.outcome is not Outcome.APPLIED:
                span.set_status(Status(StatusCode.ERROR, answer.reason))
            span.end()

    def close(self) -> None:
        for span in self._open.values():
            span.end()
        self._open.clear()
        if self._provider is not None:
            self._provider.shutdown()
