"""What changed, in order, for those who watch; each subject once, at its latest change.

A change is numbered by a *count* of this process and carries the store's *revision* at its time.
Watches resume by revision, which means the same to every controller of one history.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

Subject = tuple[str, str]
"""(kind, name), as in ("model", "llama"), ("event", "17")."""

_EVENT = "event"


@dataclass(frozen=True, slots=True)
class _Touch:
    count: int
    revision: int


class Changes:
    def __init__(self, events_kept: int) -> None:
        self.revision = 0
        """of the store, as far as this process has seen"""
        self._floor: int | None = None
        self._count = 0
        self._touches: OrderedDict[Subject, _Touch] = OrderedDict()
        self._events: OrderedDict[Subject, _Touch] = OrderedDict()
        self._events_kept = events_kept
        self._waiters: set[asyncio.Event] = set()

    def restart(self, revision: int) -> None:
        """Nothing before ``revision`` is known: a watch that would resume there cannot."""
        self._floor = self.revision = revision
        self._touches.clear()
        self._events.clear()

    def see(self, revision: int) -> None:
        if self._floor is None:
            self._floor = revision
        self.revision = max(self.revision, revision)

    def touch(self, kind: str, name: str) -> None:
        self._count += 1
        kept = self._events if kind == _EVENT else self._touches
        subject = (kind, name)
        kept[subject] = _Touch(self._count, self.revision)
        kept.move_to_end(subject)
        if len(self._events) > self._events_kept:
            self._events.popitem(last=False)
        for waiter in self._waiters:
            waiter.set()

    @property
    def count(self) -> int:
        """Of the latest change: what is read now includes all changes up to it."""
        return self._count

    def resume(self, revision: int) -> int | None:
        """The count after which changes are to be told to one who saw ``revision``; None if some
        are not known.  What changed at that very revision is told again."""
        if self._floor is None or not self._floor <= revision <= self.revision:
            return None
        later = [t.count for t in self._touches.values() if t.revision >= revision]
        later += [t.count for t in self._events.values() if t.revision >= revision]
        return min(later, default=self._count + 1) - 1

    def since(self, count: int) -> list[Subject]:
        """Subjects that changed after ``count``, the earliest first."""
        found = [*_newer(self._touches, count), *_newer(self._events, count)]
        return [subject for _, subject in sorted(found)]

    async def wait(self, count: int, timeout_s: float) -> None:
        """Until something changed after ``count``, or for ``timeout_s``."""
        if self._count > count:
            return
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


def _newer(kept: OrderedDict[Subject, _Touch], count: int) -> Iterator[tuple[int, Subject]]:
    for subject in reversed(kept):
        touch = kept[subject]
        if touch.count <= count:
            return
        yield touch.count, subject
