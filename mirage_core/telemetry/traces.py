"""Trace contexts as text: a W3C ``traceparent`` goes with what one process asks of another.

``00-<trace>-<span>-<flags>``; an empty text stands for no trace.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_propagator = TraceContextTextMapPropagator()


def context_of(traceparent: str) -> Context:
    """The parent of a span; without parent if ``traceparent`` is none."""
    return _propagator.extract({"traceparent": traceparent})


def traceparent_of(span: Span) -> str:
    """Of a span that nobody records: of its parent; empty if it has none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def trace_id_of(traceparent: str) -> str:
    """The trace in hexadecimal, as collectors show it."""
    return traceparent[3:35]
