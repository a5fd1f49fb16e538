"""Step time: exact against long simulation, closed forms and FACTS of §5.4."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import even_cost, prove

from mirage_core.errors import MisuseError
from mirage_core.model import RESIDENT, RemapPlan, UnitId
from mirage_core.policy.cost import (
    StepCost,
    added_time_s,
    closed_form_step_s,
    cycle_of,
    steady_step_s,
)
from mirage_core.policy.which_units import assign_slots, choose_even_units

times = st.floats(0.0, 10.0, allow_nan=False)


@st.composite
def plans_with_costs(draw: st.DrawFn) -> tuple[RemapPlan, StepCost]:
    """Any plan at all: any units, in slots of any sizes."""
    units = draw(st.integers(2, 12))
    cost = StepCost(
        tuple(draw(st.lists(times, min_size=units, max_size=units))),
        tuple(draw(st.lists(times, min_size=units, max_size=units))),
        draw(times),
    )
    slots: dict[int, list[UnitId]] = {}
    for unit in range(units):
        slots.setdefault(draw(st.integers(0, 4)), []).append(UnitId(unit))
    members = tuple(tuple(us) for slot, us in slots.items() if slot and len(us) > 1)
    return RemapPlan(members), cost


def simulate_step_s(plan: RemapPlan, cost: StepCost, steps: int) -> float:
    """Average step time over ``steps`` after as many, by playing units and fetches one by one."""
    slot_of = {unit: slot for slot, members in enumerate(plan.slots) for unit in members}
    held = [members[0] for members in plan.slots]
    fetched_s = [0.0] * len(plan.slots)
    now_s = link_free_s = middle_s = 0.0
    for step in range(2 * steps):
        for number in range(cost.units):
            unit = UnitId(number)
            if unit in slot_of:
                slot = slot_of[unit]
                assert held[slot] == unit
                now_s = max(now_s, fetched_s[slot])
            now_s += cost.compute_s[unit]
            if unit in slot_of:
                members = plan.slots[slot]
                held[slot] = members[(members.index(unit) + 1) % len(members)]
                link_free_s = max(now_s, link_free_s) + cost.transfer_s[held[slot]]
                fetched_s[slot] = link_free_s
        now_s += cost.rest_s
        if step == steps - 1:
            middle_s = now_s
    return (now_s - middle_s) / steps


@prove
@given(plans_with_costs())
def test_steady_step_is_what_a_long_simulation_averages(
    plan_cost: tuple[RemapPlan, StepCost],
) -> None:
    plan, cost = plan_cost
    steps = 400
    # What a simulation starts with, at most all fetches of a step, wears off within its steps.
    slack_s = 2 * (sum(cost.transfer_s) + cost.resident_step_s) / steps
    assert simulate_step_s(plan, cost, steps) == pytest.approx(
        steady_step_s(plan, cost), rel=1e-9, abs=slack_s
    )


@prove
@given(plans_with_costs())
def test_steady_step_is_never_shorter_than_its_bounds(
    plan_cost: tuple[RemapPlan, StepCost],
) -> None:
    plan, cost = plan_cost
    step_s = steady_step_s(plan, cost)
    assert step_s >= cost.resident_step_s * (1 - 1e-9)
    assert added_time_s(plan, cost) == pytest.approx(step_s - cost.resident_step_s, abs=1e-6)
    if plan.slots:
        assert step_s >= cycle_of(plan.slots, cost).step_bound_s * (1 - 1e-9)


@prove
@given(st.integers(2, 12), st.integers(2, 6), st.sampled_from([1, 2]), st.floats(0.1, 12.0))
def test_closed_forms_are_exact_where_gaps_are_whole(
    gap: int, half: int, slots: int, ratio: float
) -> None:
    cycled = 2 * half  # even, so that two slots take turns round the whole circle
    units = gap * cycled
    plan = RemapPlan(assign_slots(choose_even_units([*map(UnitId, range(units))], cycled), slots))
    closed_s = closed_form_step_s(units, cycled - slots, slots, 1.0, ratio)
    assert steady_step_s(plan, even_cost(units, ratio)) == pytest.approx(closed_s, rel=1e-9)


@prove
@given(st.integers(4, 40), st.data())
def test_closed_forms_bound_the_exact_step_from_below(units: int, data: st.DataObject) -> None:
    slots = data.draw(st.sampled_from([1, 2]))
    cycled = data.draw(st.integers(2 * slots, units))
    ratio = data.draw(st.floats(0.1, 12.0))
    members = assign_slots(choose_even_units([*map(UnitId, range(units))], cycled), slots)
    exact_s = steady_step_s(RemapPlan(members), even_cost(units, ratio))
    assert exact_s >= closed_form_step_s(units, cycled - slots, slots, 1.0, ratio) * (1 - 1e-9)


def test_two_slots_win_over_one_once_freed_layers_pass_the_ratio() -> None:
    # Both stall at n = 40, r = 9.37; FACTS: two slots win when alpha + 1 > r.
    layers, ratio = 40, 9.37
    for freed in range(3, 20):
        one, two = (closed_form_step_s(layers, freed, slots, 1.0, ratio) for slots in (1, 2))
        assert (two < one) == (freed + 1 > ratio and one > layers)


def test_resident_plan_adds_no_time() -> None:
    assert added_time_s(RESIDENT, even_cost(8, 100.0)) == 0.0


def test_paper_example_of_first_and_last_layer_stalls_where_even_spacing_does_not() -> None:
    # §5.4: Model-C, 8 layers; layers 1 and 5 hide a transfer of three layers' time, 1 and 8 do not.
    cost = even_cost(8, 3.0)
    assert added_time_s(RemapPlan(((UnitId(0), UnitId(4)),)), cost) == 0.0
    assert added_time_s(RemapPlan(((UnitId(0), UnitId(7)),)), cost) == pytest.approx(3.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_cost_refuses_times_that_are_no_measurement(bad: float) -> None:
    with pytest.raises(MisuseError):
        StepCost((1.0, bad), (1.0, 1.0))


def test_cost_refuses_a_plan_of_another_model() -> None:
    with pytest.raises(MisuseError):
        steady_step_s(RemapPlan(((UnitId(0), UnitId(9)),)), even_cost(4, 1.0))
