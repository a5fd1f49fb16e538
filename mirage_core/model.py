"""Frozen values that every part of MIRAGE shares: identities, geometry, units, plans.

Nothing here acts, reads a clock or knows of a library outside the standard one.  Units are in
the names: ``_bytes``, ``_pages``, ``_s`` (seconds of a monotonic clock, never of a wall clock).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

DeviceId = NewType("DeviceId", str)
"""UUID of a GPU, a MIG slice or a host device; never an index."""
EngineId = NewType("EngineId", str)
"""One engine's life on a node: a restarted engine has a new one."""
ModelName = NewType("ModelName", str)
PageId = NewType("PageId", int)
"""Index of a page in its device's physical memory, 0 <= page < pages."""
UnitId = NewType("UnitId", int)
"""Index of a unit in its model's order of execution."""
GranuleId = NewType("GranuleId", int)
"""Index of a granule in its KV pool."""
BlockId = NewType("BlockId", int)
"""vLLM's KV block index; block 0 is its null block."""
OperationId = NewType("OperationId", int)
"""Names one request between agent and engine; unique for an agent's incarnation."""


@dataclass(frozen=True, slots=True)
class DeviceGeometry:
    """Size and identity of a device."""

    device: DeviceId
    page_bytes: int
    pages: int

    @property
    def size_bytes(self) -> int:
        return self.page_bytes * self.pages

    def pages_for(self, size_bytes: int) -> int:
        """Pages that cover ``size_bytes`` (0 for 0)."""
        return -(-size_bytes // self.page_bytes)


class UnitGrain(Enum):
    """What moves as one (DESIGN §5): the smaller, the less a slot wastes (FACTS §4)."""

    LAYER = "layer"
    HALF = "half"
    """attention and MLP of a layer apart"""
    LINEAR = "linear"
    """each linear of a layer apart"""


@dataclass(frozen=True, slots=True)
class Unit:
    """One movable part of a model's weights."""

    unit: UnitId
    name: str
    size_bytes: int
    pages: int


@dataclass(frozen=True, slots=True)
class RemapPlan:
    """Which units are cycled, and through which slot; a unit in no slot is resident.

    ``slots[s]`` lists the units that share slot ``s`` in order of execution, at least two of
    them: a slot with one unit is that unit being resident.  The empty plan, ``RESIDENT``, keeps
    every unit resident.
    """

    slots: tuple[tuple[UnitId, ...], ...] = ()

    def __post_init__(self) -> None:
        seen: set[UnitId] = set()
        for members in self.slots:
            if len(members) < 2:
                raise ValueError(f"a slot needs two or more units, got {members!r}")
            if list(members) != sorted(set(members)):
                raise ValueError(f"a slot's units must ascend, got {members!r}")
            if seen.intersection(members):
                raise ValueError(f"a unit is in two slots: {self.slots!r}")
            seen.update(members)

    @property
    def cycled(self) -> frozenset[UnitId]:
        return frozenset(unit for members in self.slots for unit in members)

    def slot_of(self, unit: UnitId) -> int | None:
        for slot, members in enumerate(self.slots):
            if unit in members:
                return slot
        return None

    def pages(self, unit_pages: Sequence[int]) -> int:
        """Pages that a model with ``unit_pages[u]`` pages a unit occupies under this plan."""
        cycled = self.cycled
        if cycled and max(cycled) >= len(unit_pages):
            raise ValueError(f"plan names unit {max(cycled)}, the model has {len(unit_pages)}")
        resident = sum(p for u, p in enumerate(unit_pages) if u not in cycled)
        return resident + sum(max(unit_pages[u] for u in members) for members in self.slots)

    def freed_pages(self, unit_pages: Sequence[int]) -> int:
        """Pages that this plan frees against ``RESIDENT``."""
        return sum(unit_pages) - self.pages(unit_pages)

    def __iter__(self) -> Iterator[tuple[UnitId, ...]]:
        return iter(self.slots)


RESIDENT = RemapPlan()


class OwnerKind(Enum):
    """The five kinds of owner of a page (DESIGN §8.1)."""

    FREE = "free"
    UNIT = "unit"
    """a resident unit, or the part of a model that never moves"""
    SLOT = "slot"
    POOL = "pool"
    IN_FLIGHT = "in_flight"
    """between two of the above: granted but not mapped, or unmapped but not returned"""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Pages that one engine owns, by kind of owner; the lists are disjoint."""

    unit: tuple[PageId, ...] = ()
    slot: tuple[PageId, ...] = ()
    pool: tuple[PageId, ...] = ()
    in_flight: tuple[PageId, ...] = ()

    def all(self) -> tuple[PageId, ...]:
        return self.unit + self.slot + self.pool + self.in_flight
