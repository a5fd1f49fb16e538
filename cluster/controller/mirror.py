"""The store's records as this process last saw them: by snapshot, then change by change.

The one way by which a controller learns of wishes, its own writes included.  So leader and
standbys see the same things in the same order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from cluster.records import DIRECTIVE, WISH_KINDS, decode_wish
from cluster.store.port import Change, Position, Record, RecordStore, Snapshot
from mirage_core.cluster_model import Revised
from mirage_core.errors import OutOfRangeError, ProtocolError, StoreError

_log = logging.getLogger("mirage.mirror")

_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """A wish as it now stands; None: it is gone.  ``request_id`` of the write that changed it."""

    kind: str
    name: str
    revised: Revised[Any] | None
    request_id: str = ""


@dataclass(slots=True)
class Mirror:
    """``follow`` keeps it up to date; ``on_wishes`` hears of wishes that changed at once, and
    ``on_revision`` of each new position."""

    store: RecordStore
    on_wishes: Callable[[list[Seen]], None] = lambda _: None
    on_revision: Callable[[Position], None] = lambda _: None
    position: Position | None = None
    wishes: dict[str, dict[str, Revised[Any]]] = field(
        default_factory=lambda: {kind: {} for kind in WISH_KINDS}
    )
    directives: dict[str, Record] = field(default_factory=dict)
    wishes_revision: int = 0
    """of the last change of any wish, as far as was seen"""
    _seen: list[Seen] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Until cancelled; a store that does not answer is asked again."""
        while True:
            try:
                async with aclosing(self.store.watch(self.position)) as items:
                    async for item in items:
                        if isinstance(item, Snapshot):
                            self._load(item)
                        else:
                            self._apply(item)
            except OutOfRangeError as error:
                _log.info("start from a snapshot: %s", error)
                self.position = None
            except StoreError as error:
                _log.warning("cannot follow the store: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def reached(self, position: Position) -> None:
        """Wait until the mirror shows ``position`` of its history, or a later one."""
        while (
            self.position is None
            or self.position.incarnation != position.incarnation
            or self.position.revision < position.revision
        ):
            self._moved.clear()
            await self._moved.wait()

    def _load(self, snapshot: Snapshot) -> None:
        present = {(each.kind, each.name) for each in snapshot.records}
        for kind, wishes in self.wishes.items():
            for name in [name for name in wishes if (kind, name) not in present]:
                self._drop(kind, name)
        self.directives = {}
        self.wishes_revision = 0
        for record in snapshot.records:
            self._put(record)
        self._move(snapshot.position)

    def _apply(self, change: Change) -> None:
        for record in change.put:
            self._put(record, change.request_id)
        for kind, name in change.deleted:
            self._drop(kind, name, change.request_id)
        self._move(change.position)

    def _put(self, record: Record, request_id: str = "") -> None:
        if record.kind == DIRECTIVE:
            self.directives[record.name] = record
            return
        if record.kind not in self.wishes:
            return
        known = self.wishes[record.kind].get(record.name)
        if known is not None and known.revision == record.revision:
            return
        try:
            revised = decode_wish(record)
        except ProtocolError as error:
            _log.error("%s/%s cannot be read: %s", record.kind, record.name, error)
            return
        self.wishes[record.kind][record.name] = revised
        self._seen.append(Seen(record.kind, record.name, revised, request_id))

    def _drop(self, kind: str, name: str, request_id: str = "") -> None:
        if kind == DIRECTIVE:
            self.directives.pop(name, None)
        elif self.wishes.get(kind, {}).pop(name, None) is not None:
            self._seen.append(Seen(kind, name, None, request_id))

    def _move(self, position: Position) -> None:
        seen, self._seen = self._seen, []
        if seen:
            for each in seen:
                changed = each.revised.revision if each.revised is not None else position.revision
                self.wishes_revision = max(self.wishes_revision, changed)
            self.on_wishes(seen)
        self.position = position
        self._moved.set()
        self.on_revision(position)

    def of(self, kind: str) -> Mapping[str, Revised[Any]]:
        return self.wishes[kind]
