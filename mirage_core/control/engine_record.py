"""What the arbiter knows of one engine, and the view of it that policy decides from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mirage_core.cluster_model import Turn
from mirage_core.control.directed import ModelDirection
from mirage_core.errors import ProtocolError
from mirage_core.model import RESIDENT, EngineId, ModelName, OperationId, RemapPlan
from mirage_core.policy.cost import StepCost
from mirage_core.policy.how_many import (
    PlanTable,
    SlotRule,
    build_plan_table,
    cold_start_floor_pages,
)
from mirage_core.policy.view import EngineView
from mirage_core.policy.when import Reversion, UseWatch, watch_use
from mirage_core.wire.messages import Describe, Done, Report

COST_STEP = 1.25
"""A plan table serves as long as times differ from its own by less than this factor."""
MAX_PLAN_TABLES = 16
UNMEASURED_PAGE_S = 1e-3
"""Transfer time of a page until there is a measured one; with next to no compute to hide it
behind, because what was not measured is not taken as free."""
UNMEASURED_UNIT_S = 1e-6
"""Compute time of a unit until there is a measured one."""


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that an engine was asked for and has not answered.

    plan            the plan to apply; None for a Shrink
    pages_taken     free pages that went with it
    pages_expected  pages that it will bring back
    traceparent     trace context of the directive that it follows from; empty if it is none's
    """

    operation: OperationId
    engine: EngineId
    asked_s: float
    pages_expected: int
    plan: RemapPlan | None = None
    pages_taken: int = 0
    traceparent: str = ""


@dataclass(slots=True)
class EngineRecord:
    """Mutable: the arbiter changes it as the engine speaks."""

    engine: EngineId
    model: ModelName
    linked: bool = False
    """its scheduler can be asked; after a lost link only once it has rejoined"""
    scheduler_seen: bool = False
    description: Describe | None = None
    plan: RemapPlan = RESIDENT
    active: bool = False
    last_active_s: float = -math.inf
    active_since_s: float = -math.inf
    spare_pages: int = 0
    prefill_s: float = 0.0
    use_watch: UseWatch | None = None
    measured: bool = False
    """every unit has both of its times"""
    most_lendable_pages: int = 0
    """of its own units to its own pool, at the best cost seen"""
    refusals: int = 0
    """in a row"""
    not_before_s: float = -math.inf
    """asked for nothing until then"""
    direction: ModelDirection | None = None
    """what the cluster controller directs for its model"""
    _tables: dict[tuple[int, int], PlanTable] = field(default_factory=dict)
    _table: PlanTable | None = None

    # ---- what it says

    def describe(self, description: Describe, slots: SlotRule) -> None:
        self.description = description
        self.plan = description.plan
        self.most_lendable_pages = 0
        self._tables.clear()
        self._choose_table((), (), slots)

    def report(self, report: Report, now_s: float, slots: SlotRule) -> bool:
        """Take in a report; whether the engine's cost is another now.

        ProtocolError, and nothing changed, if it does not fit the model.
        """
        description = self._described()
        if report.plan != self.plan:
            self._require_plan(report.plan, description)
        for times in (report.unit_compute_s, report.unit_transfer_s):
            if len(times) not in (0, len(description.unit_pages)):
                raise ProtocolError(f"{len(times)} times for {len(description.unit_pages)} units")
        self.plan = report.plan
        if report.active and not self.active:
            self.active_since_s = now_s
        if report.active or self.active:
            self.last_active_s = now_s
        elif self.last_active_s == -math.inf and report.idle_s > 0:
            self.last_active_s = now_s - report.idle_s
        self.active = report.active
        needed_granules = max(report.needed_granules, description.pool_min_granules)
        spare_granules = min(report.spare_granules, report.pool_granules - needed_granules)
        self.spare_pages = max(0, spare_granules) * description.granule_pages
        before = (self._table, self.prefill_s)
        self.prefill_s = report.prefill_s
        self._choose_table(report.unit_compute_s, report.unit_transfer_s, slots)
        return before[0] is not self._table or before[1] != self.prefill_s

    def done(self, done: Done) -> None:
        """Take in what an operation left behind; ProtocolError if it does not fit the model."""
        self._require_plan(done.plan, self._described())
        self.plan = done.plan
        self.refusals = 0
        self.not_before_s = -math.inf

    def gave_back(self, pages: int) -> None:
        """Until the next report, so much less of the pool is spare."""
        self.spare_pages = max(0, self.spare_pages - pages)

    def watch(
        self,
        held_pages: int,
        pending: Iterable[PendingOperation],
        now_s: float,
        reversion: Reversion,
    ) -> None:
        """One more look at how much of the pool is used; ``held_pages`` and ``pending`` as for
        ``view``, which this does without: it is done at each report of each engine."""
        _, pool_pages, spare_pages = self._pool(held_pages, pending)
        self.use_watch = watch_use(self.use_watch, pool_pages - spare_pages, now_s, reversion)

    def forget_link(self) -> None:
        """The scheduler is gone, or starts anew: what it last said holds no longer."""
        self.linked = False
        self.use_watch = None
        self.spare_pages = 0

    # ---- what follows

    @property
    def priority(self) -> int:
        """In force; 0 before it has described itself."""
        if self.direction is not None and self.direction.priority is not None:
            return self.direction.priority
        return self.description.priority if self.description is not None else 0

    @property
    def pinned(self) -> bool:
        """In force."""
        if self.direction is not None and self.direction.pinned is not None:
            return self.direction.pinned
        return self.description.pinned if self.description is not None else False

    @property
    def static_pages(self) -> int:
        return self._described().static_pages

    @property
    def least_pages(self) -> int:
        """Pages that it needs whatever happens, its units apart."""
        description = self._described()
        return self.static_pages + description.pool_min_granules * description.granule_pages

    @property
    def pool_max_pages(self) -> int:
        description = self._described()
        return description.pool_max_granules * description.granule_pages

    def view(self, held_pages: int, pending: Iterable[PendingOperation]) -> EngineView:
        """The engine as it will be once it has done what it was asked for.

        ``held_pages`` are the pages that the ledger has under its name, in flight included; what
        weights do not occupy counts as pool, so pages granted but not yet mapped do too.
        """
        description = self._described()
        table = self._require_table()
        plan, pool_pages, spare_pages = self._pool(held_pages, pending)
        active, keeps_floor, least_pages, most_pages = self.active, self.prefill_s > 0, 0, None
        if (direction := self.direction) is not None:
            active = active or direction.turn is Turn.ACTIVE
            keeps_floor = keeps_floor and not direction.lends_all
            least_pages, most_pages = direction.lending_bounds(table.total_pages)
        return EngineView(
            engine=self.engine,
            model=self.model,
            priority=self.priority,
            active=active,
            last_active_s=self.last_active_s,
            plan=plan,
            plan_table=table,
            pool_pages=pool_pages,
            pool_spare_pages=spare_pages,
            pool_min_pages=description.pool_min_granules * description.granule_pages,
            floor_pages=cold_start_floor_pages(table, self.prefill_s) if keeps_floor else 0,
            granule_pages=description.granule_pages,
            use_watch=self.use_watch,
            active_since_s=self.active_since_s,
            pinned=self.pinned,
            lend_least_pages=least_pages,
            lend_most_pages=most_pages,
        )

    # ---- parts

    def _pool(
        self, held_pages: int, pending: Iterable[PendingOperation]
    ) -> tuple[RemapPlan, int, int]:
        """With all that is pending done: the plan, the pool's pages, the spare ones of it."""
        table, plan, shrinking_pages = self._require_table(), self.plan, 0
        for operation in pending:
            held_pages -= operation.pages_expected
            if operation.plan is None:
                shrinking_pages += operation.pages_expected
            else:
                plan = operation.plan
        unit_pages = table.total_pages - table.row_of(plan).freed_pages
        pool_pages = max(0, held_pages - self.static_pages - unit_pages)
        return plan, pool_pages, min(max(0, self.spare_pages - shrinking_pages), pool_pages)

    def _described(self) -> Describe:
        if self.description is None:
            raise ProtocolError(f"engine {self.engine} has not described itself")
        return self.description

    def _require_table(self) -> PlanTable:
        if self._table is None:
            raise ProtocolError(f"engine {self.engine} has not described itself")
        return self._table

    @staticmethod
    def _require_plan(plan: RemapPlan, description: Describe) -> None:
        try:
            plan.pages(description.unit_pages)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def _choose_table(
        self, compute_s: Sequence[float], transfer_s: Sequence[float], slots: SlotRule
    ) -> None:
        """Keep one table for each bucket of total times, and use the present one's.

        Times count only once every unit has both.
        """
        unit_pages = self._described().unit_pages
        self.measured = bool(compute_s and transfer_s) and min(*compute_s, *transfer_s) > 0
        if not self.measured:
            compute_s = (UNMEASURED_UNIT_S,) * len(unit_pages)
            transfer_s = tuple(pages * UNMEASURED_PAGE_S for pages in unit_pages)
        bucket = (_bucket(sum(compute_s)), _bucket(sum(transfer_s)))
        table = self._tables.pop(bucket, None)
        if table is None:
            cost = StepCost(tuple(compute_s), tuple(transfer_s))
            table = build_plan_table(cost, unit_pages, slots)
            if len(self._tables) >= MAX_PLAN_TABLES:
                del self._tables[next(iter(self._tables))]
        self._tables[bucket] = table
        self._table = table


def newcomer_view(engine: EngineId, model: ModelName, priority: int) -> EngineView:
    """An engine that starts: nothing is known of it but that it needs pages."""
    empty = build_plan_table(StepCost((), ()), (), SlotRule.ONE)
    return EngineView(
        engine=engine,
        model=model,
        priority=priority,
        active=False,
        last_active_s=-math.inf,
        plan=RESIDENT,
        plan_table=empty,
        pool_pages=0,
        pool_spare_pages=0,
        pool_min_pages=0,
    )


def _bucket(time_s: float) -> int:
    return round(math.log(time_s, COST_STEP))
