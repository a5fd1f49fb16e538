"""Spans of a process, on their way to an OTLP collector.

They wait in memory and a thread sends them, so whoever ends a span never waits.  Slow to import,
and only wanted where there is a collector.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter


def otlp_exporter(endpoint: str) -> SpanExporter:
    """To a collector at HOST:PORT, in plain text."""
    return OTLPSpanExporter(endpoint=endpoint, insecure=True)


def span_provider(exporter: SpanExporter, service: str, instance: str) -> TracerProvider:
    """Tracers of ``service``; its ``shutdown`` sends the last spans."""
    resource = Resource.create({"service.name": service, "service.instance.id": instance})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
