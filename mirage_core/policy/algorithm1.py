"""Algorithm 1 (§5.5): one snapshot in, one decision out; called once a step.

    plan_shortage (lines 3-5)            plan_reversion (lines 7-12)
      1. free pages                        1. free pages make cycled units resident again
      2. spare pool pages of others        2. for a model that its plan slows: spare pool pages
      3. units of inactive models             and units of inactive models, as in a shortage
      4. units of active models, as        3. for one that it slows much, and for long: pool
         far as their steps allow             pages in use of models no more important (recall)
                                           4. otherwise: pool pages beyond a whole hold's use

What engines must first give up is asked for here, and granted by the arbiter when it is really
free.  A shortage takes nothing by force: KV blocks in use stay where they are.  A recall does: a
model's weights are its own, and borrowers recompute less than a slowed owner loses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mirage_core.cluster_model import Sharing
from mirage_core.errors import MisuseError
from mirage_core.model import EngineId
from mirage_core.policy.decision import Action, ApplyPlan, Decision, GrantPages, Reason, ReclaimPool
from mirage_core.policy.how_many import PlanRow, most_freeable_pages
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView
from mirage_core.policy.when import Reversion, returnable_pages
from mirage_core.policy.which_model import may_lend, rank_donors


def plan_shortage(
    view: DeviceView, borrower: EngineId, pages_needed: int, policy: Policy, now_s: float
) -> Decision:
    """Find ``pages_needed`` for the borrower's KV pool (Algorithm 1, lines 3-5 and 15-24).

    Only whole granules: the need is rounded up to them, and where not all can be found, none is
    begun that would stay incomplete.  What was found and not granted at once, the arbiter owes the
    borrower.  Raises MisuseError if the borrower is not in the view or needs less than 0.
    """
    if pages_needed < 0:
        raise MisuseError(f"{borrower} needs {pages_needed} pages")
    needy = view[borrower]
    ranked = rank_donors(view.engines, borrower, policy.order)
    need_pages = -(-pages_needed // needy.granule_pages) * needy.granule_pages
    draft = _gather(need_pages, needy, ranked, view, policy)
    found_pages = need_pages - draft.short_pages
    whole_pages = found_pages // needy.granule_pages * needy.granule_pages
    if whole_pages < found_pages:
        draft = _gather(whole_pages, needy, ranked, view, policy)
        draft.short_pages = need_pages - whole_pages
    return draft.decision(now_s)


def _gather(
    need_pages: int,
    needy: EngineView,
    ranked: Sequence[EngineView],
    view: DeviceView,
    policy: Policy,
) -> _Draft:
    draft = _Draft(need_pages)
    draft.grant_free(needy, view.spendable_pages)
    draft.reclaim_spare(donor for donor in ranked if donor is not needy)
    if policy.weights_move:
        for donor in ranked:
            if not draft.short_pages:
                break
            if may_lend(donor, needy, view.sharing):
                draft.remap(donor, most_lending_row(donor, donor.active or donor is needy, policy))
            else:
                draft.refuse(donor, _why_not(donor, view.sharing))
    return draft


def _why_not(donor: EngineView, sharing: Sharing) -> str:
    if donor.pinned:
        return "pinned"
    return "active and more important" if sharing is Sharing.SPATIAL else "active: its turn"


def plan_lending(view: DeviceView, policy: Policy, now_s: float) -> Decision:
    """Let models lend what an operator wants them to lend at least, needed or not."""
    draft = _Draft(0)
    for lender in view:
        missing_pages = lender.lend_least_pages - lender.row.freed_pages
        if missing_pages > 0 and policy.weights_move:
            draft.short_pages = missing_pages
            row = most_lending_row(lender, lender.active, policy)
            draft.remap(lender, row, f"an operator wants {lender.lend_least_pages} pages lent")
    draft.short_pages = 0
    return draft.decision(now_s)


def plan_reversion(view: DeviceView, policy: Policy, now_s: float) -> Decision:
    """Give lent pages back (Algorithm 1, lines 7-12; dynamic reversion, §7.6.1).

    First in line are models that lend more than they may (``overlent_row``), then active ones, then
    inactive ones; among each, who would lend last.  While every unit is resident, no pool shrinks.
    Pools in use shrink only by recall (``_may_recall``).
    """
    if policy.reversion is None:
        return Decision(now_s)
    ranked = rank_donors(view.engines, None, policy.order)
    lenders = [lender for lender in reversed(ranked) if lender.plan.slots]
    rows = {lender.engine: lender.row for lender in lenders}
    budget_pages = view.spendable_pages

    missing_pages = 0
    recalls: list[tuple[EngineView, int]] = []
    for lender in lenders:
        goal = overlent_row(lender, policy)
        if goal is not None:
            present = rows[lender.engine]
            row = _affordable_row(lender, present, goal.freed_pages, budget_pages)
            budget_pages -= present.freed_pages - row.freed_pages
            rows[lender.engine] = row
            lender_misses_pages = row.freed_pages - goal.freed_pages
            missing_pages += lender_misses_pages
            if _may_recall(lender, row, policy, now_s):
                recalls.append((lender, lender_misses_pages))
    if not missing_pages:
        for lender in lenders:
            present = rows[lender.engine]
            row = _affordable_row(lender, present, lender.lend_least_pages, budget_pages)
            budget_pages -= present.freed_pages - row.freed_pages
            rows[lender.engine] = row

    still_coming_pages = view.unpromised_pages - view.spendable_pages + budget_pages
    draft = _Draft(max(0, missing_pages - still_coming_pages))
    for lender in lenders:
        draft.restore(lender, rows[lender.engine])
    if missing_pages:
        draft.reclaim_spare(ranked)
        if policy.weights_move:
            for donor in ranked:
                if draft.short_pages and not donor.active:
                    draft.remap(donor, most_lending_row(donor, False, policy))
        for lender, pages in recalls:
            draft.recall(lender, pages, ranked)
    else:
        lent_pages = sum(row.freed_pages for row in rows.values())
        draft.reclaim_unused(ranked, lent_pages - still_coming_pages, policy.reversion)
    return draft.decision(now_s)


def most_lending_row(view: EngineView, active: bool, policy: Policy) -> PlanRow:
    """The plan that frees the most pages that the policy lets a model lend (§5.2, §5.3).

    An active model lends as far as its step grows by no more than ``max_added_share``; an inactive
    one as far as its cold start stays hidden (``floor_pages``); both up to ``cap_share`` and to
    what an operator lets it lend.
    """
    table = view.plan_table
    if view.pinned:
        return table.rows[0]
    floor_pages = 0 if active else view.floor_pages
    added_limit_s = _added_limit_s(view, policy) if active else math.inf
    most_pages = most_freeable_pages(table, policy.cap_share, floor_pages)
    if view.lend_most_pages is not None:
        most_pages = min(most_pages, view.lend_most_pages)
    return table.largest(most_pages, added_limit_s)


def overlent_row(view: EngineView, policy: Policy) -> PlanRow | None:
    """The plan that a model goes back to if its own lends too much; None if it does not.

    Too much for an active model's present cost: the plan was chosen when its batch was larger, or
    when it was inactive (§5.3: the share must follow the load).  Too much for any model: more than
    an operator lets it lend.
    """
    if not view.plan.slots:
        return None  # it lends nothing
    present, most = view.row, most_lending_row(view, view.active, policy)
    if not view.active:
        bound_pages = view.lend_bound_pages
        if bound_pages is None or present.freed_pages <= bound_pages:
            return None
        return view.plan_table.largest(most.freed_pages, math.inf)
    added_limit_s = _added_limit_s(view, policy)
    if present.freed_pages <= most.freed_pages and present.added_s <= added_limit_s:
        return None
    return view.plan_table.largest(min(present.freed_pages, most.freed_pages), added_limit_s)


def recalled_pages(engines: Iterable[EngineView], policy: Policy, now_s: float) -> int:
    """Pages that models which recall theirs still wait for: nobody else is served with them."""
    pages = 0
    for lender in engines:
        goal = overlent_row(lender, policy)
        if goal is not None and _may_recall(lender, lender.row, policy, now_s):
            pages += max(0, lender.row.freed_pages - goal.freed_pages)
    return pages


def _may_recall(lender: EngineView, row: PlanRow, policy: Policy, now_s: float) -> bool:
    """Whether ``row``, the best that free pages pay for, slows a model so much, and it has been
    active for so long, that its pages are worth others' recomputation."""
    if policy.recall_share is None or policy.reversion is None or not lender.active:
        return False
    slow = row.added_s > policy.recall_share * lender.plan_table.resident_step_s
    return slow and now_s - lender.active_since_s >= policy.reversion.hold_s


def _added_limit_s(view: EngineView, policy: Policy) -> float:
    return policy.max_added_share * view.plan_table.resident_step_s


def _affordable_row(
    view: EngineView, present: PlanRow, least_freed_pages: int, budget_pages: int
) -> PlanRow:
    """The plan nearest to freeing ``least_freed_pages`` that ``budget_pages`` free pages pay for;
    ``present`` if that is no better."""
    within_pages = max(least_freed_pages, present.freed_pages - budget_pages)
    row = view.plan_table.cheapest(within_pages)
    better = (row.freed_pages, row.added_s) < (present.freed_pages, present.added_s)
    return row if better else present


class _Draft:
    """A decision being put together: every method is one rule and leaves its reason."""

    def __init__(self, short_pages: int) -> None:
        self.short_pages = short_pages
        self._actions: list[Action] = []
        self._reasons: list[Reason] = []
        self._reclaimed_pages: Counter[EngineId] = Counter()

    def decision(self, now_s: float) -> Decision:
        return Decision(now_s, tuple(self._actions), tuple(self._reasons), self.short_pages)

    def refuse(self, donor: EngineView, why: str) -> None:
        self._reasons.append(Reason("units", donor.engine, self.short_pages, 0, why))

    def grant_free(self, needy: EngineView, spendable_pages: int) -> None:
        """Free pages, granted at once in whole granules; a rest is kept for what is to come."""
        found_pages = min(self.short_pages, spendable_pages)
        granted_pages = found_pages // needy.granule_pages * needy.granule_pages
        if granted_pages:
            self._actions.append(GrantPages(needy.engine, granted_pages))
        why = f"{spendable_pages} free, granules of {needy.granule_pages}"
        self._found("free pages", needy.engine, found_pages, why)

    def reclaim_spare(self, pools: Iterable[EngineView]) -> None:
        """Pool pages that lie idle now."""
        for pool in pools:
            if not self.short_pages:
                return
            pages = _whole_granules(pool, self.short_pages, pool.reclaimable_pages)
            if pages and not pool.pinned:
                self._reclaim(pool, pages)
                why = f"{pool.pool_spare_pages} of {pool.pool_pages} spare"
                self._found("spare pool pages", pool.engine, pages, why)

    def recall(self, lender: EngineView, wanted_pages: int, pools: Iterable[EngineView]) -> None:
        """Pool pages in use of models no more important than ``lender``, whose they are: they are
        drained, and what is left at the drain's end is preempted."""
        wanted_pages = min(wanted_pages, self.short_pages)
        for pool in pools:
            if wanted_pages <= 0:
                return
            if pool.engine == lender.engine or pool.pinned or pool.priority > lender.priority:
                continue
            rest_pages = pool.pool_pages - pool.pool_min_pages - self._reclaimed_pages[pool.engine]
            whole_pages = rest_pages // pool.granule_pages * pool.granule_pages
            pages = _whole_granules(pool, wanted_pages, whole_pages)
            if pages > 0:
                self._reclaim(pool, pages)
                why = f"lent units add {lender.row.added_s:.6f} s to a step of {lender.engine}"
                self._found("recall", pool.engine, pages, why)
                wanted_pages -= pages

    def _reclaim(self, pool: EngineView, pages: int) -> None:
        self._actions.append(ReclaimPool(pool.engine, pages))
        self._reclaimed_pages[pool.engine] += pages

    def reclaim_unused(
        self, pools: Iterable[EngineView], wanted_pages: int, reversion: Reversion
    ) -> None:
        """Pool pages beyond a whole hold's use, for units that wait to be resident again."""
        for pool in pools:
            if wanted_pages <= 0:
                return
            # An idle model's use does not grow: it keeps no margin while others' units are lent.
            rule = reversion if pool.active else replace(reversion, margin_share=0.0)
            unused_pages = returnable_pages(
                pool.use_watch, pool.pool_pages, pool.pool_min_pages, pool.granule_pages, rule
            )
            pages = _whole_granules(pool, wanted_pages, min(unused_pages, pool.reclaimable_pages))
            if pages and not pool.pinned:
                self._reclaim(pool, pages)
                why = f"{unused_pages} of {pool.pool_pages} unused for {reversion.hold_s} s"
                reason = Reason("unused pool pages", pool.engine, wanted_pages, pages, why)
                self._reasons.append(reason)
                wanted_pages -= pages

    def remap(self, donor: EngineView, most: PlanRow, wish: str = "") -> None:
        """Units of a donor, as many as needed, no further than the plan ``most``; ``wish`` says
        whose wish it is if no engine's."""
        present = donor.row
        row = donor.plan_table.cheapest(present.freed_pages + self.short_pages)
        if row.freed_pages > most.freed_pages:
            row = most
        freed_pages = row.freed_pages - present.freed_pages
        if freed_pages <= 0:
            self.refuse(donor, f"lends {present.freed_pages} of {most.freed_pages} at most")
            return
        self._actions.append(ApplyPlan(donor.engine, row.plan, freed_pages))
        state = "active" if donor.active else "inactive"
        why = f"{state}, priority {donor.priority}, adds {row.added_s:.6f} s to a step"
        rule, why = ("lending", f"{wish}; {why}") if wish else ("units", why)
        self._found(rule, donor.engine, freed_pages, why)

    def restore(self, lender: EngineView, row: PlanRow) -> None:
        """Free pages for a lender's units, or a better plan of as many pages."""
        present = lender.row
        if row is present:
            return
        taken_pages = present.freed_pages - row.freed_pages
        self._actions.append(ApplyPlan(lender.engine, row.plan, -taken_pages))
        why = f"added {present.added_s:.6f} s to a step, now {row.added_s:.6f} s"
        bound_pages = lender.lend_bound_pages
        if bound_pages is not None and present.freed_pages > bound_pages:
            why = f"an operator lets it lend {bound_pages} pages at most; {why}"
        reason = Reason("restore", lender.engine, present.freed_pages, taken_pages, why)
        self._reasons.append(reason)

    def _found(self, rule: str, engine: EngineId, pages: int, why: str) -> None:
        self._reasons.append(Reason(rule, engine, self.short_pages, pages, why))
        self.short_pages = max(0, self.short_pages - pages)


def _whole_granules(pool: EngineView, wanted_pages: int, most_pages: int) -> int:
    """``wanted_pages`` rounded up to whole granules of ``pool``, ``most_pages`` at most."""
    granule_pages = pool.granule_pages
    return min(-(-wanted_pages // granule_pages) * granule_pages, most_pages)
