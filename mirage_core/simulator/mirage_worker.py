"""A simulated worker: performs the Remapper's orders on page numbers, and says what they cost.

It answers as the real one does (``engines.memory.EngineMemory``): what cannot be done now is
refused with a reason and changes nothing.  Which page a unit has does not matter here, so weights
are one set of pages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_core.control.operations import (
    Accept,
    ApplyPlan,
    Inspect,
    MapGranules,
    Operation,
    Outcome,
    Release,
    UnmapGranules,
)
from mirage_core.model import RESIDENT, GranuleId, Holdings, PageId, RemapPlan, UnitId
from mirage_core.policy.which_units import units_made_resident


@dataclass(frozen=True, slots=True)
class MemoryCosts:
    """Seconds that the computing thread spends at a step boundary.

    A *run* is a span of consecutive places, mapped or unmapped with one call: a unit is one, a
    granule one in each layer (``kv.mapper``, ``weights.executor``).
    """

    map_page_s: float
    map_run_s: float
    unmap_page_s: float
    unmap_run_s: float
    zero_page_s: float

    def of_pages(self, pages: float) -> MemoryCosts:
        """Where one page is as large as ``pages`` of these."""
        return replace(
            self,
            map_page_s=self.map_page_s * pages,
            unmap_page_s=self.unmap_page_s * pages,
            zero_page_s=self.zero_page_s * pages,
        )

    def map_s(self, pages: int, runs: int) -> float:
        return pages * self.map_page_s + runs * self.map_run_s

    def unmap_s(self, pages: int, runs: int) -> float:
        return pages * self.unmap_page_s + runs * self.unmap_run_s


CUDA_COSTS = MemoryCosts(
    map_page_s=1.5e-6,
    map_run_s=36e-6,
    unmap_page_s=1.5e-6,
    unmap_run_s=26e-6,
    zero_page_s=1e-6,
)
"""Pages of 2 MiB on an A100 (FACTS §6, kvcached): map 1.5 us, set access 36, unmap 26.  Mapping is
a call for each page, access and unmapping one for each run; that their time does not grow with the
run's pages, and 1.5 us a page of bookkeeping, are assumptions.  A page is zeroed at 2 TB/s."""
CUDA_PAGEWISE_COSTS = MemoryCosts(
    map_page_s=37.5e-6,
    map_run_s=0.0,
    unmap_page_s=26e-6,
    unmap_run_s=0.0,
    zero_page_s=1e-6,
)
"""The same figures if a run costs as much as its pages one by one: the worst case."""
HOST_COSTS = MemoryCosts(
    map_page_s=151e-6,
    map_run_s=0.0,
    unmap_page_s=80e-6,
    unmap_run_s=0.0,
    zero_page_s=50e-6,
)
"""Pages of 2 MiB on the host device (DESIGN §4, measured)."""
NO_COSTS = MemoryCosts(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Performed:
    """What came of an operation, how long it took, and the units whose fetch it began."""

    outcome: Outcome
    cost_s: float = 0.0
    fetches: tuple[UnitId, ...] = ()


class SimulatedWorker:
    """All pages of one engine: weights, granules, and the reserve between them."""

    def __init__(
        self,
        pages: tuple[PageId, ...],
        *,
        unit_pages: tuple[int, ...],
        static_pages: int,
        granule_pages: int,
        granule_runs: int,
        first_granules: int,
        costs: MemoryCosts,
    ) -> None:
        """``pages`` are all that it has at the start: resident weights and its first granules."""
        self._unit_pages = unit_pages
        self._granule_pages = granule_pages
        self._granule_runs = granule_runs
        self._costs = costs
        self.plan: RemapPlan = RESIDENT
        self._plan_pages = sum(unit_pages)
        self._reserve = list(pages)
        self._weights: list[PageId] = []
        self._granules: dict[GranuleId, tuple[PageId, ...]] = {}
        self._move_weights(static_pages + sum(unit_pages))
        self._map(tuple(GranuleId(granule) for granule in range(first_granules)))

    @property
    def pages(self) -> int:
        """All pages that it has."""
        return len(self._reserve) + len(self._weights) + len(self._granules) * self._granule_pages

    def perform(self, operation: Operation) -> Performed:
        match operation:
            case Accept(pages):
                self._reserve += pages
                return Performed(Outcome(operation))
            case MapGranules(granules):
                need = len(granules) * self._granule_pages
                if need > len(self._reserve):
                    return Performed(Outcome(operation, f"{need} pages needed"))
                self._map(granules)
                cost_s = self._costs.map_s(need, len(granules) * self._granule_runs)
                return Performed(Outcome(operation), cost_s + need * self._costs.zero_page_s)
            case UnmapGranules(granules):
                for granule in granules:
                    self._reserve += self._granules.pop(granule)
                count = len(granules)
                cost_s = self._costs.unmap_s(
                    count * self._granule_pages, count * self._granule_runs
                )
                return Performed(Outcome(operation), cost_s)
            case ApplyPlan(plan):
                return self._apply(operation, plan)
            case Release(count):
                if count > len(self._reserve):
                    return Performed(Outcome(operation, f"{count} pages wanted"))
                return Performed(Outcome(operation, pages=_take(self._reserve, count)))
            case Inspect():
                return Performed(Outcome(operation, holdings=self.holdings()))

    def holdings(self) -> Holdings:
        return Holdings(
            unit=tuple(self._weights),
            pool=tuple(page for pages in self._granules.values() for page in pages),
            in_flight=tuple(self._reserve),
        )

    def _map(self, granules: tuple[GranuleId, ...]) -> None:
        for granule in granules:
            self._granules[granule] = _take(self._reserve, self._granule_pages)

    def _apply(self, operation: ApplyPlan, plan: RemapPlan) -> Performed:
        before = self.plan
        needed = plan.pages(self._unit_pages)
        more = needed - self._plan_pages
        if more > len(self._reserve):
            return Performed(Outcome(operation, f"the plan needs {more} pages more"))
        self._move_weights(more)
        self.plan, self._plan_pages = plan, needed
        # A cycled unit's span maps its slot's pages: whoever changes owner is mapped anew.
        changed = before.cycled ^ plan.cycled
        pages = sum(self._unit_pages[unit] for unit in changed)
        cost_s = self._costs.map_s(pages, len(changed)) + self._costs.unmap_s(pages, len(changed))
        # At a step boundary a slot holds its first unit, the next to run.
        present = {members[0] for members in before.slots}
        fetches = sorted(units_made_resident(before, plan) - present)
        return Performed(Outcome(operation), cost_s, tuple(fetches))

    def _move_weights(self, pages: int) -> None:
        """Into the weights from the reserve, or back if below 0."""
        source, target = self._reserve, self._weights
        if pages < 0:
            source, target = target, source
        target += _take(source, abs(pages))


def _take(source: list[PageId], count: int) -> tuple[PageId, ...]:
    """The last pages that came, so that runs stay together."""
    kept = len(source) - count
    taken = tuple(source[kept:])
    del source[kept:]
    return taken
