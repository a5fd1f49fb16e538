"""The metadata store on Redis (``port.Store``): one script for each thing that must be atomic.

What remains to be lost
    A single server with ``appendfsync always`` loses no accepted write, short of its disk.  With
    replicas, ``wait_replicas`` makes an accepted write survive the loss of the master as long as
    the replica that takes over is one that confirmed: Sentinel prefers the one that is furthest
    ahead, but a master cut off together with those that confirmed may be replaced by another.  A
    cut-off master also goes on taking writes until Sentinel demotes it; with ``wait_replicas``
    they are reported as NotReplicatedError, never as accepted.  History that was lost so is found
    out (HistoryLostError) and declared; it is never silently gone.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from cluster.store import limits
from cluster.store.calls import Caller
from cluster.store.durability import observe_durability
from cluster.store.port import (
    MAX_OPERATIONS,
    Change,
    Check,
    Delete,
    Durability,
    Fence,
    Lease,
    Lineage,
    Operation,
    Page,
    Position,
    Put,
    Record,
    Request,
    Snapshot,
    StoredEvent,
    Written,
)
from cluster.store.scripts import SCHEMA, Keys
from cluster.store.settings import StoreSettings, connect
from cluster.store.streams import Streams
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.errors import (
    OutOfRangeError,
    RequestReusedError,
    SchemaError,
    StaleRevisionError,
)

_RETIRED_KEPT = 64
_SNAPSHOT_PAGE = 500


class RedisStore:
    """``open`` it before any other call."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises ConfigError if a file that the settings name cannot be read."""
        self._settings = settings
        self._keys = Keys(settings.cluster)
        self._caller = Caller(connect(settings), self._keys, settings)
        self._streams = Streams(self._caller)

    # ---- history

    async def open(self) -> Lineage:
        fresh = Position(StoreIncarnation(uuid.uuid4().hex), 0)
        _, schema, incarnation, revision, retired = await self._caller.run(
            "open", [self._keys.scratch], [SCHEMA], seen=fresh
        )
        if schema != str(SCHEMA).encode():
            raise SchemaError(
                f"{self._settings.where} holds schema {schema.decode() or 'of no version'} for"
                f" cluster {self._settings.cluster!r}, and this MIRAGE speaks {SCHEMA}: run"
                " `mirage store migrate`, or the MIRAGE that wrote it"
            )
        return self._adopt(incarnation, revision, retired)

    async def close(self) -> None:
        await self._caller.client.aclose(close_connection_pool=True)

    async def lineage(self) -> Lineage:
        _, incarnation, revision, retired = await self._caller.run("lineage", [], [])
        return self._adopt(incarnation, revision, retired)

    async def declare_lost_history(
        self, seen: Position | None = None, *, event: bytes | None = None
    ) -> Lineage:
        events = () if event is None else (event,)
        if events:
            limits.check_events(events)
        _, incarnation, revision, retired = await self._caller.run(
            "declare",
            [self._keys.lease, self._keys.changes, self._keys.events],
            [
                uuid.uuid4().hex,
                SCHEMA,
                _RETIRED_KEPT,
                self._settings.events_kept,
                *events,
            ],
            seen=seen or self._caller.seen,
            replicate=True,
        )
        return self._adopt(incarnation, revision, retired)

    def _adopt(self, incarnation: bytes, revision: bytes, retired: bytes) -> Lineage:
        lineage = Lineage(
            StoreIncarnation(incarnation.decode()),
            int(revision),
            tuple(StoreIncarnation(each) for each in retired.decode().split()),
        )
        if lineage.incarnation == self._caller.seen.incarnation:
            self._caller.see(lineage.revision)
        else:
            self._caller.seen = lineage.position
        return lineage

    # ---- records

    async def read(self, kind: str, name: str) -> Record | None:
        limits.check_name(kind, name)
        _, stored = await self._caller.run("read", [self._keys.records(kind)], [name])
        return None if stored is None else _record(kind, name, stored)

    async def list(self, kind: str, *, after: str = "", limit: int = 100) -> Page:
        limits.check_kind(kind)
        _, revision, more, names, values = await self._caller.run(
            "page",
            [self._keys.records(kind), self._keys.index(kind)],
            [after, limits.check_limit(limit)],
        )
        self._caller.see(int(revision))
        records = tuple(
            _record(kind, name.decode(), value) for name, value in zip(names, values, strict=True)
        )
        return Page(records, int(revision), more == b"1")

    async def snapshot(self) -> Snapshot:
        while True:
            try:
                return await self._read_snapshot()
            except OutOfRangeError:
                continue  # more was written meanwhile than the stream keeps

    async def _read_snapshot(self) -> Snapshot:
        """Pages are read one by one; what changed meanwhile is taken from the stream of changes,
        so that the whole is as of one revision."""
        begin = await self.lineage()
        end = begin.revision
        records: dict[tuple[str, str], Record] = {}
        kinds: Any = await self._caller.guard(
            lambda: self._caller.client.smembers(self._keys.kinds), attempts=2
        )
        for kind in sorted(each.decode() for each in kinds):
            after, more = "", True
            while more:
                page = await self.list(kind, after=after, limit=_SNAPSHOT_PAGE)
                records.update(((kind, each.name), each) for each in page.records)
                more, end = page.more, max(end, page.revision)
                after = page.records[-1].name if page.records else ""
        position = begin.position
        while position.revision < end:
            for change in await self._streams.changes_after(position):
                if change.position.revision > end:
                    break
                for key in change.deleted:
                    records.pop(key, None)
                records.update(((each.kind, each.name), each) for each in change.put)
                position = change.position
        return Snapshot(position, tuple(records[key] for key in sorted(records)))

    async def commit(
        self,
        operations: Sequence[Operation],
        request: Request,
        *,
        fence: Fence | None = None,
        events: Sequence[bytes] = (),
    ) -> Written:
        limits.check_commit(operations, request, events)
        keys, args = _operation_arguments(self._keys, operations)
        reply = await self._caller.run(
            "commit",
            [
                self._keys.lease,
                self._keys.changes,
                self._keys.events,
                self._keys.request(request.id),
                self._keys.kinds,
                *keys,
            ],
            [
                _epoch(fence),
                request.fingerprint,
                request.id,
                request.actor,
                int(self._settings.answers_kept_s * 1000),
                self._settings.changes_kept,
                self._settings.events_kept,
                int(self._settings.wait_replicas > 0),
                len(operations),
                *args,
                *events,
            ],
            replicate=True,
        )
        if reply[0] == b"stale":
            raise StaleRevisionError(reply[1].decode(), reply[2].decode(), int(reply[3]))
        return self._written(reply, request)

    async def recall(self, request: Request) -> Written | None:
        limits.check_request(request)
        reply = await self._caller.run(
            "recall", [self._keys.request(request.id)], [request.fingerprint]
        )
        return None if reply[0] == b"none" else self._written(reply, request)

    def _written(self, reply: Sequence[Any], request: Request) -> Written:
        revision = int(reply[1])
        self._caller.see(revision)
        if reply[0] == b"reused":
            raise RequestReusedError(
                f"request {request.id!r} was committed as something else at revision {revision}:"
                " use a new id"
            )
        return Written(revision, replayed=reply[0] == b"replayed")

    # ---- watches and events

    async def watch(self, after: Position | None = None) -> AsyncGenerator[Snapshot | Change, None]:
        if after is None:
            snapshot = await self.snapshot()
            yield snapshot
            after = snapshot.position
        async for change in self._streams.follow_changes(after):
            yield change

    async def append_events(self, payloads: Sequence[bytes], *, fence: Fence | None = None) -> int:
        limits.check_events(payloads)
        _, sequence = await self._caller.run(
            "append_events",
            [self._keys.lease, self._keys.events],
            [_epoch(fence), self._settings.events_kept, *payloads],
            replicate=True,
            repeatable=False,
        )
        return int(sequence)

    async def events(self, *, after: int, limit: int = 100) -> Sequence[StoredEvent]:
        return await self._streams.events_after(after, limits.check_limit(limit))

    async def last_events(self, limit: int = 100) -> Sequence[StoredEvent]:
        return await self._streams.last_events(limits.check_limit(limit))

    async def follow_events(self, after: int) -> AsyncGenerator[StoredEvent, None]:
        async for event in self._streams.follow_events(after):
            yield event

    # ---- observations

    async def observe(
        self, kind: str, values: Mapping[str, bytes | None], *, fence: Fence | None = None
    ) -> None:
        limits.check_observations(kind, values)
        names = sorted(values)
        for start in range(0, len(names), MAX_OPERATIONS):
            batch = [(name, values[name]) for name in names[start : start + MAX_OPERATIONS]]
            await self._caller.run(
                "observe",
                [self._keys.lease, self._keys.observed(kind), self._keys.observed_index(kind)],
                [_epoch(fence), *_observation_arguments(batch)],
            )

    async def observations(
        self, kind: str, *, after: str = "", limit: int = 100
    ) -> Mapping[str, bytes]:
        limits.check_kind(kind)
        _, _, _, names, values = await self._caller.run(
            "page",
            [self._keys.observed(kind), self._keys.observed_index(kind)],
            [after, limits.check_limit(limit)],
        )
        return {name.decode(): value for name, value in zip(names, values, strict=True)}

    async def durability(self) -> Durability:
        return await observe_durability(self._caller.client, self._settings)

    # ---- leadership

    async def campaign(self, holder: str, address: str, *, lease_s: float) -> Lease:
        limits.check_candidate(holder, address, lease_s)
        reply = await self._caller.run(
            "campaign",
            [self._keys.lease, self._keys.changes],
            [holder, address, int(lease_s * 1000), self._settings.changes_kept],
            replicate=True,
        )
        lease = _lease(reply)
        self._caller.see(lease.epoch)
        return lease

    async def resign(self, holder: str) -> None:
        await self._caller.run("resign", [self._keys.lease], [holder])

    async def leader(self) -> Lease | None:
        reply = await self._caller.run("leader", [self._keys.lease], [])
        return None if reply[0] == b"none" else _lease(reply)


def _epoch(fence: Fence | None) -> str:
    return "" if fence is None else str(fence.epoch)


def _operation_arguments(
    names: Keys, operations: Iterable[Operation]
) -> tuple[list[str], list[str | bytes | int]]:
    """The keys, and the arguments, of the operations of a commit."""
    keys: list[str] = []
    args: list[str | bytes | int] = []
    for each in operations:
        expected = "" if each.expected_revision is None else each.expected_revision
        match each:
            case Put():
                args += ["put", each.kind, each.name, expected, each.payload]
            case Delete():
                args += ["delete", each.kind, each.name, expected, b""]
            case Check():
                args += ["check", each.kind, each.name, expected, b""]
        keys += [names.records(each.kind), names.index(each.kind)]
    return keys, args


def _observation_arguments(values: Iterable[tuple[str, bytes | None]]) -> list[str | bytes]:
    args: list[str | bytes] = []
    for name, value in values:
        args += ["forget", name, b""] if value is None else ["keep", name, value]
    return args


def _record(kind: str, name: str, stored: bytes) -> Record:
    head, _, rest = stored.partition(b"\n")
    revision, unix_ms, actor_bytes = map(int, head.split(b" "))
    return Record(kind, name, revision, rest[actor_bytes:], rest[:actor_bytes].decode(), unix_ms)


def _lease(reply: Sequence[bytes]) -> Lease:
    _, epoch, holder, address, remaining_ms = reply
    return Lease(int(epoch), holder.decode(), address.decode(), int(remaining_ms) / 1000)
