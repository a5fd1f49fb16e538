"""What the controller needs of a metadata store.

A *record* is a payload under (kind, name); the store never looks inside.  ``commit`` changes
records: all of its operations or none, under one new *revision*.  Revisions are counted by one
counter for the whole store, without gaps, so they order everything: the latest revision of a
record is its own, a watch is a run of consecutive revisions, and a leader's *epoch* is the
revision of its election.

The store's history is named by an *incarnation*.  Whoever has seen revision r of it can prove that
history was lost when the store is later found empty, or behind r.  Every call carries what this
process has seen, so a store that went back answers HistoryLostError and does nothing until
``declare_lost_history`` retires the old incarnation.

*Observations* are last values kept for readers; they have no revision, no history, no watch.

Errors (``mirage_core.errors``): every method may raise StoreUnreachableError, StoreAuthError,
HistoryLostError and StoreRefusedError; the others are named where they occur.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mirage_core.cluster_model import StoreIncarnation

MAX_NAME_BYTES = 512
MAX_PAYLOAD_BYTES = 1 << 20
MAX_OPERATIONS = 1024
"""Of one commit; a script holds up the whole server while it runs."""

ABSENT = 0
"""As an expected revision: the record must not exist."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a history; revisions of different incarnations do not compare."""

    incarnation: StoreIncarnation
    revision: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """retired  incarnations whose history was lost, and in whose place this one stands"""

    incarnation: StoreIncarnation
    revision: int
    retired: tuple[StoreIncarnation, ...] = ()

    @property
    def position(self) -> Position:
        return Position(self.incarnation, self.revision)


# ---- records


@dataclass(frozen=True, slots=True)
class Record:
    """A record as stored; ``actor`` wrote it last, at ``unix_ms`` of the store's wall clock."""

    kind: str
    name: str
    revision: int
    payload: bytes
    actor: str
    unix_ms: int


@dataclass(frozen=True, slots=True)
class Put:
    """``expected_revision``: of the record now, ABSENT, or None for whatever it is."""

    kind: str
    name: str
    payload: bytes
    expected_revision: int | None


@dataclass(frozen=True, slots=True)
class Delete:
    kind: str
    name: str
    expected_revision: int | None


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing; the commit holds only if the record is at this revision (or ABSENT)."""

    kind: str
    name: str
    expected_revision: int


Operation: TypeAlias = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks, and the id under which the answer is kept for 24 h.

    A commit with an id that is kept does nothing and returns the first answer, unless its
    ``fingerprint`` (a hash of what the caller was asked for) is another: RequestReusedError.
    """

    id: str
    actor: str
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of leadership, shown with each of a leader's writes.

    The store refuses it once the lease has ended or another leader was elected.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """``replayed``: the request had been committed before, at this revision."""

    revision: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """``revision`` of the store when the page was read; ``more`` names follow the last one."""

    records: tuple[Record, ...]
    revision: int
    more: bool


# ---- watches


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All records as they were at ``position``."""

    position: Position
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One commit.  An election is a change without records.

    deleted  (kind, name) of each
    """

    position: Position
    put: tuple[Record, ...]
    deleted: tuple[tuple[str, str], ...]
    request_id: str
    actor: str
    unix_ms: int


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """``sequence`` rises by one with each event."""

    sequence: int
    payload: bytes
    unix_ms: int


# ---- leadership and condition


@dataclass(frozen=True, slots=True)
class Lease:
    """Who leads.  ``remaining_s`` of the lease by the store's clock when it answered.

    holder   one life of a candidate (never reused)
    address  where callers find the leader
    """

    epoch: int
    holder: str
    address: str
    remaining_s: float


@dataclass(frozen=True, slots=True)
class Durability:
    """``weaknesses``: each says how an accepted write may be lost and what setting ends that."""

    weaknesses: tuple[str, ...]

    @property
    def weak(self) -> bool:
        return bool(self.weaknesses)


class RecordStore(Protocol):
    """Records, their history, events and observations."""

    async def open(self) -> Lineage:
        """Check the schema, create an empty store's history, and adopt the history found.

        Raises SchemaError if the store was written by another version.
        """
        ...

    async def close(self) -> None: ...

    async def lineage(self) -> Lineage:
        """The history as it is now."""
        ...

    async def declare_lost_history(
        self, seen: Position | None = None, *, event: bytes | None = None
    ) -> Lineage:
        """State that the history of ``seen`` (an agent's, say; None: this process's own) is lost.

        If the store is indeed without it, ``seen.incarnation`` is retired: a store that is behind
        ``seen`` gets a new incarnation, an emptied one is created, and another incarnation merely
        records the retired one; ``event`` goes to the event stream with it.  Otherwise nothing
        changes.  Idempotent; adopts what it returns.
        """
        ...

    async def read(self, kind: str, name: str) -> Record | None: ...

    async def list(self, kind: str, *, after: str = "", limit: int = 100) -> Page:
        """Records with names after ``after``, in the order of their UTF-8 bytes."""
        ...

    async def snapshot(self) -> Snapshot:
        """All records at one revision; for the controller's start, not for each request."""
        ...

    async def commit(
        self,
        operations: Sequence[Operation],
        request: Request,
        *,
        fence: Fence | None = None,
        events: Sequence[bytes] = (),
    ) -> Written:
        """Perform all operations, and append ``events``, or change nothing.

        After StoreUnreachableError or NotReplicatedError it is unknown whether it was committed:
        call again with the same request.

        Raises StaleRevisionError if a record is not at its expected revision, FencedError,
        RequestReusedError, NotReplicatedError, and MisuseError for names, payloads or numbers of
        operations that no store takes.
        """
        ...

    async def recall(self, request: Request) -> Written | None:
        """The kept answer of a request, so that a retry need not be validated anew; None if there
        is none.  Raises RequestReusedError."""
        ...

    def watch(self, after: Position | None = None) -> AsyncGenerator[Snapshot | Change, None]:
        """First a Snapshot (only if ``after`` is None), then every Change after it, in order.

        Raises OutOfRangeError if changes after ``after`` are trimmed, or of another incarnation:
        watch again from None.  Any other error ends the watch, which goes on from the position
        last seen.  Close it (``contextlib.aclosing``): an open watch holds a connection.
        """
        ...

    async def append_events(self, payloads: Sequence[bytes], *, fence: Fence | None = None) -> int:
        """Append to the event stream, the oldest of which are trimmed; the last one's sequence.

        A caller that repeats it after StoreUnreachableError may append twice.
        """
        ...

    async def events(self, *, after: int, limit: int = 100) -> Sequence[StoredEvent]:
        """Events after sequence ``after``; 0 starts at the oldest kept.  OutOfRangeError if some
        after it were trimmed."""
        ...

    async def last_events(self, limit: int = 100) -> Sequence[StoredEvent]:
        """The newest events, oldest first."""
        ...

    def follow_events(self, after: int) -> AsyncGenerator[StoredEvent, None]:
        """Events after ``after`` and then as they come.  OutOfRangeError as ``events``."""
        ...

    async def observe(
        self, kind: str, values: Mapping[str, bytes | None], *, fence: Fence | None = None
    ) -> None:
        """Keep the last value of each name; None forgets it.  Coalesce: one call an interval."""
        ...

    async def observations(
        self, kind: str, *, after: str = "", limit: int = 100
    ) -> Mapping[str, bytes]:
        """Last values, by name, of names after ``after``; a full page may be followed by more."""
        ...

    async def durability(self) -> Durability:
        """How the server keeps accepted writes; what cannot be found out counts as weak."""
        ...


class LeaseStore(Protocol):
    """Leadership: one lease, whose epoch fences the holder's writes."""

    async def campaign(self, holder: str, address: str, *, lease_s: float) -> Lease:
        """Renew the holder's lease, or take it if nobody has one; who leads now.

        A lease that was taken anew has a new epoch.  Raises NotReplicatedError.
        """
        ...

    async def resign(self, holder: str) -> None:
        """End the holder's lease, if it has one."""
        ...

    async def leader(self) -> Lease | None: ...


class Store(RecordStore, LeaseStore, Protocol):
    """What a metadata store is: one contract suite holds for every one of them."""
