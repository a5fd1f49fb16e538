"""Which units: even spacing, nested growth, slots in turn (§5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import even_cost, prove

import mirage_core.policy.how_many as how_many
from mirage_core.errors import MisuseError
from mirage_core.model import RESIDENT, RemapPlan, UnitId
from mirage_core.policy.how_many import PlanTable, SlotRule, build_plan_table
from mirage_core.policy.which_units import (
    assign_slots,
    choose_even_units,
    extend_spaced,
    units_made_resident,
)


def units(count: int) -> list[UnitId]:
    return [UnitId(unit) for unit in range(count)]


def least_gap(chosen: Sequence[int], total: int) -> int:
    ends = [*chosen[1:], chosen[0] + total]
    return min(end - start for start, end in zip(chosen, ends, strict=True))


@pytest.mark.parametrize("total", range(2, 11))
def test_even_spacing_maximises_the_least_gap_over_all_choices(total: int) -> None:
    for count in range(1, total + 1):
        best = max(least_gap(chosen, total) for chosen in combinations(range(total), count))
        assert least_gap(choose_even_units(units(total), count), total) == best


@prove
@given(st.integers(1, 60), st.data())
def test_extended_choice_contains_the_former_one(total: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(units(total))))
    count = data.draw(st.integers(len(chosen), total))
    grown = extend_spaced(units(total), chosen, count)
    assert chosen <= set(grown)
    assert len(grown) == len(set(grown)) == count
    assert list(grown) == sorted(grown)


def test_a_choice_is_extended_in_its_widest_gap() -> None:
    assert extend_spaced(units(12), {UnitId(0), UnitId(3)}, 3) == (0, 3, 7)
    assert extend_spaced(units(8), {UnitId(6), UnitId(1)}, 4) == (1, 3, 4, 6)


def test_neighbours_never_share_a_slot_while_there_are_two() -> None:
    members = assign_slots(choose_even_units(units(12), 6), 2)
    assert members == ((0, 4, 8), (2, 6, 10))


@pytest.mark.parametrize("ratio", [2.0, 4.6, 9.3])
@pytest.mark.parametrize("rule", SlotRule)
def test_nested_growth_fetches_less_than_even_sets_at_no_added_step_time(
    ratio: float, rule: SlotRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost, unit_pages = even_cost(80, ratio), (1,) * 80

    def fetched(table: PlanTable) -> int:
        up = zip(table.rows, table.rows[1:], strict=False)
        return sum(len(units_made_resident(less.plan, more.plan)) for less, more in up)

    nested = build_plan_table(cost, unit_pages, rule)
    monkeypatch.setattr(how_many, "_nested", lambda rows, model: iter(rows))
    even = build_plan_table(cost, unit_pages, rule)
    assert fetched(nested) < 0.7 * fetched(even)
    steps = {row.freed_pages: row.added_s for row in even.rows}
    assert all(row.added_s <= steps[row.freed_pages] for row in nested.rows)
    assert steps.keys() == {row.freed_pages for row in nested.rows}


def test_giving_units_up_fetches_nothing_for_good() -> None:
    plan = RemapPlan(((UnitId(0), UnitId(2)),))
    assert units_made_resident(RESIDENT, plan) == frozenset()
    assert units_made_resident(plan, RESIDENT) == {0, 2}


def test_more_units_than_there_are_is_misuse() -> None:
    with pytest.raises(MisuseError):
        choose_even_units(units(3), 4)
    with pytest.raises(MisuseError):
        extend_spaced(units(3), {UnitId(7)}, 2)
    with pytest.raises(MisuseError):
        extend_spaced(units(3), {UnitId(0), UnitId(1)}, 1)
