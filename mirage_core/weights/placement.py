"""Where a model's units are: which pages each one owns or shares, and whose bytes lie in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_core.errors import OwnershipError
from mirage_core.memory.table import Owner, slot_owner, unit_owner
from mirage_core.model import RESIDENT, PageId, RemapPlan, UnitId


@dataclass(frozen=True, slots=True)
class Placement:
    """Pages and contents of all units under one plan; pages are in the order of their places.

    A resident unit's span maps its own pages; a cycled unit's span maps the first of its slot's
    pages, as many as the unit has.  ``present`` names the units whose bytes are there: of the
    units that share a slot one at most.
    """

    plan: RemapPlan
    sizes_pages: tuple[int, ...]
    """by UnitId"""
    unit_pages: tuple[tuple[PageId, ...], ...]
    """by UnitId; none for a cycled unit"""
    slot_pages: tuple[tuple[PageId, ...], ...]
    """by slot"""
    present: frozenset[UnitId]

    @classmethod
    def nowhere(cls, sizes_pages: tuple[int, ...]) -> Placement:
        """A model that is not on the device: no unit has a page (the plan says nothing then)."""
        return cls(RESIDENT, sizes_pages, ((),) * len(sizes_pages), (), frozenset())

    @property
    def pages(self) -> int:
        """Pages that the units own."""
        return sum(map(len, self.unit_pages)) + sum(map(len, self.slot_pages))

    @property
    def contents(self) -> tuple[UnitId | None, ...]:
        """By slot: the member whose bytes lie there, if any."""
        return tuple(
            next((unit for unit in members if unit in self.present), None) for members in self.plan
        )

    def span(self, unit: UnitId) -> tuple[PageId, ...]:
        """Pages mapped at the places of the unit."""
        slot = self.plan.slot_of(unit)
        if slot is None:
            return self.unit_pages[unit]
        return self.slot_pages[slot][: self.sizes_pages[unit]]

    def owners(self) -> Mapping[PageId, Owner]:
        owners: dict[PageId, Owner] = {}
        for unit, pages in enumerate(self.unit_pages):
            owners.update(dict.fromkeys(pages, unit_owner(UnitId(unit))))
        for slot, pages in enumerate(self.slot_pages):
            owners.update(dict.fromkeys(pages, slot_owner(slot)))
        return owners

    def check(self) -> None:
        """Raise OwnershipError unless pages, plan and contents agree (DESIGN §8.1, §8.3)."""
        if len(self.owners()) != self.pages:
            raise OwnershipError("a page has two owners among the units and slots")
        cycled = self.plan.cycled
        for unit, pages in enumerate(self.unit_pages):
            if len(pages) not in ((0,) if unit in cycled else (0, self.sizes_pages[unit])):
                raise OwnershipError(f"unit {unit} owns {len(pages)} pages under {self.plan}")
        if len(self.slot_pages) != len(self.plan.slots):
            raise OwnershipError(f"{len(self.slot_pages)} slots have pages under {self.plan}")
        for members, pages in zip(self.plan, self.slot_pages, strict=True):
            if len(pages) != max(self.sizes_pages[unit] for unit in members):
                raise OwnershipError(f"the slot of units {members} has {len(pages)} pages")
            if len(self.present.intersection(members)) > 1:
                raise OwnershipError(f"the slot of units {members} holds the bytes of several")
        for unit in self.present:
            if len(self.span(unit)) != self.sizes_pages[unit]:
                raise OwnershipError(f"unit {unit} is present on {len(self.span(unit))} pages")
