"""Snapshots for tests of the policy, and a device on which decisions are carried out at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st

from mirage_core.model import RESIDENT, EngineId, ModelName
from mirage_core.policy.cost import StepCost
from mirage_core.policy.decision import ApplyPlan, Decision, GrantPages, ReclaimPool
from mirage_core.policy.how_many import PlanTable, SlotRule, build_plan_table
from mirage_core.policy.view import DeviceView, EngineView
from mirage_core.policy.when import Reversion, UseWatch, watch_use

prove = settings(deadline=None, max_examples=50)
"""For every property here: no time is asserted, on a machine that others use too."""


def even_cost(units: int, ratio: float, compute_s: float = 1.0) -> StepCost:
    """``units`` equal units whose transfer takes ``ratio`` times their compute."""
    return StepCost((compute_s,) * units, (ratio * compute_s,) * units)


@cache
def table(units: int = 12, ratio: float = 3.0, pages: int = 4) -> PlanTable:
    return build_plan_table(even_cost(units, ratio), (pages,) * units, SlotRule.BEST)


def engine(name: str, plan_table: PlanTable | None = None, **fields: object) -> EngineView:
    """An idle engine with every unit resident and a pool of 20 used pages, ``fields`` apart."""
    resident = EngineView(
        engine=EngineId(name),
        model=ModelName(f"model-{name}"),
        priority=0,
        active=False,
        last_active_s=0.0,
        plan=RESIDENT,
        plan_table=plan_table or table(),
        pool_pages=20,
        pool_spare_pages=0,
        pool_min_pages=0,
    )
    return replace(resident, **fields)  # type: ignore[arg-type]


@st.composite
def engines(draw: st.DrawFn, name: str) -> EngineView:
    units = draw(st.sampled_from([6, 12]))
    plans = table(units, draw(st.sampled_from([1.5, 3.0, 20.0])), draw(st.integers(1, 4)))
    pool_pages = draw(st.integers(0, 60))
    return engine(
        name,
        plans,
        priority=draw(st.integers(0, 2)),
        active=draw(st.booleans()),
        last_active_s=float(draw(st.integers(0, 3))),
        plan=draw(st.sampled_from([row.plan for row in plans.rows])),
        pool_pages=pool_pages,
        pool_spare_pages=draw(st.integers(0, pool_pages)),
        pool_min_pages=draw(st.integers(0, 10)),
        floor_pages=draw(st.integers(0, plans.total_pages)),
        granule_pages=draw(st.integers(1, 5)),
        pinned=draw(st.sampled_from([False, False, False, True])),
        use_watch=draw(
            st.none()
            | st.builds(UseWatch, st.just(0.0), st.integers(0, 60), st.none() | st.integers(0, 60))
        ),
    )


@st.composite
def devices(draw: st.DrawFn) -> DeviceView:
    count = draw(st.integers(1, 5))
    return DeviceView(
        free_pages=draw(st.integers(0, 30)),
        engines=tuple(draw(engines(f"e{index}")) for index in range(count)),
        coming_pages=draw(st.integers(0, 10)),
        owed_pages=draw(st.integers(0, 10)),
    )


@dataclass
class Bench:
    """A device that carries decisions out at once and owes what it could not grant yet."""

    free_pages: int
    engines: dict[EngineId, EngineView]
    owed: dict[EngineId, int] = field(default_factory=dict)

    @property
    def view(self) -> DeviceView:
        owed_pages = sum(self.owed.values())
        return DeviceView(self.free_pages, tuple(self.engines.values()), owed_pages=owed_pages)

    @property
    def pages(self) -> int:
        """Pages of the device, by owner: free, units and slots, pools."""
        return self.free_pages + sum(
            view.plan.pages(view.unit_pages) + view.pool_pages for view in self.engines.values()
        )

    def use(self, name: EngineId, used_pages: int, now_s: float, reversion: Reversion) -> None:
        """The engine's pool uses ``used_pages``, rounded up to granules, of those that it has."""
        view = self.engines[name]
        used_pages = -(-used_pages // view.granule_pages) * view.granule_pages
        used_pages = min(view.pool_pages, used_pages)
        self.engines[name] = replace(
            view,
            pool_spare_pages=view.pool_pages - used_pages,
            use_watch=watch_use(view.use_watch, used_pages, now_s, reversion),
        )

    def carry_out(self, decision: Decision) -> None:
        """What frees pages first: engines do that before the arbiter grants."""
        for action in decision.actions:
            view = self.engines[action.engine]
            match action:
                case GrantPages(pages=pages):
                    assert 0 < pages <= self.free_pages
                    assert pages % view.granule_pages == 0
                    self.free_pages -= pages
                    self.engines[view.engine] = replace(view, pool_pages=view.pool_pages + pages)
                case ReclaimPool(pages=pages):
                    assert pages > 0
                    assert view.pool_pages - pages >= view.pool_min_pages
                    self.free_pages += pages
                    self.engines[view.engine] = replace(
                        view,
                        pool_pages=view.pool_pages - pages,
                        pool_spare_pages=max(0, view.pool_spare_pages - pages),
                    )
                case ApplyPlan(plan=plan, freed_pages=freed_pages):
                    before = view.plan.pages(view.unit_pages)
                    assert before - plan.pages(view.unit_pages) == freed_pages
                    self.free_pages += freed_pages
                    assert self.free_pages >= 0
                    self.engines[view.engine] = replace(view, plan=plan)

    def grant_owed(self, kept_pages: int = 0) -> None:
        """``kept_pages`` of the free ones are somebody else's."""
        for name, pages in list(self.owed.items()):
            if pages <= self.free_pages - kept_pages:
                self.carry_out(Decision(0.0, (GrantPages(name, pages),)))
                del self.owed[name]
