"""How many units: the plan table of a model, pages freed against step time added (§5.3, §5.4).

A table is built once for each cost (that is: once for each bucket of batch sizes, and kept), by
trying every number of cycled units with every number of slots; a decision then looks up two
numbers.  From row to row pages freed ascend and added time never falls, so the first row that
frees enough is also the cheapest one, and the last row within a limit is the largest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from mirage_core.errors import MisuseError
from mirage_core.model import RESIDENT, RemapPlan, UnitGrain, UnitId
from mirage_core.policy.cost import TOLERANCE, StepCost, added_beyond, added_time_s, cycle_of
from mirage_core.policy.which_units import assign_slots, choose_even_units, extend_spaced


class SlotRule(Enum):
    """How many slots a plan may have: beta of §5.4, ablated in §7.5."""

    ONE = "one"
    """m = alpha + 1 always: least traffic"""
    TWO = "two"
    """m = alpha + 2 always: double buffering"""
    BEST = "best"
    """whichever number adds least time"""

    @property
    def counts(self) -> tuple[int, ...]:
        return {SlotRule.ONE: (1,), SlotRule.TWO: (2,), SlotRule.BEST: (1, 2, 3)}[self]


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One plan and what it brings and costs.

    freed_pages  pages freed against every unit resident
    added_s      seconds that it adds to a step; 0.0 where every transfer hides
    transfer_s   seconds of a step that the link is busy
    """

    plan: RemapPlan
    freed_pages: int
    added_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The plans of one model at one cost worth having, least to most pages freed.

    ``rows[0]`` is ``RESIDENT``; ``freed_pages`` ascends strictly, ``added_s`` never falls.
    """

    unit_pages: tuple[int, ...]
    cost: StepCost
    rows: tuple[PlanRow, ...]
    total_pages: int = field(init=False, repr=False, compare=False)
    resident_step_s: float = field(init=False, repr=False, compare=False)
    _freed_pages: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _added_s: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _transfer_s: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """ascending, and below the most pages that a row of so much traffic or less frees"""
    _freed_within: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _row_of: dict[RemapPlan, PlanRow] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        freed_pages = tuple(row.freed_pages for row in self.rows)
        added_s = tuple(row.added_s for row in self.rows)
        if freed_pages[:1] != (0,) or list(freed_pages) != sorted(set(freed_pages)):
            raise MisuseError("rows must begin with the resident plan and free ever more pages")
        if list(added_s) != sorted(added_s):
            raise MisuseError("a row that frees more pages must not add less time")
        object.__setattr__(self, "total_pages", sum(self.unit_pages))
        object.__setattr__(self, "resident_step_s", self.cost.resident_step_s)
        object.__setattr__(self, "_freed_pages", freed_pages)
        object.__setattr__(self, "_added_s", added_s)
        by_traffic = sorted(self.rows, key=lambda row: row.transfer_s)
        freed_within = tuple(accumulate((row.freed_pages for row in by_traffic), max))
        object.__setattr__(self, "_transfer_s", tuple(row.transfer_s for row in by_traffic))
        object.__setattr__(self, "_freed_within", freed_within)
        object.__setattr__(self, "_row_of", {row.plan: row for row in self.rows})

    def row_of(self, plan: RemapPlan) -> PlanRow:
        """What ``plan`` frees and costs, were it chosen at another cost; computed once a plan."""
        row = self._row_of.get(plan)
        if row is None:
            cycled = plan.cycled
            row = PlanRow(
                plan=plan,
                freed_pages=plan.freed_pages(self.unit_pages),
                added_s=added_time_s(plan, self.cost),
                transfer_s=sum(self.cost.transfer_s[unit] for unit in sorted(cycled)),
            )
            self._row_of[plan] = row
        return row

    def cheapest(self, pages: int) -> PlanRow:
        """The row that frees at least ``pages`` for least added time, or the last row."""
        return self.rows[min(bisect_left(self._freed_pages, pages), len(self.rows) - 1)]

    def most_freed_within(self, transfer_limit_s: float) -> int:
        """Pages of the row that frees most with so much traffic a step (``RESIDENT`` has none)."""
        return self._freed_within[bisect_right(self._transfer_s, transfer_limit_s) - 1]

    def largest(self, freed_limit_pages: int, added_limit_s: float) -> PlanRow:
        """The row that frees most within both limits (``RESIDENT`` is always within)."""
        count = min(
            bisect_right(self._freed_pages, freed_limit_pages),
            bisect_right(self._added_s, added_limit_s),
        )
        return self.rows[max(count, 1) - 1]


def largest_free_plan(table: PlanTable) -> PlanRow:
    """The plan that frees the most pages at no added step time (§5.3)."""
    return table.largest(table.total_pages, 0.0)


def cheapest_plan_freeing(
    pages: int, table: PlanTable, limit_pages: int, added_limit_s: float
) -> PlanRow | None:
    """The plan of least added step time that frees at least ``pages``; None if none may (§5.3).

    ``limit_pages`` is the most that may be freed (``most_freeable_pages``), ``added_limit_s`` the
    most that a step may grow.
    """
    row = table.cheapest(pages)
    within = pages <= row.freed_pages <= limit_pages and row.added_s <= added_limit_s
    return row if within else None


def most_freeable_pages(table: PlanTable, cap_share: float, floor_pages: int) -> int:
    """Pages that a model may lend: at most ``cap_share`` of its units' (§7.6.2), leaving
    ``floor_pages`` of them (§5.2, ``cold_start_floor_pages``)."""
    return max(0, min(int(table.total_pages * cap_share), table.total_pages - floor_pages))


def cold_start_floor_pages(table: PlanTable, prefill_s: float) -> int:
    """Unit pages that an inactive model keeps, so that its cold start stays hidden (§5.2, §5.3).

    Every cycled unit is fetched once during the first prefill: T_T * m <= T_prefill.  The paper
    counts the alpha units freed; alpha + beta move, so this counts m.
    """
    return table.total_pages - table.most_freed_within(prefill_s)


def choose_grain(tables: Mapping[UnitGrain, PlanTable]) -> UnitGrain:
    """The grain that leaves a model the fewest pages at no added step time, all of one page size.

    Pages kept are compared, not pages freed: smaller units round up to more pages in all.
    Ties: 1. less traffic; 2. fewer units.
    """

    def rank(grain: UnitGrain) -> tuple[int, float, int]:
        table = tables[grain]
        row = largest_free_plan(table)
        return (table.total_pages - row.freed_pages, row.transfer_s, len(table.unit_pages))

    return min(tables, key=rank)


def build_plan_table(cost: StepCost, unit_pages: Sequence[int], slots: SlotRule) -> PlanTable:
    """All plans worth having of a model whose unit ``u`` has ``unit_pages[u]`` pages."""
    if len(unit_pages) != cost.units:
        raise MisuseError(f"{len(unit_pages)} units have pages, {cost.units} have times")
    if min(unit_pages, default=1) < 1:
        raise MisuseError("a unit has at least one page")
    model = _Model(cost, tuple(unit_pages), cost.resident_step_s)
    even = _worth_having(_choices(model, slots), model)
    resident = PlanRow(RESIDENT, freed_pages=0, added_s=0.0, transfer_s=0.0)
    return PlanTable(
        unit_pages=model.unit_pages,
        cost=cost,
        rows=(resident, *(found.row for found in _undominated(list(_nested(even, model))))),
    )


@dataclass(frozen=True, slots=True)
class _Model:
    cost: StepCost
    unit_pages: tuple[int, ...]
    resident_step_s: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """A plan, and what is known of it without simulating it; ``family``: what it chose from."""

    cycled: tuple[UnitId, ...]
    slot_count: int
    family: tuple[UnitId, ...]
    freed_pages: int
    transfer_s: float


@dataclass(frozen=True, slots=True)
class _Priced:
    """A choice and the time that it adds to a step."""

    choice: _Choice
    added_s: float

    @property
    def price(self) -> tuple[float, float]:
        """Less is better: 1. added time; 2. traffic (the second objective of §5.4)."""
        return (self.added_s, self.choice.transfer_s)

    @property
    def row(self) -> PlanRow:
        choice = self.choice
        plan = RemapPlan(assign_slots(choice.cycled, choice.slot_count))
        return PlanRow(plan, choice.freed_pages, self.added_s, choice.transfer_s)


def _choices(model: _Model, slots: SlotRule) -> Iterator[_Choice]:
    """Every number of evenly spaced units, through every number of slots (§5.4)."""
    for family in _families(model.unit_pages):
        for count in range(2, len(family) + 1):
            cycled = choose_even_units(family, count)
            for slot_count in slots.counts:
                if count >= 2 * slot_count:  # a slot needs two units or more
                    yield _choose(cycled, slot_count, family, model)


def _families(unit_pages: Sequence[int]) -> Iterator[tuple[UnitId, ...]]:
    """Sets of units to choose from: those of each size, and those up to each size.

    A slot is as large as its largest unit, so units of one size waste nothing in it, while units
    of several sizes free more in all.  A model of equal units has one family.
    """
    sizes = sorted(set(unit_pages))
    for size in sizes:
        yield tuple(UnitId(u) for u, pages in enumerate(unit_pages) if pages == size)
    for size in sizes[1:]:
        yield tuple(UnitId(u) for u, pages in enumerate(unit_pages) if pages <= size)


def _choose(
    cycled: tuple[UnitId, ...], slot_count: int, family: tuple[UnitId, ...], model: _Model
) -> _Choice:
    pages = [model.unit_pages[unit] for unit in cycled]
    return _Choice(
        cycled=cycled,
        slot_count=slot_count,
        family=family,
        freed_pages=sum(pages) - sum(max(pages[slot::slot_count]) for slot in range(slot_count)),
        transfer_s=sum(model.cost.transfer_s[unit] for unit in cycled),
    )


def _price(choice: _Choice, model: _Model) -> _Priced:
    cycle = cycle_of(assign_slots(choice.cycled, choice.slot_count), model.cost)
    added_s = added_beyond(cycle.steady_step_s(), model.resident_step_s)
    # Whole multiples of the tolerance, so that rounding never tells equal plans apart.
    quantum_s = TOLERANCE * model.resident_step_s or 1.0
    return _Priced(choice, round(added_s / quantum_s) * quantum_s)


def _worth_having(choices: Iterator[_Choice], model: _Model) -> list[_Priced]:
    """Least to most pages freed, without those that another beats at as many pages or more."""
    kept: list[_Priced] = []
    for choice in sorted(
        (choice for choice in choices if choice.freed_pages),
        key=lambda choice: (-choice.freed_pages, choice.transfer_s, choice.slot_count),
    ):
        # A step is never shorter than its transfers: most choices need no simulation.
        at_least_s = added_beyond(choice.transfer_s, model.resident_step_s)
        if kept and (at_least_s, choice.transfer_s) >= kept[-1].price:
            continue
        found = _price(choice, model)
        if kept and found.price >= kept[-1].price:
            continue
        if kept and found.choice.freed_pages == kept[-1].choice.freed_pages:
            kept.pop()
        kept.append(found)
    return kept[::-1]


def _undominated(ascending: Sequence[_Priced]) -> list[_Priced]:
    """Without the rows that one further on, freeing more, does not exceed in price."""
    kept: list[_Priced] = []
    for found in reversed(ascending):
        if not kept or found.price < kept[-1].price:
            kept.append(found)
    return kept[::-1]


def _nested(even: Sequence[_Priced], model: _Model) -> Iterator[_Priced]:
    """Let each row's units contain the row's before, where that is no dearer (§5.4).

    Then stepping up the table makes no unit resident, so it costs no fetch, and stepping down
    fetches only what is given back.  A grown set may even be the cheaper one (units of several
    sizes are evenly spaced by number, not by time).
    """
    before: tuple[UnitId, ...] = ()
    for found in even:
        choice, best = found.choice, found
        if len(before) <= len(choice.cycled) and set(before) <= set(choice.family):
            cycled = extend_spaced(choice.family, before, len(choice.cycled))
            grown = _price(_choose(cycled, choice.slot_count, choice.family, model), model)
            if grown.choice.freed_pages == choice.freed_pages and grown.price <= found.price:
                best = grown
        yield best
        before = best.choice.cycled
