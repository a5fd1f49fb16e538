"""What an engine may do with its own layers, from its own measured times."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_core.control.remapper import OwnPlan
from mirage_core.policy.cost import StepCost
from mirage_core.policy.how_many import SlotRule, build_plan_table


def own_plans(
    unit_pages: Sequence[int],
    unit_compute_s: Sequence[float],
    unit_transfer_s: Sequence[float],
    *,
    added_share: float = 0.0,
    slots: SlotRule = SlotRule.BEST,
) -> tuple[OwnPlan, ...]:
    """Plans that lengthen a step by ``added_share`` at most, ascending in pages freed.

    Times are seconds a unit, in order of execution.  Until every unit has been timed there are
    no plans: what was not measured is not taken as free.
    """
    times = (*unit_compute_s, *unit_transfer_s)
    if not times or min(times) <= 0.0:
        return ()
    cost = StepCost(tuple(unit_compute_s), tuple(unit_transfer_s))
    table = build_plan_table(cost, unit_pages, slots)
    limit_s = added_share * cost.resident_step_s
    return tuple(OwnPlan(row.plan, row.freed_pages) for row in table.rows if row.added_s <= limit_s)


def last_resort_plans(unit_pages: Sequence[int]) -> tuple[OwnPlan, ...]:
    """Every plan worth having, whatever it adds to a step: for an engine that is stuck."""
    if not unit_pages:
        return ()
    units = len(unit_pages)
    cost = StepCost((1.0,) * units, tuple(float(pages) for pages in unit_pages))
    table = build_plan_table(cost, unit_pages, SlotRule.BEST)
    return tuple(OwnPlan(row.plan, row.freed_pages) for row in table.rows)
