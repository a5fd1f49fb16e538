"""OpenTelemetry spans from an admin call to the directives that follow from it.

The trace context travels as a W3C ``traceparent``: in the call's metadata, beside the wish in the
controller's memory, in the directive to the agent.  A directive's span lasts from its sending to
its answer; those of a directive whose call brought no trace are not made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mirage_core.cluster_model import Acknowledgement, Directive, Outcome
from mirage_core.model import DeviceId

_OPEN_SPANS = 10_000
_propagator = TraceContextTextMapPropagator()


def context_of(traceparent: str) -> Context:
    return _propagator.extract({"traceparent": traceparent})


def traceparent_of(span: Span) -> str:
    """Empty for a span that nobody records."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def traceparent_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    return next((v for k, v in metadata if k == "traceparent" and isinstance(v, str)), "")


class Tracing:
    """Spans of this process; without an exporter none is recorded."""

    def __init__(self, exporter: SpanExporter | None, instance: str) -> None:
        self._provider: TracerProvider | None = None
        tracer: Tracer = trace.NoOpTracer()
        if exporter is not None:
            resource = Resource.create(
                {"service.name": "mirage-controller", "service.instance.id": instance}
            )
            self._provider = TracerProvider(resource=resource)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
            tracer = self._provider.get_tracer("mirage.cluster")
        self.tracer = tracer
        self._open: OrderedDict[str, Span] = OrderedDict()

    @classmethod
    def to(cls, otlp_endpoint: str | None, instance: str) -> Tracing:
        """Spans go to an OTLP collector at HOST:PORT, in plain text; None: nowhere."""
        if otlp_endpoint is None:
            return cls(None, instance)
        return cls(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=True), instance)

    def call_span(self, method: str, traceparent: str) -> Span:
        context = context_of(traceparent) if traceparent else Context()
        return self.tracer.start_span(method, context, SpanKind.SERVER)

    def directive_sent(self, device: DeviceId, directive: Directive) -> None:
        if self._provider is None or not directive.traceparent:
            return
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
