"""What others may know of one device: counters and pages, for metrics, plots and the controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_core.model import EngineId, ModelName


@dataclass(slots=True)
class Counters:
    """What the arbiter did since it started."""

    asks: int = 0
    takes: int = 0
    granted_pages: int = 0
    denials: int = 0
    remaps: int = 0
    """plans applied that freed pages"""
    reversions: int = 0
    """plans applied that took pages back"""
    shrinks: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """One engine's pages, for metrics and plots; before it has described itself all are pool.

    ``resident_pages`` are those of resident units and of the part that never moves.  The last
    fields are None until it has described itself; directives count in ``priority`` and ``pinned``.
    """

    engine: EngineId
    model: ModelName
    active: bool
    pool_pages: int
    spare_pages: int
    resident_pages: int
    slot_pages: int
    in_flight_pages: int
    cycled_units: int
    waiting_pages: int
    priority: int | None = None
    pinned: bool | None = None
    units: int | None = None
    unit_pages: int | None = None
    lent_pages: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    free_pages: int
    coming_pages: int
    engines: tuple[EngineSummary, ...] = field(default=())
