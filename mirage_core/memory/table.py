"""An engine's page table: which unit, slot or granule owns each page that the engine has.

Pages come from the agent into the *reserve* (in flight, DESIGN §8.1), go from there to a unit, a
slot or a granule and back, and leave to the agent from the reserve.  There is no way from owner
to owner without naming both, so a page can neither have two owners nor lose its only one; every
method does all of what it says, or raises OwnershipError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_core.errors import OutOfPagesError, OwnershipError
from mirage_core.memory.runs import PageRuns
from mirage_core.model import GranuleId, Holdings, OwnerKind, PageId, UnitId


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of pages inside an engine: its kind, and which one of that kind."""

    kind: OwnerKind
    which: int | None = None


RESERVE = Owner(OwnerKind.IN_FLIGHT)
"""Granted and not mapped yet, or unmapped and not given back yet."""
STATIC = Owner(OwnerKind.UNIT)
"""The part of a model that never moves."""


def unit_owner(unit: UnitId) -> Owner:
    return Owner(OwnerKind.UNIT, unit)


def slot_owner(slot: int) -> Owner:
    return Owner(OwnerKind.SLOT, slot)


def granule_owner(granule: GranuleId) -> Owner:
    return Owner(OwnerKind.POOL, granule)


class PageTable:
    """Owners of the pages that one engine has; it has none at first."""

    def __init__(self) -> None:
        self._owners: dict[PageId, Owner] = {}
        self._pages: dict[Owner, set[PageId]] = {}
        self._reserve = PageRuns()

    @property
    def reserve_pages(self) -> int:
        """Pages that no unit, slot or granule owns."""
        return len(self._reserve)

    def owner(self, page: PageId) -> Owner | None:
        """Owner of the page; None if the engine does not have it."""
        return self._owners.get(page)

    def pages(self, owner: Owner) -> tuple[PageId, ...]:
        """Pages of an owner, ascending (the order of places is the range's business)."""
        return tuple(self._reserve if owner == RESERVE else sorted(self._pages.get(owner, ())))

    def choose(self, count: int) -> tuple[PageId, ...]:
        """``count`` pages of the reserve in few runs; they stay there until moved.

        Raises OutOfPagesError if it has fewer.
        """
        if count > self.reserve_pages:
            raise OutOfPagesError(f"{count} pages needed, the reserve has {self.reserve_pages}")
        return self._reserve.choose(count)

    def receive(self, pages: Sequence[PageId]) -> None:
        """Pages granted by the agent enter the reserve."""
        for page in _distinct(pages):
            if page in self._owners:
                raise OwnershipError(f"page {page} was granted, and {self._owners[page]} owns it")
        self._owners.update(dict.fromkeys(pages, RESERVE))
        self._reserve.add(sorted(pages))

    def give_back(self, pages: Sequence[PageId]) -> None:
        """Pages leave the reserve, and the engine, for the agent."""
        self._require_owner(_distinct(pages), RESERVE)
        self._reserve.remove(sorted(pages))
        for page in pages:
            del self._owners[page]

    def move(self, pages: Sequence[PageId], source: Owner, target: Owner) -> None:
        """Pages change from ``source``, which must own them all, to ``target``."""
        self._require_owner(_distinct(pages), source)
        self.reassign(dict.fromkeys(pages, (source, target)))

    def reassign(self, moves: Mapping[PageId, tuple[Owner, Owner]]) -> None:
        """Many moves, page -> (source, target), all or none."""
        for page, (source, _) in moves.items():
            self._require_owner([page], source)
        self._reserve.remove(sorted(page for page, (s, t) in moves.items() if s == RESERVE != t))
        self._reserve.add(sorted(page for page, (s, t) in moves.items() if t == RESERVE != s))
        for page, (source, target) in moves.items():
            if source != RESERVE:
                self._pages[source].discard(page)
                if not self._pages[source]:
                    del self._pages[source]
            if target != RESERVE:
                self._pages.setdefault(target, set()).add(page)
            self._owners[page] = target

    def holdings(self) -> Holdings:
        """All pages of the engine by kind of owner, as it reports them to the agent."""
        by_kind: dict[OwnerKind, list[PageId]] = {kind: [] for kind in OwnerKind}
        for page in sorted(self._owners):
            by_kind[self._owners[page].kind].append(page)
        return Holdings(
            unit=tuple(by_kind[OwnerKind.UNIT]),
            slot=tuple(by_kind[OwnerKind.SLOT]),
            pool=tuple(by_kind[OwnerKind.POOL]),
            in_flight=tuple(by_kind[OwnerKind.IN_FLIGHT]),
        )

    def check(self) -> None:
        """Raise OwnershipError unless every page has exactly one owner (DESIGN §8.1)."""
        listed = list(self._reserve)
        self._require_owner(listed, RESERVE)
        for owner, pages in self._pages.items():
            if owner.kind in (OwnerKind.FREE, OwnerKind.IN_FLIGHT) or not pages:
                raise OwnershipError(f"{owner} is entered as the owner of {len(pages)} pages")
            self._require_owner(pages, owner)
            listed.extend(pages)
        if len(listed) != len(self._owners):
            raise OwnershipError(f"{len(self._owners)} pages have {len(listed)} owners")

    def _require_owner(self, pages: Iterable[PageId], owner: Owner) -> None:
        for page in pages:
            if self._owners.get(page) != owner:
                raise OwnershipError(f"page {page} belongs to {self.owner(page)}, not to {owner}")


def _distinct(pages: Sequence[PageId]) -> Sequence[PageId]:
    if len(set(pages)) < len(pages):
        raise OwnershipError("a page is named twice")
    return pages
