"""What a scheduler orders of its worker, and what comes back: values that ride with the steps.

Operations are performed in order at a step boundary, before the step's forward pass.  "Cannot
now" is an ``Outcome`` with a reason; it changes nothing, and it never raises (an exception in a
worker kills the engine).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_core.model import EngineId, GranuleId, Holdings, PageId, RemapPlan


@dataclass(frozen=True, slots=True)
class Accept:
    """Pages that the agent granted become the engine's reserve."""

    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class MapGranules:
    """Map and zero granules with pages of the reserve."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class UnmapGranules:
    """Unmap drained granules; their pages become reserve."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Bring the weights to a plan; pages come from the reserve and return to it."""

    plan: RemapPlan


@dataclass(frozen=True, slots=True)
class Release:
    """Take pages out of the reserve, to be given to the agent; all or nothing."""

    count: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Check every invariant that the worker can see (DESIGN §8) and report the holdings."""


Operation = Accept | MapGranules | UnmapGranules | ApplyPlan | Release | Inspect


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one operation; ``refused`` is None when it was performed."""

    operation: Operation
    refused: str | None = None
    pages: tuple[PageId, ...] = ()
    """Release: the pages taken out."""
    holdings: Holdings | None = None
    """Inspect: the pages of the engine by owner."""


@dataclass(frozen=True, slots=True)
class FetchReport:
    """Counters of the transfer engine since its start, and its measured times."""

    fetches: int
    fetched_bytes: int
    busy_s: float
    stalls: int
    stall_s: float
    retries: int
    unit_compute_s: tuple[float, ...]
    unit_transfer_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Comes back with each step that carried operations, and now and then without."""

    outcomes: tuple[Outcome, ...]
    reserve_pages: int
    plan: RemapPlan
    fetch: FetchReport


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the scheduler must know of its worker's memory, told once at start."""

    engine: EngineId
    unit_pages: tuple[int, ...]
    static_pages: int
    weights_digest: str
    page_bytes: int
    device_pages: int
    kv_layers: int
    kv_block_bytes: int
    kv_layer_stride_bytes: int
    reserve_pages: int
    """Pages left after the start: those of a private device."""
    first_granules: int
    """Granules mapped at start: ids 0 .. first_granules - 1."""
