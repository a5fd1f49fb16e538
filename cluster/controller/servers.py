"""The two gRPC servers: operators' and agents'.

``grpc.health.v1`` answers for two services beyond the usual names: ``liveness`` (this process
works: do not restart it) and ``readiness`` (its answers are worth having: it sees the store, and
leads or knows who does).  A standby is ready: it answers reads and names the leader.
"""

from __future__ import annotations

import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cluster.controller.sessions import AgentSessions
from cluster.rpc.guard import Guard, forgiving
from cluster.security import TlsFiles, server_credentials
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import admin_pb2, admin_pb2_grpc, agent_pb2_grpc

LIVENESS, READINESS = "liveness", "readiness"
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_KEEPALIVE = (
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    # Messages are small and few: to probe the link's bandwidth would answer each with a ping.
    ("grpc.http2.bdp_probe", 0),
)


def _is_fault(record: logging.LogRecord) -> bool:
    """gRPC's own log calls it an error if a caller leaves while a stream is written to."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


class Health:
    """Liveness from the start, readiness as it is set."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def start(self) -> None:
        await self.servicer.set(LIVENESS, _SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        for service in ("", READINESS, ADMIN_SERVICE):
            await self.servicer.set(service, _SERVING if ready else _NOT_SERVING)


class _AgentGuard(grpc.aio.ServerInterceptor):
    """Lets sessions see bytes that are no message as None, for a proper status."""

    async def intercept_service(self, continuation, handler_call_details):  # type: ignore[no-untyped-def]
        handler = await continuation(handler_call_details)
        if handler is None or handler.stream_stream is None:
            return handler
        return grpc.stream_stream_rpc_method_handler(
            handler.stream_stream,
            forgiving(handler.request_deserializer),
            handler.response_serializer,
        )


def admin_server(
    service: admin_pb2_grpc.AdminServiceServicer,
    guard: Guard,
    health_of: Health,
    message_bytes: int,
) -> grpc.aio.Server:
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_fault)
    server = grpc.aio.server(interceptors=(guard,), options=_options(message_bytes))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_of.servicer, server)
    names = (ADMIN_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return server


def agent_server(sessions: AgentSessions, message_bytes: int) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=(_AgentGuard(),), options=_options(message_bytes))
    agent_pb2_grpc.add_AgentServiceServicer_to_server(sessions, server)
    return server


def listen(server: grpc.aio.Server, address: str, tls: TlsFiles | None, what: str) -> int:
    """The port; ConfigError if the address cannot be had."""
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        raise ConfigError(f"{what}: cannot listen on {address}: {error}") from None
    if port == 0:
        raise ConfigError(f"{what}: cannot listen on {address}: is it taken?")
    return int(port)


def _options(message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", message_bytes),
        # Answers hold pages of up to a thousand devices.
        ("grpc.max_send_message_length", 64 << 20),
        *_KEEPALIVE,
    ]
