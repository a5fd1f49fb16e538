"""The engine's state machine against a worker and an agent that do, or refuse, what it says."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mirage_core.control import remapper as act
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
from mirage_core.control.remapper import Action, OwnPlan, PoolView, Remapper
from mirage_core.model import RESIDENT, GranuleId, Holdings, PageId, RemapPlan, UnitId

GRANULE_PAGES = 3
UNIT_PAGES = (4,) * 8


def plan(*units: int) -> RemapPlan:
    return RemapPlan((tuple(UnitId(u) for u in units),))


OWN_PLANS = tuple(
    OwnPlan(p, p.freed_pages(UNIT_PAGES))
    for p in (RESIDENT, plan(0, 4), plan(0, 2, 5), plan(0, 2, 4, 6))
)


class Engine:
    """A worker's pages, a pool of granules without requests, and an inbox of an agent's."""

    def __init__(self, *, first: int, reserve: int, linked: bool, allowance: int = 0) -> None:
        self.remapper = Remapper(
            granule_pages=GRANULE_PAGES,
            first_granules=first,
            max_granules=12,
            unit_pages=UNIT_PAGES,
            own_plans=OWN_PLANS,
            last_resort_plans=OWN_PLANS,
            reserve_pages=reserve,
            allowance_pages=allowance,
            linked=linked,
        )
        self.plan = RESIDENT
        self.mapped = set(range(first))
        self.added = {GranuleId(g) for g in range(first)}
        self.draining: set[GranuleId] = set()
        self.live: dict[GranuleId, int] = {}
        self.page = 1000
        self.reserve: list[PageId] = [self._new_page() for _ in range(reserve)]
        self.orders: deque[Operation] = deque()
        self.sent: list[Action] = []
        self.needed = first
        self.starving = False

    def _new_page(self) -> PageId:
        self.page += 1
        return PageId(self.page)

    def pages(self) -> int:
        """All pages that the engine holds, by what its worker knows."""
        return len(self.reserve) + len(self.mapped) * GRANULE_PAGES + self.plan.pages(UNIT_PAGES)

    def view(self) -> PoolView:
        idle = [g for g in sorted(self.added - self.draining, reverse=True) if g != 0]
        room = max(0, len(self.remapper.mapped) - len(self.remapper.draining()) - 1)
        spare = [g for g in idle if not self.live.get(g)]
        return PoolView(
            active=self.needed > 1,
            starving=self.starving,
            needed_granules=self.needed,
            spare=tuple(spare[:room]),
            emptiest=tuple(sorted(idle, key=lambda g: self.live.get(g, 0))[:room]),
            drained=tuple(g for g in self.draining if not self.live.get(g)),
        )

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case act.Order(operation):
                    self.orders.append(operation)
                case act.AddGranules(granules):
                    assert self.added.isdisjoint(granules)
                    self.added.update(granules)
                case act.DrainGranules(granules):
                    assert self.added.issuperset(granules)
                    assert self.draining.isdisjoint(granules)
                    assert 0 not in granules
                    self.draining.update(granules)
                case act.ForgetGranules(granules):
                    assert self.draining.issuperset(granules)
                    assert not any(self.live.get(g) for g in granules)
                    self.draining.difference_update(granules)
                    self.added.difference_update(granules)
                case act.PreemptHolders(granules):
                    for granule in granules:
                        self.live.pop(granule, None)
                case _:
                    self.sent.append(action)

    def work(self, refuse: bool = False) -> None:
        """The worker answers its oldest order."""
        self.take(self.remapper.on_outcome(self._perform(self.orders.popleft(), refuse)))

    def _perform(self, operation: Operation, refuse: bool) -> Outcome:
        match operation:
            case Accept(pages):
                self.reserve.extend(pages)
            case Release(count):
                assert count <= len(self.reserve), "more released than the reserve has"
                pages = tuple(self.reserve[:count])
                del self.reserve[:count]
                return Outcome(operation, pages=pages)
            case MapGranules(granules):
                assert self.mapped.isdisjoint(granules)
                needed = len(granules) * GRANULE_PAGES
                assert needed <= len(self.reserve), "more mapped than the reserve has"
                if refuse:
                    return Outcome(operation, "the kernel refuses")
                del self.reserve[:needed]
                self.mapped.update(granules)
            case UnmapGranules(granules):
                assert self.mapped.issuperset(granules)
                if refuse:
                    return Outcome(operation, "the kernel refuses")
                self.mapped.difference_update(granules)
                self.reserve.extend(self._new_page() for _ in range(len(granules) * GRANULE_PAGES))
            case ApplyPlan(new):
                change = new.pages(UNIT_PAGES) - self.plan.pages(UNIT_PAGES)
                if refuse or change > len(self.reserve):
                    return Outcome(operation, "too few pages")
                del self.reserve[: max(0, change)]
                self.reserve.extend(self._new_page() for _ in range(max(0, -change)))
                self.plan = new
            case Inspect():
                return Outcome(operation, holdings=Holdings(in_flight=tuple(self.reserve)))
        return Outcome(operation)

    def settle(self, now_s: float = 0.0) -> None:
        """Steps until nothing is outstanding."""
        for _ in range(50):
            self.take(self.remapper.on_step(self.view(), now_s))
            if not self.orders and not self.remapper.busy:
                return
            while self.orders:
                self.work()
        pytest.fail("the engine does not come to rest")


def test_pool_grows_from_the_reserve_without_asking_anybody() -> None:
    engine = Engine(first=2, reserve=7, linked=True)
    engine.needed = 4
    engine.settle()
    assert engine.added == {0, 1, 2, 3}
    assert not [a for a in engine.sent if isinstance(a, act.SendAsk)]


def test_granule_enters_the_pool_only_after_the_worker_mapped_it() -> None:
    engine = Engine(first=1, reserve=3, linked=False)
    engine.needed = 2
    engine.take(engine.remapper.on_step(engine.view(), 0.0))
    assert engine.added == {0}
    engine.work()
    assert engine.added == {0, 1}


def test_shortage_is_asked_for_once_until_it_grows() -> None:
    engine = Engine(first=1, reserve=0, linked=True)
    engine.needed = 3
    engine.take(engine.remapper.on_step(engine.view(), 0.0))
    engine.take(engine.remapper.on_step(engine.view(), 0.1))
    assert engine.sent == [act.SendAsk(1, 6)]
    engine.needed = 4
    engine.take(engine.remapper.on_step(engine.view(), 0.2))
    assert engine.sent[1:] == [act.SendAsk(2, 9)]


def test_denied_engine_remaps_its_own_layers_within_its_allowance() -> None:
    engine = Engine(first=1, reserve=0, linked=True, allowance=8)
    engine.needed = 6
    engine.take(engine.remapper.on_step(engine.view(), 0.0))
    engine.take(engine.remapper.on_denied(1, 0.0))
    engine.take(engine.remapper.on_step(engine.view(), 0.1))
    while engine.orders:
        engine.work()
    assert engine.plan == plan(0, 2, 5)
    engine.take(engine.remapper.on_step(engine.view(), 0.2))
    while engine.orders:
        engine.work()
    assert len(engine.added) == 3


def test_starving_engine_remaps_its_own_layers_without_leave() -> None:
    engine = Engine(first=1, reserve=0, linked=False, allowance=0)
    engine.needed = 3
    engine.settle()
    assert engine.plan == RESIDENT
    engine.starving = True
    engine.settle(0.1)
    assert engine.plan != RESIDENT
    assert len(engine.added) == 3


def test_starving_engine_keeps_to_what_an_operator_has_frozen_or_bounded() -> None:
    engine = Engine(first=1, reserve=0, linked=False, allowance=0)
    engine.needed, engine.starving = 3, True
    engine.remapper.on_limits(allowance_pages=0, plan_held=True)
    engine.settle()
    assert engine.plan == RESIDENT
    engine.remapper.on_limits(allowance_pages=0, lend_most_pages=5)
    for now_s in (0.1, 0.2, 0.3, 0.4):
        engine.settle(now_s)
    assert engine.plan.freed_pages(UNIT_PAGES) == 4
    engine.remapper.on_limits(allowance_pages=0)
    for now_s in (0.5, 0.6, 0.7):
        engine.settle(now_s)
    assert engine.plan.freed_pages(UNIT_PAGES) > 4


def test_frozen_engine_does_not_restore_its_own_layers_either() -> None:
    engine = Engine(first=1, reserve=0, linked=False, allowance=100)
    engine.needed = 3
    engine.settle()
    engine.settle(0.1)
    engine.remapper.on_limits(allowance_pages=100, plan_held=True)
    engine.needed = 1
    for now_s in (1.0, 3.5, 3.6, 6.0, 9.0):
        engine.settle(now_s)
    assert engine.plan != RESIDENT


def test_own_layers_are_put_back_once_the_pool_has_had_room_for_a_while() -> None:
    engine = Engine(first=1, reserve=0, linked=False, allowance=100)
    engine.needed = 3
    engine.settle()
    engine.settle(0.1)
    assert engine.plan != RESIDENT
    engine.needed = 1
    engine.settle(1.0)
    assert engine.plan != RESIDENT
    for now_s in (3.5, 3.6, 3.7, 6.0, 6.1, 6.2):
        engine.settle(now_s)
    assert engine.plan == RESIDENT
    assert engine.added == {0}


def test_shrink_returns_the_pages_of_drained_granules_only() -> None:
    engine = Engine(first=1, reserve=9, linked=True)
    engine.needed = 4
    engine.settle()
    engine.needed = 1
    engine.live = {GranuleId(3): 2}
    engine.take(engine.remapper.on_shrink(7, 9, 5.0, engine.view()))
    engine.take(engine.remapper.on_step(engine.view(), 0.0))
    while engine.orders:
        engine.work()
    assert not [a for a in engine.sent if isinstance(a, act.SendDone)]
    assert engine.mapped == {0, 3}
    engine.live.clear()
    engine.settle(0.1)
    (done,) = [a for a in engine.sent if isinstance(a, act.SendDone)]
    assert (done.operation_id, len(done.pages)) == (7, 9)


def test_late_drain_preempts_its_holders() -> None:
    engine = Engine(first=1, reserve=3, linked=True)
    engine.needed = 2
    engine.settle()
    engine.live = {GranuleId(1): 1}
    engine.take(engine.remapper.on_shrink(1, 3, 2.0, engine.view()))
    engine.take(engine.remapper.on_step(engine.view(), 1.0))
    assert engine.live
    engine.needed = 1
    engine.settle(2.0)
    assert engine.mapped == {0}


def test_pool_at_its_minimum_refuses_to_shrink() -> None:
    engine = Engine(first=2, reserve=0, linked=True)
    engine.take(engine.remapper.on_shrink(3, 3, 1.0, engine.view()))
    assert engine.sent == [act.SendRefused(3, "the pool is at its minimum")]


def test_plan_of_the_agent_returns_what_it_frees() -> None:
    engine = Engine(first=1, reserve=0, linked=True)
    engine.take(engine.remapper.on_apply_plan(5, plan(0, 3, 6), ()))
    engine.settle()
    (done,) = engine.sent
    assert isinstance(done, act.SendDone)
    assert len(done.pages) == 8
    assert engine.plan == plan(0, 3, 6)


def test_refused_plan_gives_its_pages_back() -> None:
    engine = Engine(first=1, reserve=0, linked=True)
    pages = (PageId(1), PageId(2))
    engine.take(engine.remapper.on_apply_plan(5, plan(0, 3), pages))
    engine.work()
    engine.work(refuse=True)
    engine.settle()
    (refused,) = engine.sent
    assert isinstance(refused, act.SendRefused)
    assert len(refused.pages) == 2
    assert engine.plan == RESIDENT


def test_second_plan_is_refused_until_the_first_has_released_its_pages() -> None:
    engine = Engine(first=1, reserve=0, linked=True)
    engine.take(engine.remapper.on_apply_plan(1, plan(0, 4), ()))
    engine.take(engine.remapper.on_apply_plan(2, RESIDENT, ()))
    engine.settle()
    assert [type(a) for a in engine.sent] == [act.SendRefused, act.SendDone]


def test_engine_without_its_agent_keeps_what_it_has_and_rejoins_with_it() -> None:
    engine = Engine(first=1, reserve=0, linked=True)
    engine.take(engine.remapper.on_granted(0, (PageId(1), PageId(2), PageId(3), PageId(4))))
    engine.needed = 2
    engine.take(engine.remapper.on_step(engine.view(), 0.0))
    engine.remapper.on_link_lost()
    engine.settle()
    assert engine.added == {0, 1}
    engine.take(engine.remapper.on_link_restored())
    engine.work()
    assert engine.sent[-1] == act.SendRejoin(Holdings(in_flight=(PageId(4),)))


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: no page is lost, none is promised twice."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(first=2, reserve=0, linked=True, allowance=8)
        self.expected = self.engine.pages()
        self.now_s = 0.0
        self.operation = 0
        self.up = True
        self.sent = 0

    def _count_sent(self) -> None:
        """Pages that left the engine with a message."""
        for action in self.engine.sent[self.sent :]:
            if isinstance(action, act.SendDone | act.SendRefused | act.SendGiveBack):
                self.expected -= len(action.pages)
        self.sent = len(self.engine.sent)

    @rule(needed=st.integers(1, 12), later_s=st.floats(0, 1))
    def step(self, needed: int, later_s: float) -> None:
        self.now_s += later_s
        self.engine.needed = needed
        self.engine.take(self.engine.remapper.on_step(self.engine.view(), self.now_s))

    @precondition(lambda self: self.engine.orders)
    @rule(refuse=st.booleans())
    def work(self, refuse: bool) -> None:
        before = self.engine.page
        held = self.engine.pages()
        accepted = self.engine.orders[0]
        self.engine.work(refuse=refuse)
        if isinstance(accepted, Accept):
            assert self.engine.pages() == held + len(accepted.pages)
        assert self.engine.page >= before

    @precondition(lambda self: self.up)
    @rule(pages=st.integers(1, 10))
    def grant(self, pages: int) -> None:
        granted = tuple(self.engine._new_page() for _ in range(pages))
        self.expected += pages
        self.engine.take(self.engine.remapper.on_granted(1, granted))

    @precondition(lambda self: self.up)
    @rule()
    def deny(self) -> None:
        self.engine.take(self.engine.remapper.on_denied(1, self.now_s))

    @precondition(lambda self: self.up)
    @rule(pages=st.integers(1, 12))
    def shrink(self, pages: int) -> None:
        self.operation += 1
        self.engine.take(
            self.engine.remapper.on_shrink(
                self.operation, pages, self.now_s + 1, self.engine.view()
            )
        )

    @precondition(lambda self: self.up)
    @rule(index=st.integers(0, len(OWN_PLANS) - 1), extra=st.integers(0, 9))
    def apply_plan(self, index: int, extra: int) -> None:
        self.operation += 1
        pages = tuple(self.engine._new_page() for _ in range(extra))
        self.expected += extra
        self.engine.take(
            self.engine.remapper.on_apply_plan(self.operation, OWN_PLANS[index].plan, pages)
        )

    @rule()
    def link_changes(self) -> None:
        self.up = not self.up
        if self.up:
            self.engine.take(self.engine.remapper.on_link_restored())
        else:
            self.engine.remapper.on_link_lost()

    @rule(granule=st.integers(1, 11), blocks=st.integers(0, 3))
    def requests_come_and_go(self, granule: int, blocks: int) -> None:
        if GranuleId(granule) in self.engine.added - self.engine.draining or blocks == 0:
            self.engine.live[GranuleId(granule)] = blocks

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self._count_sent()
        coming = sum(len(o.pages) for o in self.engine.orders if isinstance(o, Accept))
        assert self.engine.pages() + coming == self.expected
        assert self.engine.remapper.reserve_pages >= 0

    def teardown(self) -> None:
        engine = self.engine
        engine.live.clear()
        engine.needed = 1
        for _ in range(60):
            self.now_s += 1.0
            engine.take(engine.remapper.on_step(engine.view(), self.now_s))
            while engine.orders:
                engine.work()
        assert not engine.remapper.busy
        assert engine.added == engine.remapper.mapped
        assert len(engine.reserve) == engine.remapper.reserve_pages


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
