"""An OTLP collector on a loopback port: what processes say of their spans, in the real protocol."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc


class Collector(otlp_grpc.TraceServiceServicer):
    """Keeps all spans in the order of their coming, each with the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> Any:
        for resource_spans in request.resource_spans:
            named = {
                each.key: each.value.string_value for each in resource_spans.resource.attributes
            }
            for scope_spans in resource_spans.scope_spans:
                self.spans += [(named["service.name"], span) for span in scope_spans.spans]
        return otlp.ExportTraceServiceResponse()

    def of(self, trace_id: str, *names: str) -> list[tuple[str, Any]]:
        """Spans of one trace (hexadecimal) under one of ``names``."""
        mine = [each for each in list(self.spans) if each[1].trace_id.hex() == trace_id]
        return [(service, span) for service, span in mine if span.name in names]

    def named(self, name: str) -> list[Any]:
        """Spans of this name, of any trace."""
        return [span for _, span in list(self.spans) if span.name == name]

    def close(self) -> None:
        self._server.stop(None).wait()
