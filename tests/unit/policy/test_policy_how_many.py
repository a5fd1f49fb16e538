"""How many units: FACTS' table, brute force, limits and grains (§5.3)."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import even_cost, prove, table

from mirage_core.errors import MisuseError
from mirage_core.model import RESIDENT, RemapPlan, UnitGrain, UnitId
from mirage_core.policy.cost import StepCost, added_time_s
from mirage_core.policy.how_many import (
    PlanRow,
    PlanTable,
    SlotRule,
    build_plan_table,
    cheapest_plan_freeing,
    choose_grain,
    cold_start_floor_pages,
    largest_free_plan,
    most_freeable_pages,
)
from mirage_core.policy.which_units import assign_slots, choose_even_units

# FACTS: layers of 40 freed without a stall, for units of a whole, half, quarter, eighth layer.
STALL_FREE_LAYERS = {
    9.3: (2, 3, 3.5, 4),
    7.1: (3, 4, 5, 5.25),
    4.6: (6, 7, 8, 8.25),
    3.7: (8, 9, 10, 10.5),
    2.0: (18, 19, 19.5, 19.75),
}


@pytest.mark.parametrize(
    ("ratio", "parts", "layers"),
    [
        (ratio, parts, layers)
        for ratio, row in STALL_FREE_LAYERS.items()
        for parts, layers in zip((1, 2, 4, 8), row, strict=True)
    ],
)
def test_stall_free_layers_of_forty_are_those_of_the_trial(
    ratio: float, parts: int, layers: float
) -> None:
    units = 40 * parts
    plans = build_plan_table(even_cost(units, ratio, 1 / parts), (1,) * units, SlotRule.BEST)
    assert largest_free_plan(plans).freed_pages / parts == layers


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.7, 2.0, 3.3, 5.0])
@pytest.mark.parametrize("units", range(2, 9))
def test_no_choice_of_units_frees_more_at_no_added_time(units: int, ratio: float) -> None:
    cost = even_cost(units, ratio)
    most = 0
    for slots in (1, 2, 3):
        for count in range(2 * slots, units + 1):
            if count - slots > most and any(
                not added_time_s(RemapPlan(assign_slots([*map(UnitId, chosen)], slots)), cost)
                for chosen in combinations(range(units), count)
            ):
                most = count - slots
    plans = build_plan_table(cost, (1,) * units, SlotRule.BEST)
    assert largest_free_plan(plans).freed_pages == most


@st.composite
def models(draw: st.DrawFn) -> tuple[StepCost, tuple[int, ...]]:
    """Layers alike, of one to three units of different sizes, times as measured."""
    layers, parts = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    of_layer = st.lists(st.floats(0.01, 10.0), min_size=parts, max_size=parts)
    pages = draw(st.lists(st.integers(1, 6), min_size=parts, max_size=parts))
    cost = StepCost(
        tuple(draw(of_layer)) * layers,
        tuple(draw(st.floats(0.1, 5.0)) * size for size in pages) * layers,
        draw(st.floats(0.0, 5.0)),
    )
    return cost, tuple(pages) * layers


@prove
@given(models(), st.sampled_from(SlotRule))
def test_every_row_states_what_its_plan_frees_and_costs(
    model: tuple[StepCost, tuple[int, ...]], rule: SlotRule
) -> None:
    cost, unit_pages = model
    for row in build_plan_table(cost, unit_pages, rule).rows:
        assert row.freed_pages == row.plan.freed_pages(unit_pages)
        assert row.added_s == pytest.approx(added_time_s(row.plan, cost), rel=1e-6, abs=1e-6)
        assert row.transfer_s == pytest.approx(sum(cost.transfer_s[u] for u in row.plan.cycled))
        assert not row.plan.slots or len(row.plan.slots) in rule.counts


@prove
@given(models(), st.sampled_from(SlotRule), st.data())
def test_no_even_plan_frees_as_much_for_less_time(
    model: tuple[StepCost, tuple[int, ...]], rule: SlotRule, data: st.DataObject
) -> None:
    cost, unit_pages = model
    plans = build_plan_table(cost, unit_pages, rule)
    sizes = sorted(set(unit_pages))
    largest = data.draw(st.sampled_from(sizes))
    smallest = data.draw(st.sampled_from([sizes[0], largest]))
    family = [UnitId(u) for u, pages in enumerate(unit_pages) if smallest <= pages <= largest]
    for slots in rule.counts:
        for count in range(2 * slots, len(family) + 1):
            plan = RemapPlan(assign_slots(choose_even_units(family, count), slots))
            row = plans.cheapest(plan.freed_pages(unit_pages))
            assert row.freed_pages >= plan.freed_pages(unit_pages)
            assert row.added_s <= added_time_s(plan, cost) + 1e-6 * cost.resident_step_s


@prove
@given(models(), st.integers(0, 100), st.integers(0, 100), st.floats(0, 100))
def test_cheapest_plan_is_the_first_that_frees_enough_within_limits(
    model: tuple[StepCost, tuple[int, ...]], pages: int, limit_pages: int, added_limit_s: float
) -> None:
    plans = build_plan_table(*model, SlotRule.BEST)
    expected = min(
        (
            row
            for row in plans.rows
            if pages <= row.freed_pages <= limit_pages and row.added_s <= added_limit_s
        ),
        key=lambda row: (row.added_s, row.freed_pages),
        default=None,
    )
    assert cheapest_plan_freeing(pages, plans, limit_pages, added_limit_s) == expected
    within = [
        row for row in plans.rows if row.freed_pages <= limit_pages and row.added_s <= added_limit_s
    ]
    assert plans.largest(limit_pages, added_limit_s) == within[-1]


def test_always_two_slots_frees_more_than_always_one_for_large_shares() -> None:
    # §7.5: m = alpha + 2 wins as alpha grows; the best of both is never worse than either.
    freed = {
        rule: largest_free_plan(build_plan_table(even_cost(40, 4.6), (1,) * 40, rule)).freed_pages
        for rule in SlotRule
    }
    assert freed == {SlotRule.ONE: 5, SlotRule.TWO: 6, SlotRule.BEST: 6}


def test_cap_and_floor_both_hold() -> None:
    plans = table(units=12, pages=4)
    assert most_freeable_pages(plans, cap_share=0.5, floor_pages=0) == 24
    assert most_freeable_pages(plans, cap_share=1.0, floor_pages=40) == 8
    assert most_freeable_pages(plans, cap_share=1.0, floor_pages=1000) == 0


def test_cold_start_floor_counts_every_unit_that_moves() -> None:
    # T_T = 3 s a unit of 4 pages: ten units move within 30 s, two of them for the two slots.
    plans = table(units=12, ratio=3.0, pages=4)
    assert plans.total_pages - cold_start_floor_pages(plans, prefill_s=30.0) == 8 * 4
    assert cold_start_floor_pages(plans, prefill_s=0.0) == plans.total_pages


def test_finer_grain_wins_where_slots_of_layers_waste_too_much() -> None:
    def plans(parts: int, ratio: float) -> PlanTable:
        cost = even_cost(40 * parts, ratio, 1 / parts)
        return build_plan_table(cost, (8 // parts,) * (40 * parts), SlotRule.BEST)

    grains = {UnitGrain.LAYER: 1, UnitGrain.HALF: 2, UnitGrain.LINEAR: 4}
    assert choose_grain({g: plans(k, 4.6) for g, k in grains.items()}) is UnitGrain.LINEAR
    # On a slow link nothing can be lent while active: the coarsest, with the fewest units, stays.
    assert choose_grain({g: plans(k, 1e4) for g, k in grains.items()}) is UnitGrain.LAYER


def test_a_plan_of_another_cost_is_priced_at_the_present_one() -> None:
    plan = build_plan_table(even_cost(12, 1.0), (4,) * 12, SlotRule.ONE).rows[-1].plan
    row = table(units=12, ratio=50.0, pages=4).row_of(plan)
    assert row.freed_pages == plan.freed_pages((4,) * 12)
    assert row.added_s == pytest.approx(added_time_s(plan, even_cost(12, 50.0)))


def test_a_model_of_one_unit_lends_nothing() -> None:
    assert table(units=1).rows == (PlanRow(RESIDENT, 0, 0.0, 0.0),)


def test_a_table_refuses_rows_out_of_order() -> None:
    rows = table().rows
    with pytest.raises(MisuseError):
        PlanTable((4,) * 12, even_cost(12, 3.0), rows[1:])
    with pytest.raises(MisuseError):
        PlanTable((4,) * 12, even_cost(12, 3.0), rows[::-1])
    with pytest.raises(MisuseError):
        build_plan_table(even_cost(3, 1.0), (1, 1), SlotRule.ONE)
    with pytest.raises(MisuseError):
        build_plan_table(even_cost(2, 1.0), (1, 0), SlotRule.ONE)


@prove
@given(st.integers(0, 60))
def test_lookups_stay_within_the_table(pages: int) -> None:
    plans = table()
    assert plans.cheapest(pages) in plans.rows
    assert plans.largest(pages, math.inf).freed_pages <= pages
