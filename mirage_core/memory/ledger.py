"""The agent's page ledger: each page of the device is free, held by an engine, or in flight to one.

Charge, try, refund: ``take`` charges pages to an engine under an operation id before the engine
hears of them; ``confirm`` follows when it has them, ``refund`` when it could not.  Every method
either does all of what it says or raises and changes nothing.  What an engine does with its pages
is its own table's business (``table``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_core.errors import MisuseError, OutOfPagesError, OwnershipError
from mirage_core.memory.runs import PageRuns
from mirage_core.model import EngineId, OperationId, PageId


@dataclass(frozen=True, slots=True)
class Holding:
    """Whose a page is; in flight to the engine if an operation is named, else held by it."""

    engine: EngineId
    operation: OperationId | None = None


class Ledger:
    """Owners of all pages of one device; all are free at first."""

    def __init__(self, pages: int) -> None:
        if pages < 1:
            raise MisuseError(f"a ledger needs one page or more, got {pages}")
        self._owners: list[Holding | None] = [None] * pages
        """by page; None is the free list"""
        self._free = PageRuns([PageId(page) for page in range(pages)])
        self._held: dict[EngineId, set[PageId]] = {}
        self._in_flight: dict[OperationId, tuple[EngineId, tuple[PageId, ...]]] = {}

    @property
    def pages(self) -> int:
        return len(self._owners)

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def engines(self) -> frozenset[EngineId]:
        """Engines that hold pages or have some in flight to them."""
        return frozenset(self._held).union(engine for engine, _ in self._in_flight.values())

    def held_pages(self, engine: EngineId) -> int:
        return len(self._held.get(engine, ()))

    def in_flight_pages(self, engine: EngineId) -> int:
        return sum(len(pages) for to, pages in self._in_flight.values() if to == engine)

    def owner(self, page: PageId) -> Holding | None:
        """Who owns the page; None if it is free."""
        if not 0 <= page < len(self._owners):
            raise OwnershipError(f"page {page} of a device of {self.pages}")
        return self._owners[page]

    def take(self, engine: EngineId, count: int, operation: OperationId) -> tuple[PageId, ...]:
        """Put ``count`` free pages in flight to ``engine``, in long runs where there are some.

        Raises OutOfPagesError if fewer are free, MisuseError if the operation is under way.
        """
        if count < 1:
            raise MisuseError(f"operation {operation} takes {count} pages")
        if operation in self._in_flight:
            raise MisuseError(f"operation {operation} is under way")
        if count > self.free_pages:
            raise OutOfPagesError(f"{count} pages asked for, {self.free_pages} are free")
        pages = self._free.choose(count)
        self._free.remove(pages)
        self._set(pages, Holding(engine, operation))
        self._in_flight[operation] = (engine, pages)
        return pages

    def confirm(self, operation: OperationId) -> tuple[PageId, ...]:
        """The engine has the pages of ``operation``: it holds them from now on."""
        engine, pages = self._end(operation)
        self._set(pages, Holding(engine))
        self._held.setdefault(engine, set()).update(pages)
        return pages

    def refund(self, operation: OperationId) -> tuple[PageId, ...]:
        """The engine did not get the pages of ``operation``: they are free again."""
        _, pages = self._end(operation)
        self._release(pages)
        return pages

    def give_back(self, engine: EngineId, pages: Sequence[PageId]) -> None:
        """The engine has let go of pages that it held: they are free."""
        self._require_pages(pages)
        owners, holding = self._owners, Holding(engine)
        for page in pages:
            if owners[page] != holding:
                raise OwnershipError(
                    f"engine {engine} gives back page {page}, whose owner is {self._owners[page]}"
                )
        self._drop_held(engine, pages)
        self._release(pages)

    def adopt(self, engine: EngineId, pages: Sequence[PageId]) -> None:
        """Enter pages that ``engine`` says it holds, after the agent restarted."""
        self._require_pages(pages)
        for page in pages:
            if self._owners[page] is not None:
                raise OwnershipError(
                    f"engine {engine} says it holds page {page}, whose owner is "
                    f"{self._owners[page]}"
                )
        if pages:
            self._free.remove(sorted(pages))
            self._set(pages, Holding(engine))
            self._held.setdefault(engine, set()).update(pages)

    def forget_engine(self, engine: EngineId) -> tuple[PageId, ...]:
        """The engine is dead: all its pages, in flight too, are free.  Its operations end."""
        pages = set(self._held.pop(engine, ()))
        for operation in [op for op, (to, _) in self._in_flight.items() if to == engine]:
            pages.update(self._in_flight.pop(operation)[1])
        freed = tuple(sorted(pages))
        self._release(freed)
        return freed

    def check(self) -> None:
        """Raise OwnershipError unless every page has one owner and the sums agree (DESIGN §8.1)."""
        listed: Counter[PageId] = Counter(self._free)
        for engine, held in self._held.items():
            listed.update(held)
            self._check_owner(held, Holding(engine))
        for operation, (engine, pages) in self._in_flight.items():
            listed.update(pages)
            self._check_owner(pages, Holding(engine, operation))
        self._check_owner(self._free, None)
        for page in range(self.pages):
            if listed[PageId(page)] != 1:
                raise OwnershipError(f"page {page} has {listed[PageId(page)]} owners")
        if listed.total() != self.pages:
            raise OwnershipError(f"{listed.total()} pages are owned on a device of {self.pages}")

    def _check_owner(self, pages: Iterable[PageId], owner: Holding | None) -> None:
        for page in pages:
            if self._owners[page] != owner:
                raise OwnershipError(
                    f"page {page} is entered under {owner} and belongs to {self._owners[page]}"
                )

    def _require_pages(self, pages: Sequence[PageId]) -> None:
        if len(set(pages)) < len(pages):
            raise OwnershipError("a page is named twice")
        if pages and not 0 <= min(pages) <= max(pages) < self.pages:
            raise OwnershipError(
                f"pages {min(pages)} to {max(pages)} are not all of a device of {self.pages}"
            )

    def _end(self, operation: OperationId) -> tuple[EngineId, tuple[PageId, ...]]:
        try:
            return self._in_flight.pop(operation)
        except KeyError:
            raise MisuseError(f"operation {operation} is not under way") from None

    def _drop_held(self, engine: EngineId, pages: Sequence[PageId]) -> None:
        held = self._held.get(engine, set())
        held.difference_update(pages)
        if not held:
            self._held.pop(engine, None)

    def _release(self, pages: Sequence[PageId]) -> None:
        self._set(pages, None)
        self._free.add(sorted(pages))

    def _set(self, pages: Iterable[PageId], owner: Holding | None) -> None:
        for page in pages:
            self._owners[page] = owner
