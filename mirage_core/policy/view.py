"""One snapshot of a device: what a decision is made from, and nothing else.

The arbiter fills it *as asked*, not as acknowledged: an engine that was asked for pages shows the
plan and the pool that it will have, and the pages on their way are ``coming_pages``.  So deciding
again before an engine has answered does not ask it twice.  An engine that cannot be asked (silent,
starting, ending) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mirage_core.cluster_model import Sharing
from mirage_core.errors import MisuseError
from mirage_core.model import EngineId, ModelName, RemapPlan
from mirage_core.policy.how_many import PlanRow, PlanTable
from mirage_core.policy.when import UseWatch


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine of the device.

    priority          higher is more important
    active            has, or is scheduled to have, running requests
    last_active_s     monotonic time it was last active; -inf if never
    active_since_s    monotonic time at which it woke; means nothing while it is inactive
    plan              its remap plan, of this table or of an earlier cost's
    plan_table        its plans at its present cost (built once a cost, ``how_many``)
    pool_pages        pages mapped in its KV pool
    pool_spare_pages  of these, in granules that could be given back at once and that its next
                      steps do not need (``when.needed_blocks``)
    pool_min_pages    pages that its pool never goes below
    floor_pages       unit pages that it keeps while inactive (``how_many.cold_start_floor_pages``)
    granule_pages     pages of one granule: pools grow and shrink by multiples of it
    use_watch         ``when.watch_use`` of ``pool_used_pages``
    pinned            gives neither units nor pool pages
    lend_least_pages  unit pages that it is to lend even if nobody needs them
    lend_most_pages   unit pages that it lends at most, whatever is asked; None: no bound
    """

    engine: EngineId
    model: ModelName
    priority: int
    active: bool
    last_active_s: float
    plan: RemapPlan
    plan_table: PlanTable
    pool_pages: int
    pool_spare_pages: int
    pool_min_pages: int
    floor_pages: int = 0
    granule_pages: int = 1
    use_watch: UseWatch | None = None
    active_since_s: float = -math.inf
    pinned: bool = False
    lend_least_pages: int = 0
    lend_most_pages: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.pool_spare_pages <= self.pool_pages or self.pool_min_pages < 0:
            raise MisuseError(
                f"{self.engine}: pool of {self.pool_pages} pages, {self.pool_spare_pages} spare, "
                f"{self.pool_min_pages} least"
            )
        if self.granule_pages < 1:
            raise MisuseError(f"{self.engine}: a granule of {self.granule_pages} pages")

    @property
    def unit_pages(self) -> tuple[int, ...]:
        return self.plan_table.unit_pages

    @property
    def row(self) -> PlanRow:
        """What its plan frees, and costs it at present."""
        return self.plan_table.row_of(self.plan)

    @property
    def lend_bound_pages(self) -> int | None:
        """Unit pages that an operator lets it lend; None: no bound."""
        return 0 if self.pinned else self.lend_most_pages

    @property
    def pool_used_pages(self) -> int:
        """Pool pages that are in use, soon will be, or lie in a granule with such pages."""
        return self.pool_pages - self.pool_spare_pages

    @property
    def reclaimable_pages(self) -> int:
        """Pool pages that it could give back at once, in whole granules."""
        pages = min(self.pool_spare_pages, self.pool_pages - self.pool_min_pages)
        return max(0, pages) // self.granule_pages * self.granule_pages


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device: its free list, its engines, and what was promised but is not done yet.

    free_pages    pages of the free list
    coming_pages  asked back from engines and not yet on the free list
    owed_pages    promised to engines and not yet granted
    sharing       how its models run: in turn, or several at once
    """

    free_pages: int
    engines: tuple[EngineView, ...]
    coming_pages: int = 0
    owed_pages: int = 0
    sharing: Sharing = Sharing.SPATIAL

    def __post_init__(self) -> None:
        if min(self.free_pages, self.coming_pages, self.owed_pages) < 0:
            raise MisuseError("pages free, coming and owed are counts")
        if len({engine.engine for engine in self.engines}) != len(self.engines):
            raise MisuseError("an engine is in the view twice")

    @property
    def unpromised_pages(self) -> int:
        """Pages free or coming that no engine waits for."""
        return max(0, self.free_pages + self.coming_pages - self.owed_pages)

    @property
    def spendable_pages(self) -> int:
        """Free pages that no engine waits for."""
        return min(self.free_pages, self.unpromised_pages)

    def __getitem__(self, engine: EngineId) -> EngineView:
        """The view of ``engine``; MisuseError if there is none."""
        for view in self.engines:
            if view.engine == engine:
                return view
        raise MisuseError(f"no engine {engine} in the view")

    def __iter__(self) -> Iterator[EngineView]:
        return iter(self.engines)
