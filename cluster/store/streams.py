"""The two streams, read in runs of consecutive numbers.

The id of an entry is its revision or sequence, and none is left out, so a reader that does not
find the next number knows that it was trimmed; nothing else needs to be kept to tell.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from cluster.store.calls import Caller
from cluster.store.port import Change, Position, Record, StoredEvent
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.errors import OutOfRangeError

_BATCH = 256
_BLOCK_S = 1.0
"""At most this long a watch is silent before it asks whether the history is still the same."""

_Entry = tuple[int, dict[bytes, bytes]]


class Streams:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # ---- changes

    async def changes_after(self, position: Position) -> list[Change]:
        """The next changes that are stored, at least one if there is one."""
        entries = await self._range(self._caller.keys.changes, position.revision, _BATCH)
        if not entries:
            await self._check_reached(position)
        return self._changes(position, entries)

    async def follow_changes(self, position: Position) -> AsyncGenerator[Change, None]:
        await self._check_reached(position)
        while True:
            entries = await self._wait(self._caller.keys.changes, position.revision)
            if not entries:
                await self._check_reached(position)
            for change in self._changes(position, entries):
                yield change
                position = change.position

    async def _check_reached(self, position: Position) -> None:
        """OutOfRangeError if the store's history is another, or ends before ``position``;
        HistoryLostError if that is news to this process."""
        _, incarnation, revision, _ = await self._caller.run("lineage", [], [])
        if incarnation.decode() != position.incarnation or int(revision) < position.revision:
            raise OutOfRangeError(
                f"revision {position.revision} of history {position.incarnation} is not one of"
                f" this store, which is at {int(revision)} of {incarnation.decode()}:"
                " start from a snapshot"
            )

    def _changes(self, position: Position, entries: list[_Entry]) -> list[Change]:
        changes = []
        for number, (revision, fields) in enumerate(entries, position.revision + 1):
            change = _change(revision, fields)
            if revision != number or change.position.incarnation != position.incarnation:
                raise OutOfRangeError(
                    f"changes after revision {position.revision} are kept no longer:"
                    " start from a snapshot"
                )
            changes.append(change)
        if changes and self._caller.seen.incarnation == position.incarnation:
            self._caller.see(changes[-1].position.revision)
        return changes

    # ---- events

    async def events_after(self, after: int, limit: int) -> list[StoredEvent]:
        entries = await self._range(self._caller.keys.events, after, limit)
        if not entries:
            await self._check_event_reached(after)
        return _events(after, entries)

    async def last_events(self, limit: int) -> list[StoredEvent]:
        key = self._caller.keys.events
        found: Any = await self._caller.guard(
            lambda: self._caller.client.xrevrange(key, count=limit), attempts=2
        )
        return [_event(each) for each in reversed(_entries(found))]

    async def follow_events(self, after: int) -> AsyncGenerator[StoredEvent, None]:
        await self._check_event_reached(after)
        while True:
            entries = await self._wait(self._caller.keys.events, after)
            if not entries:
                await self._check_event_reached(after)
            for event in _events(after, entries):
                yield event
                after = event.sequence

    async def _check_event_reached(self, after: int) -> None:
        await self._caller.run("lineage", [], [])
        last: Any = await self._caller.guard(
            lambda: self._caller.client.hget(self._caller.keys.meta, "event"), attempts=2
        )
        if after > int(last or 0):
            raise OutOfRangeError(
                f"event {after} is not one of this store, whose last is {int(last or 0)}:"
                " start from 0"
            )

    # ---- reading

    async def _range(self, key: str, after: int, limit: int) -> list[_Entry]:
        found: Any = await self._caller.guard(
            lambda: self._caller.client.xrange(key, min=f"{after + 1}-0", count=limit), attempts=2
        )
        return _entries(found)

    async def _wait(self, key: str, after: int) -> list[_Entry]:
        """Entries after ``after``, or none when none came for a while."""

        block_ms = int(min(_BLOCK_S, self._caller.settings.timeout_s / 2) * 1000)
        found: Any = await self._caller.guard_out_of_turn(
            lambda: self._caller.client.xread({key: f"{after}-0"}, count=_BATCH, block=block_ms),
            attempts=2,
        )
        return _entries(found[0][1]) if found else []


def _entries(found: list[tuple[bytes, dict[bytes, bytes]]]) -> list[_Entry]:
    return [(int(id.partition(b"-")[0]), fields) for id, fields in found]


def _change(revision: int, fields: dict[bytes, bytes]) -> Change:
    actor, unix_ms = fields[b"actor"].decode(), int(fields[b"unix_ms"])
    put, deleted = [], []
    for field, value in fields.items():
        if field.startswith((b"put", b"delete")):
            kind, name, payload = value.split(b"\n", 2)
            if field.startswith(b"put"):
                put.append(Record(kind.decode(), name.decode(), revision, payload, actor, unix_ms))
            else:
                deleted.append((kind.decode(), name.decode()))
    return Change(
        Position(StoreIncarnation(fields[b"incarnation"].decode()), revision),
        tuple(put),
        tuple(deleted),
        fields[b"request"].decode(),
        actor,
        unix_ms,
    )


def _events(after: int, entries: list[_Entry]) -> list[StoredEvent]:
    """``after`` 0 starts at the oldest that is kept."""
    events = [_event(each) for each in entries]
    first = events[0].sequence if events and after == 0 else after + 1
    if any(event.sequence != number for number, event in enumerate(events, first)):
        raise OutOfRangeError(f"events after {after} are kept no longer: start from 0")
    return events


def _event(entry: _Entry) -> StoredEvent:
    sequence, fields = entry
    return StoredEvent(sequence, fields[b"payload"], int(fields[b"unix_ms"]))
