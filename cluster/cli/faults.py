"""What a command tells its caller when it cannot do what was asked: one line, advice, an exit code.

Exit codes of every command:

0  done
1  the answer is no (a wait that ended without the wish being applied, a replay that differs)
2  usage, settings or files of the caller's own
3  no such model, device, node or directive
4  conflict: it exists already, its revision is another, its state forbids it
5  refused: no token or the wrong one, a role that may not, the certificate
6  no answer: nobody listens, no leader, the store is gone, the time is over
7  the request is invalid, or too much
8  a fault of the controller's own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from grpc_status import rpc_status

from mirage_core.errors import MirageError
from mirage_core.wire.v1 import common_pb2 as pb

NO, USAGE, NOT_FOUND, CONFLICT, REFUSED, UNREACHABLE, INVALID, INTERNAL = range(1, 9)

_OF_REASON: Mapping[int, int] = {
    pb.ERROR_REASON_INVALID: INVALID,
    pb.ERROR_REASON_NOT_FOUND: NOT_FOUND,
    pb.ERROR_REASON_ALREADY_EXISTS: CONFLICT,
    pb.ERROR_REASON_STALE_REVISION: CONFLICT,
    pb.ERROR_REASON_REQUEST_ID_REUSED: CONFLICT,
    pb.ERROR_REASON_NOT_LEADER: UNREACHABLE,
    pb.ERROR_REASON_STORE_UNAVAILABLE: UNREACHABLE,
    pb.ERROR_REASON_TRIMMED: INVALID,
    pb.ERROR_REASON_UNAUTHENTICATED: REFUSED,
    pb.ERROR_REASON_FORBIDDEN: REFUSED,
    pb.ERROR_REASON_RATE_LIMITED: INVALID,
    pb.ERROR_REASON_TOO_LARGE: INVALID,
    pb.ERROR_REASON_INCOMPATIBLE_VERSION: CONFLICT,
    pb.ERROR_REASON_PRECONDITION: CONFLICT,
    pb.ERROR_REASON_OVERLOADED: INVALID,
    pb.ERROR_REASON_INTERNAL: INTERNAL,
}
_OF_CODE: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.UNAVAILABLE: UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: UNREACHABLE,
    grpc.StatusCode.UNAUTHENTICATED: REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: REFUSED,
    grpc.StatusCode.INVALID_ARGUMENT: INVALID,
    grpc.StatusCode.RESOURCE_EXHAUSTED: INVALID,
    grpc.StatusCode.UNIMPLEMENTED: CONFLICT,
}


class CommandError(MirageError):
    """``exit_code`` is one of those above."""

    def __init__(self, message: str, exit_code: int = USAGE, advice: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Fault:
    """A call's status, and what the controller said of it (``detail`` None: it said nothing, so
    the status is gRPC's own)."""

    code: grpc.StatusCode
    message: str
    detail: pb.ErrorDetail | None

    @property
    def reason(self) -> int:
        return self.detail.reason if self.detail is not None else pb.ERROR_REASON_UNSPECIFIED

    @property
    def unreachable(self) -> bool:
        return self.detail is None and self.code is grpc.StatusCode.UNAVAILABLE

    def error(self, server: str) -> CommandError:
        """What the caller is told of a call to ``server``."""
        if self.detail is not None:
            exit_code = _OF_REASON.get(self.reason, INTERNAL)
            return CommandError(self.message, exit_code, self._advice(self.detail))
        exit_code = _OF_CODE.get(self.code, INTERNAL)
        if self.unreachable:
            return CommandError(
                f"no controller answers at {server} ({self.message})", exit_code, _REACHING
            )
        advice = ""
        if self.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            advice = "give it more time with --timeout, or look at the controller's log"
        elif self.code is grpc.StatusCode.UNIMPLEMENTED:
            advice = "the controller is of another version: use its own mirage"
        return CommandError(f"{self.code.name}: {self.message}", exit_code, advice)

    def _advice(self, detail: pb.ErrorDetail) -> str:
        if detail.reason == pb.ERROR_REASON_UNAUTHENTICATED:
            return "give the file that holds your token: --token-file FILE or MIRAGE_TOKEN_FILE"
        if detail.reason == pb.ERROR_REASON_FORBIDDEN:
            return "use a token with the role operate"
        if detail.reason == pb.ERROR_REASON_STALE_REVISION:
            return "look at it again (get), then give the revision that it has now"
        if detail.HasField("retry_after_s"):
            return f"try again in {detail.retry_after_s:.1f} s"
        return detail.advice


_REACHING = (
    "start one (mirage up, mirage controller), or name yours: --server HOST:PORT or MIRAGE_SERVER;"
    " with TLS also --ca FILE"
)


def fault_of(error: grpc.RpcError) -> Fault:
    status = rpc_status.from_call(error) if error.trailing_metadata() is not None else None
    for packed in status.details if status is not None else ():
        detail = pb.ErrorDetail()
        if packed.Unpack(detail):
            return Fault(error.code(), error.details() or "", detail)
    return Fault(error.code(), error.details() or "", None)
