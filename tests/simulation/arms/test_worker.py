"""The simulated worker answers as the real one, and no page is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mirage_core.control.operations import (
    Accept,
    ApplyPlan,
    Inspect,
    MapGranules,
    Operation,
    Release,
    UnmapGranules,
)
from mirage_core.model import RESIDENT, GranuleId, PageId, RemapPlan, UnitId
from mirage_core.simulator.mirage_worker import CUDA_COSTS, Performed, SimulatedWorker

UNIT_PAGES = (4, 4, 3, 4, 4)
PLANS = (
    RESIDENT,
    RemapPlan(((UnitId(0), UnitId(2)),)),
    RemapPlan(((UnitId(0), UnitId(3)), (UnitId(1), UnitId(4)))),
)
START = 2 + sum(UNIT_PAGES) + 3


def worker(pages: int = START) -> SimulatedWorker:
    return SimulatedWorker(
        tuple(PageId(page) for page in range(pages)),
        unit_pages=UNIT_PAGES,
        static_pages=2,
        granule_pages=3,
        granule_runs=3,
        first_granules=1,
        costs=CUDA_COSTS,
    )


def test_units_made_resident_are_fetched_but_for_those_that_lie_in_a_slot() -> None:
    one = worker()
    assert one.perform(ApplyPlan(PLANS[2])).fetches == ()
    assert one.perform(ApplyPlan(RESIDENT)).fetches == (UnitId(3), UnitId(4))


def test_plan_without_pages_is_refused_and_changes_nothing() -> None:
    one = worker()
    one.perform(ApplyPlan(PLANS[1]))
    one.perform(Release(3))
    performed = one.perform(ApplyPlan(RESIDENT))
    assert performed.outcome.refused is not None
    assert one.plan == PLANS[1]


def test_mapping_costs_time_for_each_page_and_each_run() -> None:
    one = worker(START + 6)
    cost_s = one.perform(MapGranules((GranuleId(1), GranuleId(2)))).cost_s
    assert cost_s == pytest.approx(6 * (1.5e-6 + 1e-6) + 6 * 36e-6)
    cost_s = one.perform(ApplyPlan(PLANS[1])).cost_s
    assert cost_s == pytest.approx(7 * (1.5e-6 + 1.5e-6) + 2 * (36e-6 + 26e-6))


def test_bundle_of_pages_costs_as_much_as_its_pages() -> None:
    assert CUDA_COSTS.of_pages(4).map_s(2, 1) == pytest.approx(CUDA_COSTS.map_s(8, 1))
    assert CUDA_COSTS.of_pages(4).unmap_s(2, 1) == pytest.approx(CUDA_COSTS.unmap_s(8, 1))


class PagesMachine(RuleBasedStateMachine):
    """Any operations in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = worker()
        self.outside: list[PageId] = [PageId(page) for page in range(START, START + 20)]
        self.mapped = {GranuleId(0)}

    def perform(self, operation: Operation) -> Performed:
        return self.worker.perform(operation)

    @rule(count=st.integers(1, 5))
    def accept(self, count: int) -> None:
        pages, self.outside = tuple(self.outside[:count]), self.outside[count:]
        assert self.perform(Accept(pages)).outcome.refused is None

    @rule(count=st.integers(1, 8))
    def release(self, count: int) -> None:
        outcome = self.perform(Release(count)).outcome
        assert len(outcome.pages) == (0 if outcome.refused else count)
        self.outside.extend(outcome.pages)

    @rule(granule=st.integers(1, 4))
    def map_or_unmap(self, granule: int) -> None:
        which = GranuleId(granule)
        operation = (UnmapGranules if which in self.mapped else MapGranules)((which,))
        if self.perform(operation).outcome.refused is None:
            self.mapped ^= {which}

    @rule(plan=st.sampled_from(PLANS))
    def apply(self, plan: RemapPlan) -> None:
        if self.perform(ApplyPlan(plan)).outcome.refused is None:
            assert self.worker.plan == plan

    @invariant()
    def every_page_has_one_owner(self) -> None:
        holdings = self.perform(Inspect()).outcome.holdings
        assert holdings is not None
        pages = [*holdings.all(), *self.outside]
        assert sorted(pages) == list(range(START + 20))
        assert self.worker.pages == START + 20 - len(self.outside)
        assert len(holdings.unit) == 2 + self.worker.plan.pages(UNIT_PAGES)
        assert len(holdings.pool) == 3 * len(self.mapped)


TestAnyOperations = PagesMachine.TestCase
