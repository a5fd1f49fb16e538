"""The edge of the operators' services: every call passes here, once.

It finds out who calls, whether they may, and whether they ask too much; gives the call a deadline
and a span; and makes a proper status of whatever goes wrong.  A request that is no message at all
is INVALID_ARGUMENT, not the UNKNOWN that gRPC makes of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.trace import Span, StatusCode

from cluster.files import Watched
from cluster.metrics import ControllerMetrics
from cluster.rpc.errors import ApiError, Code, Violation, as_api_error, invalid
from cluster.rpc.limits import RateLimit
from cluster.security import Principal, Role, Tokens, bearer_token, certificate_names
from cluster.tracing import Tracing, traceparent_in
from mirage_core.ports import Clock
from mirage_core.telemetry.traces import traceparent_of
from mirage_core.wire.v1 import common_pb2 as pb

_log = logging.getLogger("mirage.api")

_OPEN_SERVICES = ("grpc.health.v1.Health",)
"""Answered to anybody: a load balancer has no token."""
_VIEWS = ("List", "Get", "Explain", "Watch", "ServerReflection")


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls what; ``traceparent`` of the call's span."""

    principal: Principal
    method: str
    peer: str
    traceparent: str


_call: ContextVar[Call] = ContextVar("call")


def current_call() -> Call:
    """The call that this task serves."""
    return _call.get()


class Guard(grpc.aio.ServerInterceptor):
    def __init__(
        self,
        *,
        tokens: Watched[Tokens] | None,
        rate: RateLimit,
        call_s: float,
        clock: Clock,
        metrics: ControllerMetrics,
        tracing: Tracing,
        leader_address: Callable[[], str],
    ) -> None:
        """``tokens`` None: whom the transport lets in may operate."""
        self._tokens = tokens
        self._rate = rate
        self._call_s = call_s
        self._clock = clock
        self._metrics = metrics
        self._tracing = tracing
        self._leader_address = leader_address

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service in _OPEN_SERVICES:
            return handler
        needs = Role.VIEW if method.startswith(_VIEWS) else Role.OPERATE
        metadata = handler_call_details.invocation_metadata or ()
        decode = forgiving(handler.request_deserializer)
        encode = handler.response_serializer
        if handler.unary_unary is not None:
            unary = self._guard_unary(handler.unary_unary, method, needs, metadata)
            return grpc.unary_unary_rpc_method_handler(unary, decode, encode)
        if handler.unary_stream is not None:
            stream = self._guard_stream(handler.unary_stream, method, needs, metadata)
            return grpc.unary_stream_rpc_method_handler(stream, decode, encode)
        stream = self._guard_stream(handler.stream_stream, method, needs, metadata)
        return grpc.stream_stream_rpc_method_handler(stream, decode, encode)

    def _guard_unary(
        self, behaviour: Callable[..., Awaitable[Any]], method: str, needs: Role, metadata: Any
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(request: Any, context: Any) -> Any:
            began_s = self._clock.monotonic_s()
            span = self._tracing.call_span(method, traceparent_in(metadata))
            try:
                self._enter(method, needs, metadata, context, span)
                _check_message(request)
                async with asyncio.timeout(self._patience_s(context)):
                    response = await behaviour(request, context)
            except Exception as error:
                await self._fail(method, error, context, span)
                raise AssertionError("abort raises") from None
            finally:
                span.end()
                self._metrics.call_s.labels(method).observe(self._clock.monotonic_s() - began_s)
            self._metrics.calls.labels(method, "OK").inc()
            return response

        return guarded

    def _guard_stream(
        self, behaviour: Callable[..., AsyncIterator[Any]], method: str, needs: Role, metadata: Any
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            span = self._tracing.call_span(method, traceparent_in(metadata))
            try:
                self._enter(method, needs, metadata, context, span)
                _check_message(request)
                async for response in behaviour(request, context):
                    yield response
            except Exception as error:
                await self._fail(method, error, context, span)
            finally:
                span.end()
            self._metrics.calls.labels(method, "OK").inc()

        return guarded

    def _patience_s(self, context: Any) -> float:
        """Until the caller's deadline, or ours if it named none."""
        left_s = context.time_remaining()
        return self._call_s if left_s is None else min(float(left_s), self._call_s)

    def _enter(self, method: str, needs: Role, metadata: Any, context: Any, span: Span) -> None:
        principal = self._authenticate(metadata, context)
        if principal.role < needs:
            raise ApiError(
                Code.PERMISSION_DENIED,
                pb.ERROR_REASON_FORBIDDEN,
                f"{principal.name} may {principal.role.name.lower()},"
                f" and {method} needs the role {needs.name.lower()}",
            )
        wait_s = self._rate.wait_s(principal.name, self._clock.monotonic_s())
        if wait_s > 0:
            raise ApiError(
                Code.RESOURCE_EXHAUSTED,
                pb.ERROR_REASON_RATE_LIMITED,
                f"{principal.name} calls too often",
                retryable=True,
                retry_after_s=wait_s,
            )
        span.set_attribute("mirage.principal", principal.name)
        _call.set(Call(principal, method, context.peer() or "", traceparent_of(span)))

    def _authenticate(self, metadata: Any, context: Any) -> Principal:
        if self._tokens is None:
            names = sorted(certificate_names(context.auth_context()))
            return Principal(names[0] if names else "local", Role.OPERATE)
        self._tokens.refresh()
        token = bearer_token(metadata)
        principal = self._tokens.value.principal_of(token) if token is not None else None
        if principal is None:
            what = "the token is not known" if token else "a bearer token is needed"
            raise ApiError(
                Code.UNAUTHENTICATED,
                pb.ERROR_REASON_UNAUTHENTICATED,
                what,
                advice="send metadata 'authorization: Bearer TOKEN' with a token of the"
                " controller's token file",
            )
        return principal

    async def _fail(self, method: str, error: Exception, context: Any, span: Span) -> None:
        """Ends the call with the status of ``error``; always raises."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, TimeoutError):
            fault = ApiError(
                Code.DEADLINE_EXCEEDED,
                pb.ERROR_REASON_STORE_UNAVAILABLE,
                "not answered in time; a write may have been done: repeat it with the same"
                " request_id",
                retryable=True,
            )
        else:
            fault = as_api_error(error, leader_address=self._leader_address())
        if fault.code is Code.INTERNAL:
            _log.error("%s failed", method, exc_info=error)
        span.set_status(StatusCode.ERROR, fault.message)
        self._metrics.calls.labels(method, fault.code.name).inc()
        await context.abort(fault.code, fault.message, fault.trailing_metadata())


def forgiving(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """A deserializer that gives None for bytes that are no message."""
    if decode is None:
        return None

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return None

    return decoded


def _check_message(request: Any) -> None:
    if request is None:
        raise invalid(Violation("request", "is not a message of this method"))
