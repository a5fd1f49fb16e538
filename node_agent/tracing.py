"""Spans of this agent, to an OTLP collector.

A directive brings the trace of the admin call behind it (``uplink_keeper``); without a collector
its spans cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def send_spans(otlp_endpoint: str, instance: str) -> Callable[[], None]:
    """Let spans go to the collector at HOST:PORT, in plain text; what ends it sends the last."""
    resource = Resource.create({"service.name": "mirage-agent", "service.instance.id": instance})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=True))
    )
    trace.set_tracer_provider(provider)
    return provider.shutdown
