"""Planning from any placement to any plan, replayed on a symbolic machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import SymbolicMachine, placements, plan_of, plans, units, with_contents

from mirage_core.errors import MisuseError
from mirage_core.memory.outcome import Refused
from mirage_core.model import RESIDENT, PageId, RemapPlan, UnitId
from mirage_core.weights.placement import Placement
from mirage_core.weights.transition import (
    Fetch,
    Transition,
    Unmap,
    missing_pages,
    plan_release,
    plan_transition,
)


def pages(*numbers: int) -> list[PageId]:
    return [PageId(number) for number in numbers]


def planned(before: Placement, plan: RemapPlan, reserve: list[PageId]) -> Transition:
    transition = plan_transition(before, plan, reserve)
    assert isinstance(transition, Transition)
    return transition


def resident(*sizes: int) -> Placement:
    """All units resident and present, on ascending pages."""
    total = sum(sizes)
    start = planned(Placement.nowhere(sizes), RESIDENT, pages(*range(total)))
    return start.after


def test_first_placement_maps_and_fetches_every_unit() -> None:
    start = planned(Placement.nowhere((2, 1)), RESIDENT, pages(0, 1, 2, 3))
    assert start.fetched == (0, 1)
    assert start.freed_pages == -3
    start.after.check()


def test_first_placement_may_share_slots_at_once() -> None:
    start = planned(Placement.nowhere((2, 2, 2)), plan_of((0, 2)), pages(0, 1, 2, 3))
    assert start.fetched == (1,)
    assert start.after.contents == (None,)
    assert start.after.span(UnitId(0)) == start.after.span(UnitId(2))


def test_lending_fetches_nothing() -> None:
    lend = planned(resident(2, 2, 2, 2), plan_of((0, 2), (1, 3)), [])
    assert lend.fetched == ()
    assert lend.freed_pages == 4
    assert lend.after.contents == (0, 1)


def test_slot_is_founded_on_the_member_that_runs_first() -> None:
    before = resident(2, 2, 2)
    lend = planned(before, plan_of((0, 2)), [])
    assert lend.after.slot_pages[0] == before.unit_pages[0]
    assert [step.unit for step in lend.steps if isinstance(step, Unmap)] == [2]


def test_slot_of_unequal_members_is_as_large_as_the_largest() -> None:
    lend = planned(resident(1, 3), plan_of((0, 1)), pages(7))
    assert len(lend.after.slot_pages[0]) == 3
    assert lend.after.slot_pages[0][:1] == lend.after.span(UnitId(0))
    assert lend.freed_pages == 1
    lend.after.check()


def test_surviving_slot_keeps_its_pages_and_its_bytes() -> None:
    lent = planned(resident(1, 1, 1, 1), plan_of((0, 1)), []).after
    ran_on = with_contents(lent, [1])
    more = planned(ran_on, plan_of((2, 3), (0, 1)), [])
    assert more.after.slot_pages[1] == lent.slot_pages[0]
    assert more.after.contents == (2, 1)
    assert more.fetched == ()


def test_unit_whose_bytes_lie_in_the_slot_becomes_resident_without_a_fetch() -> None:
    lent = with_contents(planned(resident(1, 1, 1), plan_of((0, 1, 2)), []).after, [1])
    back = planned(lent, RESIDENT, pages(8, 9))
    assert back.fetched == (0, 2)
    assert back.after.unit_pages[1] == lent.slot_pages[0]


def test_resident_units_that_stay_are_not_touched() -> None:
    lend = planned(resident(1, 1, 1, 1), plan_of((1, 3)), [])
    assert {step.unit for step in lend.steps} == {3}


def test_same_plan_takes_no_step() -> None:
    lent = planned(resident(1, 2, 3), plan_of((0, 2)), []).after
    assert planned(lent, plan_of((0, 2)), pages(9)).steps == ()


def test_unit_that_is_not_present_is_fetched_again_under_the_same_plan() -> None:
    before = resident(1, 1)
    broken = Placement(before.plan, before.sizes_pages, before.unit_pages, (), units(1))
    assert planned(broken, RESIDENT, []).steps == (Fetch(UnitId(0)),)


def test_too_few_pages_are_refused_with_their_number() -> None:
    lent = planned(resident(2, 2, 2), plan_of((0, 1, 2)), []).after
    refused = plan_transition(lent, RESIDENT, pages(8, 9, 10))
    assert isinstance(refused, Refused)
    assert "1 pages more" in refused.reason
    assert isinstance(plan_transition(lent, RESIDENT, pages(8, 9, 10, 11)), Transition)


def test_plan_of_another_model_is_misuse() -> None:
    with pytest.raises(MisuseError):
        plan_transition(resident(1, 1), plan_of((0, 2)), [])


@settings(max_examples=80, deadline=None)
@given(st.data(), placements())
def test_any_chain_of_transitions_keeps_every_page_and_every_byte(
    data: st.DataObject, placement: Placement
) -> None:
    placement.check()
    machine = SymbolicMachine(placement)
    reserve = pages(*range(100, 100 + data.draw(st.integers(0, 12))))
    everything = {*placement.owners(), *reserve}
    for plan in data.draw(st.lists(plans(len(placement.sizes_pages)), min_size=1, max_size=3)):
        transition = plan_transition(placement, plan, reserve)
        possible = plan.pages(placement.sizes_pages) <= placement.pages + len(reserve)
        assert isinstance(transition, Transition) == possible
        assert (missing_pages(placement, plan, len(reserve)) <= 0) == possible
        if isinstance(transition, Refused):
            continue
        after = transition.after
        after.check()
        machine.run(transition, reserve)
        machine.agrees_with(after)
        reserve = sorted(everything - after.owners().keys())
        assert after.pages == plan.pages(placement.sizes_pages)
        assert transition.freed_pages == placement.pages - after.pages
        assert len(reserve) + after.pages == len(everything)
        _fetches_are_minimal(transition)
        run_on = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        placement = with_contents(after, run_on)
        machine = SymbolicMachine(placement)


def _fetches_are_minimal(transition: Transition) -> None:
    """Bytes that are nowhere on the device must be fetched, so this bound cannot be beaten."""
    before, after = transition.before, transition.after
    must = {UnitId(unit) for unit in range(len(before.sizes_pages))}
    must = must - after.plan.cycled - before.present
    assert set(transition.fetched) == must
    for members, content in zip(after.plan, after.contents, strict=True):
        found = [unit for unit in members if unit in before.present]
        assert content == (found[0] if found else None)


@settings(max_examples=40, deadline=None)
@given(placements())
def test_release_leaves_nothing_mapped(placement: Placement) -> None:
    machine = SymbolicMachine(placement)
    release = plan_release(placement)
    machine.run(release, [])
    assert release.freed_pages == placement.pages
    assert all(page is None for span in machine.spans.values() for page in span)
    assert set(release.changed_pages) == placement.owners().keys()


@settings(max_examples=40, deadline=None)
@given(st.data(), placements())
def test_changed_pages_are_all_but_those_whose_bytes_are_kept(
    data: st.DataObject, placement: Placement
) -> None:
    plan = data.draw(plans(len(placement.sizes_pages)))
    transition = planned(placement, plan, pages(*range(100, 130)))
    machine = SymbolicMachine(placement)
    for page in transition.changed_pages:
        machine.bytes[page] = None
    machine.run(transition, pages(*range(100, 130)))
    machine.agrees_with(transition.after)
