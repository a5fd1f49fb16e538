"""How a wish is changed: read it, edit it, compare and set it, with its audit event.

The event is in the same commit, so there is no change without its record of who made it.  A
request id repeated within a day is answered as the first time; a caller that names no expected
revision is retried on a conflict, one that names it is told.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from cluster.controller.mirror import Mirror
from cluster.controller.term import Term, WallClock
from cluster.records import encode_wish
from cluster.rpc.errors import ApiError, Code, Violation, invalid, not_leader
from cluster.rpc.guard import current_call
from cluster.store.port import (
    ABSENT,
    MAX_OPERATIONS,
    Check,
    Operation,
    Position,
    Put,
    RecordStore,
    Request,
    Written,
)
from mirage_core.cluster_model import Event, ModelState, ModelWish, Wish
from mirage_core.errors import StaleRevisionError
from mirage_core.wire import cluster_codec as codec
from mirage_core.wire.v1 import common_pb2 as pb

_audit = logging.getLogger("mirage.audit")

_CONFLICTS = 8
"""Retries of a write that named no revision, before its caller is told."""
_REQUEST_ID_CHARS = 128

W = TypeVar("W", bound=Wish)


@dataclass(frozen=True, slots=True)
class Change:
    """One wish before and after; ``before`` None: it is new.  ``revision`` of ``before``."""

    kind: str
    name: str
    before: Wish | None
    after: Wish
    revision: int

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def operation(self) -> Operation:
        if self.changes:
            return Put(self.kind, self.name, encode_wish(self.after), self.revision)
        return Check(self.kind, self.name, self.revision)

    def fields(self) -> list[str]:
        """Paths of the fields that differ."""
        before = _flat(self.before) if self.before is not None else {}
        after = _flat(self.after)
        return sorted(
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        )


Edit = Callable[[Wish | None], Wish]
"""The wish as it is to be, from what it is (None: there is none).  Raises ApiError."""


class Writer:
    def __init__(
        self,
        store: RecordStore,
        mirror: Mirror,
        term: Callable[[], Term | None],
        leader_address: Callable[[], str],
        wall: WallClock,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._term = term
        self._leader_address = leader_address
        self._wall = wall

    async def change(
        self, kind: str, name: str, request: Any, method: str, edit: Edit
    ) -> tuple[Change | None, int]:
        """Change one wish: the change (None: the request was answered before), and the revision
        at which it is accepted.

        Raises ApiError and StoreError; nothing is changed then, unless the outcome is unknown.
        """
        options, conflicts = request.options, 0
        if options.HasField("expected_revision"):
            expected = options.expected_revision
            edit = await self._expecting(kind, name, expected, edit)
        while True:
            try:
                changes, revision = await self._commit([(kind, name, edit)], request, method)
                return (changes[0] if changes else None), revision
            except StaleRevisionError:
                conflicts += 1
                if options.HasField("expected_revision") or conflicts == _CONFLICTS:
                    raise
                await self._catch_up(kind, name)

    async def apply(
        self, edits: Sequence[tuple[str, str, Edit]], request: Any, method: str
    ) -> tuple[list[Change], int]:
        """Change several wishes, all or none; the expected revision is of all wishes."""
        if len(edits) > MAX_OPERATIONS:
            raise invalid(Violation("models", f"more than {MAX_OPERATIONS} wishes at once"))
        options, latest = request.options, self._mirror.wishes_revision
        if options.HasField("expected_revision") and latest > options.expected_revision:
            raise StaleRevisionError("wishes", "all", latest)
        return await self._commit(edits, request, method)

    async def _commit(
        self, edits: Sequence[tuple[str, str, Edit]], request: Any, method: str
    ) -> tuple[list[Change], int]:
        term = self._leading()
        asked, chosen = self._request(request, method)
        replayed = await self._store.recall(asked) if chosen else None
        if replayed is not None:
            await self._shown(replayed.revision)
            return [], replayed.revision
        changes = [self._edited(kind, name, edit) for kind, name, edit in edits]
        if request.options.dry_run or not any(each.changes for each in changes):
            return changes, max(each.revision for each in changes)
        event = self._event(changes, method, asked)
        term.note_trace(asked.id, event.traceparent)
        written = await self._store.commit(
            [each.operation() for each in changes],
            asked,
            fence=term.fence,
            events=[codec.encode_event(event).SerializeToString()],
        )
        self._log(event, written)
        await self._shown(written.revision)
        return changes, written.revision

    def _edited(self, kind: str, name: str, edit: Edit) -> Change:
        known = self._mirror.of(kind).get(name)
        if known is None:
            return Change(kind, name, None, edit(None), ABSENT)
        return Change(kind, name, known.wish, edit(known.wish), known.revision)

    async def _expecting(self, kind: str, name: str, expected: int, edit: Edit) -> Edit:
        """``edit``, once the mirror shows what the caller saw; StaleRevisionError if the store
        has another revision."""
        if self._revision_of(kind, name) != expected:
            actual = await self._catch_up(kind, name)
            if actual != expected:
                raise StaleRevisionError(kind, name, actual)
        return edit

    async def _catch_up(self, kind: str, name: str) -> int:
        """Wait until the mirror shows a record as the store has it; its revision."""
        record = await self._store.read(kind, name)
        if record is None:
            await self._shown((await self._store.lineage()).revision)
            return ABSENT
        await self._shown(record.revision)
        return record.revision

    def _revision_of(self, kind: str, name: str) -> int:
        known = self._mirror.of(kind).get(name)
        return known.revision if known is not None else ABSENT

    def _leading(self) -> Term:
        term = self._term()
        if term is None or not term.leads():
            raise not_leader(self._leader_address())
        return term

    def _request(self, request: Any, method: str) -> tuple[Request, bool]:
        """The store's request, and whether the caller chose its id."""
        call, chosen = current_call(), request.options.request_id
        if len(chosen) > _REQUEST_ID_CHARS or not chosen.isprintable():
            raise invalid(
                Violation(
                    "options.request_id",
                    f"must be one printable line of at most {_REQUEST_ID_CHARS} characters",
                )
            )
        body = request.SerializeToString(deterministic=True)
        fingerprint = hashlib.sha256(method.encode() + b"\0" + body).digest()
        name = f"{call.principal.name}:{chosen or uuid.uuid4().hex}"
        return Request(name, call.principal.name, fingerprint), bool(chosen)

    async def _shown(self, revision: int) -> None:
        """Wait until the mirror has reached it; a slow mirror only delays the answer."""
        position = self._mirror.position
        if position is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._mirror.reached(Position(position.incarnation, revision))
            except TimeoutError:
                pass

    def _event(self, changes: Sequence[Change], method: str, asked: Request) -> Event:
        call = current_call()
        changed = [each for each in changes if each.changes]
        subject = f"{changed[0].kind}/{changed[0].name}" if len(changed) == 1 else "cluster"
        message = "; ".join(_describe(each) for each in changed[:8])
        if len(changed) > 8:
            message += f"; and {len(changed) - 8} more"
        attributes = {"request_id": asked.id, "peer": call.peer}
        return Event(
            kind=method,
            subject="cluster" if subject == "cluster/cluster" else subject,
            message=message[:2000],
            at_unix_s=self._wall.unix_s(),
            actor=call.principal.name,
            attributes=tuple(sorted(attributes.items())),
            traceparent=call.traceparent,
        )

    def _log(self, event: Event, written: Written) -> None:
        _audit.info(
            "%s %s by %s: %s",
            event.kind,
            event.subject,
            event.actor,
            event.message,
            extra={
                "ids": {
                    "actor": event.actor,
                    "revision": written.revision,
                    "traceparent": event.traceparent,
                    **dict(event.attributes),
                }
            },
        )


def _describe(change: Change) -> str:
    before = _flat(change.before) if change.before is not None else {}
    after = _flat(change.after)
    parts = [
        f"{path}: {json.dumps(before.get(path))} to {json.dumps(after.get(path))}"
        for path in change.fields()
    ]
    return f"{change.kind}/{change.name}: {', '.join(parts)}"


def _flat(wish: Wish) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                walk(f"{path}.{name}" if path else name, item)
        else:
            flat[path] = getattr(value, "value", value)

    walk("", asdict(wish))
    return flat


def is_gone(wish: Wish | None) -> bool:
    """Whether a model is not registered, or is on its way out."""
    return wish is None or (isinstance(wish, ModelWish) and wish.state is ModelState.ABSENT)


def precondition(message: str, advice: str) -> ApiError:
    return ApiError(Code.FAILED_PRECONDITION, pb.ERROR_REASON_PRECONDITION, message, advice=advice)
