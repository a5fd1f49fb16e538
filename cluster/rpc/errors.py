"""Errors as gRPC statuses, each with an ErrorDetail and, for bad fields, google.rpc.BadRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from mirage_core.errors import (
    FencedError,
    HistoryLostError,
    MirageError,
    NotReplicatedError,
    OutOfRangeError,
    RequestReusedError,
    StaleRevisionError,
    StoreAuthError,
    StoreRefusedError,
    StoreUnreachableError,
)
from mirage_core.wire.fields import FieldError
from mirage_core.wire.v1 import common_pb2 as pb

Code = grpc.StatusCode


@dataclass(frozen=True, slots=True)
class Violation:
    """``field``: path in the request, as in ``wish.placement.devices[2]``."""

    field: str
    description: str


class ApiError(Exception):
    """What a caller is told.  ``retryable``: the same request may succeed later."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: pb.ErrorReason,
        message: str,
        *,
        retryable: bool = False,
        fields: Sequence[Violation] = (),
        advice: str = "",
        leader_address: str = "",
        current_revision: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = pb.ErrorDetail(
            reason=reason,
            retryable=retryable,
            fields=[pb.FieldViolation(field=f.field, description=f.description) for f in fields],
            advice=advice,
            leader_address=leader_address,
            current_revision=current_revision,
            retry_after_s=retry_after_s,
        )

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The status in full, as google.rpc.Status under ``grpc-status-details-bin``."""
        details = [_packed(self.detail)]
        if self.detail.fields:
            details.append(
                _packed(
                    error_details_pb2.BadRequest(
                        field_violations=[
                            error_details_pb2.BadRequest.FieldViolation(
                                field=each.field, description=each.description
                            )
                            for each in self.detail.fields
                        ]
                    )
                )
            )
        if self.detail.HasField("retry_after_s"):
            info = error_details_pb2.RetryInfo()
            info.retry_delay.FromMilliseconds(int(self.detail.retry_after_s * 1000))
            details.append(_packed(info))
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=details)
        return tuple(rpc_status.to_status(status).trailing_metadata)


def _packed(message: object) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def invalid(*fields: Violation) -> ApiError:
    message = "; ".join(f"{each.field} {each.description}" for each in fields)
    return ApiError(Code.INVALID_ARGUMENT, pb.ERROR_REASON_INVALID, message, fields=fields)


def not_found(what: str, name: str, advice: str = "") -> ApiError:
    return ApiError(Code.NOT_FOUND, pb.ERROR_REASON_NOT_FOUND, f"no {what} {name!r}", advice=advice)


def not_leader(address: str) -> ApiError:
    where = f"ask the leader at {address}" if address else "no leader is known yet: try again"
    return ApiError(
        Code.UNAVAILABLE,
        pb.ERROR_REASON_NOT_LEADER,
        f"this controller does not lead; {where}",
        retryable=True,
        leader_address=address,
        advice=where,
    )


def internal() -> ApiError:
    return ApiError(
        Code.INTERNAL,
        pb.ERROR_REASON_INTERNAL,
        "a fault of the controller's own; its log says more",
    )


_STORE_ERRORS: Mapping[type[MirageError], tuple[grpc.StatusCode, pb.ErrorReason, bool, str]] = {
    StoreUnreachableError: (
        Code.UNAVAILABLE,
        pb.ERROR_REASON_STORE_UNAVAILABLE,
        True,
        "it may have been done: repeat with the same request_id",
    ),
    NotReplicatedError: (
        Code.UNAVAILABLE,
        pb.ERROR_REASON_STORE_UNAVAILABLE,
        True,
        "it may have been done: repeat with the same request_id",
    ),
    StoreRefusedError: (
        Code.UNAVAILABLE,
        pb.ERROR_REASON_STORE_UNAVAILABLE,
        True,
        "look at the store's memory and disk",
    ),
    StoreAuthError: (
        Code.UNAVAILABLE,
        pb.ERROR_REASON_STORE_UNAVAILABLE,
        False,
        "give the controller the store's user and password",
    ),
    HistoryLostError: (
        Code.UNAVAILABLE,
        pb.ERROR_REASON_STORE_UNAVAILABLE,
        True,
        "the controllers are about to declare a new history",
    ),
    OutOfRangeError: (
        Code.OUT_OF_RANGE,
        pb.ERROR_REASON_TRIMMED,
        False,
        "start anew, without a position",
    ),
}


def as_api_error(error: Exception, *, leader_address: str = "") -> ApiError:
    """What to tell the caller about ``error``; one that nobody foresaw is INTERNAL."""
    match error:
        case ApiError():
            return error
        case FieldError():
            return invalid(Violation(error.field, error.description))
        case StaleRevisionError():
            return ApiError(
                Code.ABORTED,
                pb.ERROR_REASON_STALE_REVISION,
                str(error),
                current_revision=error.actual_revision,
                advice="read it again and repeat the change",
            )
        case RequestReusedError():
            return ApiError(
                Code.INVALID_ARGUMENT,
                pb.ERROR_REASON_REQUEST_ID_REUSED,
                str(error),
                fields=(Violation("options.request_id", "stands for another request"),),
            )
        case FencedError():
            return not_leader(leader_address)
    for kind, (code, reason, retryable, advice) in _STORE_ERRORS.items():
        if isinstance(error, kind):
            return ApiError(code, reason, str(error), retryable=retryable, advice=advice)
    return internal()
