"""What no store takes, told before it is sent.  All raise MisuseError: callers validate first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cluster.store.port import (
    MAX_NAME_BYTES,
    MAX_OPERATIONS,
    MAX_PAYLOAD_BYTES,
    Operation,
    Put,
    Request,
)
from mirage_core.errors import MisuseError

MAX_PAGE = 1000
_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")


def check_kind(kind: str) -> None:
    if not _KIND.fullmatch(kind):
        raise MisuseError(f"{kind!r} is no kind: lower-case letters, digits and _ only")


def check_name(kind: str, name: str) -> None:
    check_kind(kind)
    _check_text("name", name)


def check_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise MisuseError(f"a page has 1 to {MAX_PAGE} entries, not {limit}")
    return limit


def check_request(request: Request) -> None:
    _check_text("request id", request.id)
    if len(request.actor.encode()) > MAX_NAME_BYTES:
        raise MisuseError("the actor's name is too long")


def check_commit(
    operations: Sequence[Operation], request: Request, events: Sequence[bytes]
) -> None:
    check_request(request)
    if not 1 <= len(operations) <= MAX_OPERATIONS:
        raise MisuseError(f"a commit has 1 to {MAX_OPERATIONS} operations, not {len(operations)}")
    for each in operations:
        check_name(each.kind, each.name)
        if isinstance(each, Put):
            _check_payload(each.payload)
    if len({(each.kind, each.name) for each in operations}) != len(operations):
        raise MisuseError("a commit names a record once")
    if events:
        check_events(events)


def check_events(payloads: Sequence[bytes]) -> None:
    if not 1 <= len(payloads) <= MAX_OPERATIONS:
        raise MisuseError(f"1 to {MAX_OPERATIONS} events at once, not {len(payloads)}")
    for payload in payloads:
        _check_payload(payload)


def check_observations(kind: str, values: Mapping[str, bytes | None]) -> None:
    check_kind(kind)
    for name, value in values.items():
        _check_text("name", name)
        if value is not None:
            _check_payload(value)


def check_candidate(holder: str, address: str, lease_s: float) -> None:
    for what, text in (("holder", holder), ("address", address)):
        _check_text(what, text)
        if any(map(str.isspace, text)):
            raise MisuseError(f"a candidate's {what} has no blanks: {text!r}")
    if lease_s < 0.1:
        raise MisuseError("a lease of less than 0.1 s cannot be renewed in time")


def _check_text(what: str, text: str) -> None:
    if not 1 <= len(text.encode()) <= MAX_NAME_BYTES or not text.isprintable():
        raise MisuseError(f"a {what} is 1 to {MAX_NAME_BYTES} bytes of printable text")


def _check_payload(payload: bytes) -> None:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MisuseError(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
