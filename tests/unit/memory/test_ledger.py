"""The agent's page ledger, by example and against a model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mirage_core.errors import MisuseError, OutOfPagesError, OwnershipError
from mirage_core.memory.ledger import Holding, Ledger
from mirage_core.model import EngineId, OperationId, PageId

A, B = EngineId("a"), EngineId("b")


def op(number: int) -> OperationId:
    return OperationId(number)


def pages(*numbers: int) -> list[PageId]:
    return [PageId(number) for number in numbers]


def test_taken_pages_are_in_flight_until_confirmed() -> None:
    ledger = Ledger(4)
    taken = ledger.take(A, 3, op(1))
    assert (ledger.free_pages, ledger.in_flight_pages(A), ledger.held_pages(A)) == (1, 3, 0)
    assert ledger.owner(taken[0]) == Holding(A, op(1))
    assert ledger.confirm(op(1)) == taken
    assert (ledger.free_pages, ledger.in_flight_pages(A), ledger.held_pages(A)) == (1, 0, 3)
    assert ledger.owner(taken[0]) == Holding(A)
    ledger.check()


def test_refunded_pages_are_free_again() -> None:
    ledger = Ledger(4)
    ledger.take(A, 3, op(1))
    ledger.refund(op(1))
    assert ledger.free_pages == 4
    assert not ledger.engines()
    ledger.check()


def test_operation_ends_once() -> None:
    ledger = Ledger(4)
    ledger.take(A, 1, op(1))
    with pytest.raises(MisuseError):
        ledger.take(B, 1, op(1))
    ledger.confirm(op(1))
    for end in (ledger.confirm, ledger.refund):
        with pytest.raises(MisuseError):
            end(op(1))
    assert ledger.held_pages(A) == 1
    ledger.check()


def test_more_pages_than_are_free_are_refused_whole() -> None:
    ledger = Ledger(4)
    ledger.take(A, 3, op(1))
    with pytest.raises(OutOfPagesError):
        ledger.take(B, 2, op(2))
    assert ledger.free_pages == 1
    ledger.check()


def test_taken_pages_are_consecutive_where_a_run_is_long_enough() -> None:
    ledger = Ledger(10)
    ledger.adopt(A, pages(2, 6))  # free runs: 0-1, 3-5, 7-9
    assert ledger.take(B, 3, op(1)) == (3, 4, 5)
    assert ledger.take(B, 2, op(2)) == (0, 1)
    assert ledger.take(B, 1, op(3)) == (7,)
    ledger.check()


def test_no_run_long_enough_takes_the_longest_first() -> None:
    ledger = Ledger(10)
    ledger.adopt(A, pages(2, 6))
    assert ledger.take(B, 5, op(1)) == (7, 8, 9, 0, 1)
    ledger.check()


def test_engine_gives_back_only_what_it_holds() -> None:
    ledger = Ledger(4)
    ledger.adopt(A, pages(0, 1))
    ledger.take(A, 1, op(1))
    for wrong in (pages(0, 3), pages(0, 2), pages(0, 0), pages(4), pages(-1)):
        with pytest.raises(OwnershipError):
            ledger.give_back(A, wrong)
    with pytest.raises(OwnershipError):
        ledger.give_back(B, pages(0))
    assert ledger.held_pages(A) == 2
    ledger.give_back(A, pages(1, 0))
    assert ledger.free_pages == 3
    ledger.check()


def test_page_of_one_engine_is_not_adopted_for_another() -> None:
    ledger = Ledger(4)
    ledger.adopt(A, pages(3, 0))
    with pytest.raises(OwnershipError):
        ledger.adopt(B, pages(1, 3))
    assert ledger.free_pages == 2
    assert ledger.engines() == {A}
    ledger.check()


def test_dead_engine_leaves_all_its_pages() -> None:
    ledger = Ledger(6)
    ledger.adopt(A, pages(0, 1))
    ledger.take(A, 1, op(1))
    ledger.adopt(B, pages(5))
    assert ledger.forget_engine(A) == (0, 1, 2)
    assert ledger.engines() == {B}
    assert ledger.free_pages == 5
    with pytest.raises(MisuseError):
        ledger.confirm(op(1))
    assert ledger.forget_engine(A) == ()
    ledger.check()


def test_check_sees_a_page_with_two_owners_and_a_page_with_none() -> None:
    ledger = Ledger(4)
    ledger.adopt(A, pages(0))
    ledger._held[B] = {PageId(0)}
    with pytest.raises(OwnershipError):
        ledger.check()
    del ledger._held[B]
    ledger._held[A].clear()
    with pytest.raises(OwnershipError):
        ledger.check()


class LedgerMachine(RuleBasedStateMachine):
    """Any order of valid and invalid calls against a dict from page to owner."""

    count = 12

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.count)
        self.owners: dict[int, Holding] = {}
        self.next_operation = 0

    engines = st.sampled_from([A, B])
    page_sets = st.lists(st.integers(0, 11), unique=True, max_size=5)

    @rule(engine=engines, count=st.integers(1, 6))
    def take(self, engine: EngineId, count: int) -> None:
        self.next_operation += 1
        operation = op(self.next_operation)
        if count > self.count - len(self.owners):
            with pytest.raises(OutOfPagesError):
                self.ledger.take(engine, count, operation)
            return
        taken = self.ledger.take(engine, count, operation)
        assert len(set(taken)) == count
        assert not set(taken) & set(self.owners)
        self.owners.update(dict.fromkeys(taken, Holding(engine, operation)))

    @rule(operation=st.integers(1, 8), confirmed=st.booleans())
    def end(self, operation: int, confirmed: bool) -> None:
        mine = [page for page, owner in self.owners.items() if owner.operation == operation]
        act = self.ledger.confirm if confirmed else self.ledger.refund
        if not mine:
            with pytest.raises(MisuseError):
                act(op(operation))
            return
        assert sorted(act(op(operation))) == sorted(mine)
        for page in mine:
            engine = self.owners.pop(page).engine
            if confirmed:
                self.owners[page] = Holding(engine)

    @rule(engine=engines, wanted=page_sets)
    def adopt(self, engine: EngineId, wanted: list[int]) -> None:
        if set(wanted) & set(self.owners):
            with pytest.raises(OwnershipError):
                self.ledger.adopt(engine, pages(*wanted))
            return
        self.ledger.adopt(engine, pages(*wanted))
        self.owners.update(dict.fromkeys(wanted, Holding(engine)))

    @rule(engine=engines, wanted=page_sets)
    def give_back(self, engine: EngineId, wanted: list[int]) -> None:
        if any(self.owners.get(page) != Holding(engine) for page in wanted):
            with pytest.raises(OwnershipError):
                self.ledger.give_back(engine, pages(*wanted))
            return
        self.ledger.give_back(engine, pages(*wanted))
        for page in wanted:
            del self.owners[page]

    @rule(engine=engines)
    def forget(self, engine: EngineId) -> None:
        mine = [page for page, owner in self.owners.items() if owner.engine == engine]
        assert list(self.ledger.forget_engine(engine)) == sorted(mine)
        for page in mine:
            del self.owners[page]

    @invariant()
    def agrees(self) -> None:
        self.ledger.check()
        assert self.ledger.free_pages == self.count - len(self.owners)
        for page in range(self.count):
            assert self.ledger.owner(PageId(page)) == self.owners.get(page)
        for engine in (A, B):
            held = [owner for owner in self.owners.values() if owner == Holding(engine)]
            assert self.ledger.held_pages(engine) == len(held)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
