"""The engine's state machine: what to do with its memory, step by step.

Events come in (a step begins, the agent speaks, the worker answers), actions come out; nothing is
performed here.  One ``Remapper`` lives in each engine's scheduler.  It follows five rules:

- it never waits: a shortage is asked for ahead of need, and stock preemption stays the fallback;
- a granule counts only once its worker has mapped and zeroed it, and a page is given back only
  once its worker has unmapped it (DESIGN §8.4);
- it asks the agent first, so that idle models give before busy ones (paper §5.2), and remaps its
  own layers within its standing allowance when the agent has nothing or is gone;
- before requests starve it remaps its own layers whatever that costs: slow beats stuck, and it
  needs nobody's leave for pages that are its own;
- what it took of its own layers it puts back, with hysteresis, when the pool has room (§7.6.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirage_core.control.operations import (
    Accept,
    ApplyPlan,
    Inspect,
    MapGranules,
    Operation,
    Outcome,
    Release,
    UnmapGranules,
)
from mirage_core.model import RESIDENT, GranuleId, Holdings, PageId, RemapPlan

ASK_AGAIN_S = 0.25
"""After a denial, the agent is not asked again for so long."""
KEEP_RESERVE_S = 1.0
"""A busy engine keeps pages that it does not need just now for so long: its need goes up and down
with every request, and what it gives back is lent and fetched anew."""
REVERT_HOLD_S = 2.0
"""The pool must have had room for so long before own layers are put back."""


# ---- what is known, and what is to be done


@dataclass(frozen=True, slots=True)
class PoolView:
    """The scheduler's view of its pool at the start of a step."""

    active: bool
    """There are running or waiting requests; an idle engine takes no step until it is woken."""
    starving: bool
    """Requests make no progress: not even one of them fits into the pool as it is."""
    needed_granules: int
    """What running and waiting requests will need over the next steps."""
    spare: tuple[GranuleId, ...]
    """Mapped, not draining, no live block; the best to give first; granule 0 is never here."""
    emptiest: tuple[GranuleId, ...]
    """Mapped, not draining, fewest live blocks first; granule 0 is never here."""
    drained: tuple[GranuleId, ...]
    """Draining, and no live block is left."""


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """One choice for the engine's own layers: the pages that it frees against RESIDENT."""

    plan: RemapPlan
    freed_pages: int


@dataclass(frozen=True, slots=True)
class Order:
    """To the worker, with the next step."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class AddGranules:
    """To the block pool: these are mapped and zeroed."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class DrainGranules:
    """To the block pool: hand out no more blocks of these."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class ForgetGranules:
    """To the block pool: these are about to be unmapped."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class PreemptHolders:
    """To the scheduler: a drain is late; requests with blocks in these must give way."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class SendAsk:
    request_id: int
    pages: int


@dataclass(frozen=True, slots=True)
class SendDone:
    operation_id: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class SendRefused:
    operation_id: int
    reason: str
    pages: tuple[PageId, ...] = ()


@dataclass(frozen=True, slots=True)
class SendGiveBack:
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class SendRejoin:
    """Tell an agent that came back what the engine holds, then describe the engine to it."""

    holdings: Holdings


Action = (
    Order
    | AddGranules
    | DrainGranules
    | ForgetGranules
    | PreemptHolders
    | SendAsk
    | SendDone
    | SendRefused
    | SendGiveBack
    | SendRejoin
)


@dataclass(slots=True, eq=False)
class _Shrink:
    """A Shrink of the agent that is under way."""

    operation_id: int | None
    """None once the agent that asked is lost: its pages are then given back unasked."""
    deadline_s: float
    draining: set[GranuleId]
    preempted: bool = False
    unmapped: int = 0
    returned: list[PageId] = field(default_factory=list)


@dataclass(slots=True)
class Counters:
    """What the engine did, for reports and for explaining."""

    remaps: int = 0
    reversions: int = 0
    granules_mapped: int = 0
    granules_unmapped: int = 0
    asks: int = 0
    denials: int = 0


class Remapper:
    """See the module's docstring.  Page counts are exact; page numbers live in the worker."""

    def __init__(
        self,
        *,
        granule_pages: int,
        first_granules: int,
        max_granules: int,
        unit_pages: Sequence[int],
        own_plans: Sequence[OwnPlan],
        last_resort_plans: Sequence[OwnPlan] = (),
        reserve_pages: int = 0,
        allowance_pages: int = 0,
        linked: bool,
        passive: bool = False,
    ) -> None:
        """``own_plans`` cost no step time, ``last_resort_plans`` whatever they cost; both ascend
        in freed pages.  ``reserve_pages`` is what a private device has left; ``allowance_pages``
        bounds what own plans may free; ``linked``: there is an agent.
        """
        self._granule_pages = granule_pages
        self._min_granules = first_granules
        self._max_granules = max_granules
        self._unit_pages = tuple(unit_pages)
        self._own_plans = tuple(own_plans)
        self._last_resort_plans = tuple(last_resort_plans)
        self._reserve_pages = reserve_pages
        self._allowance_pages = allowance_pages
        self._plan_held = False
        self._lend_most_pages = sum(self._unit_pages)
        self._linked = linked
        self._passive = passive

        self.plan = RESIDENT
        self.counters = Counters()
        self.mapped: set[GranuleId] = {GranuleId(g) for g in range(first_granules)}
        self._mapping: set[GranuleId] = set()
        self._unmapping: set[GranuleId] = set()
        self._own_freed_pages = 0
        self._plan_pending = False

        self._answers: deque[Callable[[Outcome], list[Action]]] = deque()
        self._shrinks: list[_Shrink] = []
        self._epoch = 0
        """Counts lost agents: what an earlier one asked for is not answered to a later one."""
        self._request_id = 0
        self._asked_pages = 0
        self._ask_not_before_s = 0.0
        self._room_since_s: float | None = None
        self._reserve_idle_since_s: float | None = None

    # ---- facts

    @property
    def busy(self) -> bool:
        """An answer of the worker is outstanding, or a drain is under way."""
        return bool(self._answers) or bool(self._shrinks)

    @property
    def holds_leftover(self) -> bool:
        """Pages that came too late to be needed: an idle engine must take one more step to give
        them back, or they are nobody's for as long as it sleeps."""
        return (
            self._linked
            and not self._passive
            and self._reserve_pages > 0
            and self._own_freed_pages == 0
        )

    @property
    def reserve_pages(self) -> int:
        return self._reserve_pages

    @property
    def min_granules(self) -> int:
        return self._min_granules

    def draining(self) -> set[GranuleId]:
        return {g for shrink in self._shrinks for g in shrink.draining}

    # ---- events

    def on_step(self, view: PoolView, now_s: float) -> list[Action]:
        """A step is about to be scheduled."""
        actions = self._finish_drains(view, now_s)
        if self._passive:
            return actions
        have = len(self.mapped) - len(self.draining()) + len(self._mapping)
        # Addresses in use by granules that drain or are being unmapped cannot be mapped again yet.
        addresses = self._max_granules - len(self.mapped | self._mapping | self._unmapping)
        shortage = min(view.needed_granules - have, addresses)
        if shortage > 0:
            self._room_since_s = self._reserve_idle_since_s = None
            return actions + self._grow(shortage, view.starving, now_s)
        self._asked_pages = 0
        return actions + self._settle(view, have, now_s)

    def on_granted(self, request_id: int, pages: tuple[PageId, ...]) -> list[Action]:
        """Pages came; they are mapped at the next step (a late grant is given back there)."""
        if not pages:
            return []

        def accepted(outcome: Outcome) -> list[Action]:
            # Only now do they count as had: a step that began before must not ask for them anew.
            self._reserve_pages += len(pages)
            if request_id == self._request_id:
                self._asked_pages = max(0, self._asked_pages - len(pages))
            return []

        return [self._order(Accept(pages), accepted)]

    def on_denied(self, request_id: int, now_s: float) -> list[Action]:
        if request_id == self._request_id:
            self.counters.denials += 1
            self._asked_pages = 0
            self._ask_not_before_s = now_s + ASK_AGAIN_S
        return []

    def on_shrink(
        self, operation_id: int, pages: int, deadline_s: float, view: PoolView
    ) -> list[Action]:
        """The agent wants pages of the pool back; spare granules go at once, others drain."""
        draining = self.draining()
        room = len(self.mapped) - len(draining) - self._min_granules
        wanted = min(-(-pages // self._granule_pages), room)
        if wanted <= 0:
            return [SendRefused(operation_id, "the pool is at its minimum")]
        candidates = [g for g in (*view.spare, *view.emptiest) if g not in draining]
        chosen = tuple(dict.fromkeys(candidates))[:wanted]
        if not chosen:
            return [SendRefused(operation_id, "no granule can drain")]
        self._shrinks.append(_Shrink(operation_id, deadline_s, set(chosen)))
        return [DrainGranules(chosen)]

    def on_apply_plan(
        self, operation_id: int, plan: RemapPlan, pages: tuple[PageId, ...]
    ) -> list[Action]:
        """The agent wants the weights under ``plan``; ``pages`` come for it.

        One plan at a time, and only with pages that nobody else in the engine counts on: what a
        plan takes comes from ``pages`` and the unpromised reserve, what it frees is released
        before another plan may begin.
        """
        freed_now = self.plan.freed_pages(self._unit_pages)
        freed = plan.freed_pages(self._unit_pages)
        from_reserve = max(0, freed_now - freed - len(pages))
        reason = None
        if self._plan_pending:
            reason = "another plan is being applied"
        elif from_reserve > self._reserve_pages:
            reason = f"{from_reserve} pages are missing"
        accept = [self._order(Accept(pages), lambda outcome: [])] if pages else []
        epoch = self._epoch
        if reason is not None:
            return [*accept, *self._refuse(operation_id, reason, len(pages), epoch)]
        self._plan_pending = True
        self._reserve_pages -= from_reserve

        def answered(outcome: Outcome) -> list[Action]:
            if outcome.refused is not None:
                self._plan_pending = False
                self._reserve_pages += from_reserve
                return self._refuse(operation_id, outcome.refused, len(pages), epoch)
            self._set_plan(plan)
            self._own_freed_pages = 0

            def released(back: tuple[PageId, ...]) -> list[Action]:
                self._plan_pending = False
                return self._answer(epoch, SendDone(operation_id, back))

            return self._release(len(pages) + from_reserve + freed - freed_now, released)

        return [*accept, self._order(ApplyPlan(plan), answered)]

    def _refuse(self, operation_id: int, reason: str, pages: int, epoch: int) -> list[Action]:
        """Give back what came with an operation, and say why it was not performed."""
        return self._release(
            pages, lambda back: self._answer(epoch, SendRefused(operation_id, reason, back))
        )

    def _answer(self, epoch: int, answer: SendDone | SendRefused) -> list[Action]:
        """To the agent that asked; to a later one, its pages alone."""
        return [answer if epoch == self._epoch else SendGiveBack(answer.pages)]

    def on_limits(
        self, allowance_pages: int, plan_held: bool = False, lend_most_pages: int | None = None
    ) -> None:
        self._allowance_pages = allowance_pages
        self._plan_held = plan_held
        all_pages = sum(self._unit_pages)
        self._lend_most_pages = all_pages if lend_most_pages is None else lend_most_pages

    def on_link_lost(self) -> None:
        """The agent is gone: keep all, forget what it asked; its shrinks finish without haste."""
        self._linked = False
        self._epoch += 1
        self._asked_pages = 0
        for shrink in self._shrinks:
            shrink.operation_id = None
            shrink.deadline_s = float("inf")

    def on_link_restored(self) -> list[Action]:
        """An agent is back: it must learn what the engine holds before it is asked again.

        Orders are answered in order, so the holdings are those of the moment at which they are
        sent: pages released before are in no holdings, pages released later follow the rejoin.
        """

        def answered(outcome: Outcome) -> list[Action]:
            assert outcome.holdings is not None, "an inspected worker reports its holdings"
            self._linked = True
            return [SendRejoin(outcome.holdings)]

        return [self._order(Inspect(), answered)]

    def on_own_plans(self, own_plans: Sequence[OwnPlan]) -> None:
        """Measured times changed what the engine may do with its own layers."""
        self._own_plans = tuple(own_plans)

    def on_outcome(self, outcome: Outcome) -> list[Action]:
        """The worker answered its oldest unanswered order."""
        return self._answers.popleft()(outcome)

    # ---- growing

    def _grow(self, shortage: int, starving: bool, now_s: float) -> list[Action]:
        actions: list[Action] = []
        from_reserve = min(shortage, self._reserve_pages // self._granule_pages)
        if from_reserve:
            actions.append(self._map(from_reserve))
            shortage -= from_reserve
        pages = shortage * self._granule_pages - self._reserve_pages % self._granule_pages
        if shortage <= 0 or pages <= 0:
            return actions
        if starving:
            actions += self._remap_own(pages, self._last_resort_plans, sum(self._unit_pages))
        if not self._linked or now_s < self._ask_not_before_s:
            return actions + self._remap_own(pages, self._own_plans, self._allowance_pages)
        if pages > self._asked_pages:
            self._request_id += 1
            self._asked_pages = pages
            self.counters.asks += 1
            actions.append(SendAsk(self._request_id, pages))
        return actions

    def _map(self, count: int) -> Order:
        taken = self.mapped | self._mapping | self._unmapping
        granules: list[GranuleId] = []
        candidate = 0
        while len(granules) < count:
            if candidate not in taken:
                granules.append(GranuleId(candidate))
            candidate += 1
        chosen = tuple(granules)
        self._mapping.update(chosen)
        self._reserve_pages -= count * self._granule_pages

        def answered(outcome: Outcome) -> list[Action]:
            self._mapping.difference_update(chosen)
            if outcome.refused is not None:
                self._reserve_pages += count * self._granule_pages
                return []
            self.mapped.update(chosen)
            self.counters.granules_mapped += count
            return [AddGranules(chosen)]

        return self._order(MapGranules(chosen), answered)

    def _remap_own(
        self, pages: int, plans: Sequence[OwnPlan], allowance_pages: int
    ) -> list[Action]:
        """Free ``pages`` more of the own layers, as far as plans and allowance reach."""
        if self._plan_pending or self._plan_held:
            return []
        freed_now = self.plan.freed_pages(self._unit_pages)
        limit = min(freed_now - self._own_freed_pages + allowance_pages, self._lend_most_pages)
        larger = [p for p in plans if freed_now < p.freed_pages <= limit]
        if not larger:
            return []
        enough = [p for p in larger if p.freed_pages >= freed_now + pages]
        return [self._apply_own(enough[0] if enough else larger[-1], freed_now)]

    def _apply_own(self, choice: OwnPlan, freed_now: int) -> Order:
        self._plan_pending = True
        gained = choice.freed_pages - freed_now
        if gained < 0:
            self._reserve_pages += gained

        def answered(outcome: Outcome) -> list[Action]:
            self._plan_pending = False
            if outcome.refused is not None:
                if gained < 0:
                    self._reserve_pages -= gained
                return []
            self._set_plan(choice.plan)
            self._own_freed_pages += gained
            if gained > 0:
                self._reserve_pages += gained
            return []

        return self._order(ApplyPlan(choice.plan), answered)

    # ---- settling

    def _settle(self, view: PoolView, have: int, now_s: float) -> list[Action]:
        """Nothing is short: put own layers back, give back what nobody needs."""
        if self._own_freed_pages > 0 and not self._plan_held:
            return self._revert_own(view, have, now_s)
        if not self._linked or self._reserve_pages == 0 or self._answers:
            return []
        if self._reserve_idle_since_s is None:
            self._reserve_idle_since_s = now_s
        kept_s = now_s - self._reserve_idle_since_s
        if view.active and kept_s < KEEP_RESERVE_S:
            return []
        return self._give_reserve_back()

    def _revert_own(self, view: PoolView, have: int, now_s: float) -> list[Action]:
        if self._plan_pending or self._unmapping:
            return []
        freed_now = self.plan.freed_pages(self._unit_pages)
        base = freed_now - self._own_freed_pages
        surplus = min(have - max(view.needed_granules, self._min_granules), len(view.spare))
        within = self._reserve_pages + max(0, surplus) * self._granule_pages
        plans = (*self._own_plans, *self._last_resort_plans)
        smaller = [
            p
            for p in sorted(plans, key=lambda p: p.freed_pages)
            if base <= p.freed_pages < freed_now <= p.freed_pages + within
        ]
        if not smaller:
            self._room_since_s = None
            return []
        if self._room_since_s is None:
            self._room_since_s = now_s
        if now_s - self._room_since_s < REVERT_HOLD_S:
            return []
        choice = smaller[0]
        missing = freed_now - choice.freed_pages - self._reserve_pages
        if missing > 0:
            granules = view.spare[: -(-missing // self._granule_pages)]
            return [DrainGranules(granules), *self._unmap(granules)]
        self._room_since_s = None
        return [self._apply_own(choice, freed_now)]

    def _give_reserve_back(self) -> list[Action]:
        count = self._reserve_pages
        self._reserve_pages = 0
        return self._release(count, lambda back: [SendGiveBack(back)])

    # ---- shrinking

    def _finish_drains(self, view: PoolView, now_s: float) -> list[Action]:
        actions: list[Action] = []
        drained = set(view.drained)
        for shrink in self._shrinks:
            ready = tuple(sorted(shrink.draining & drained))
            if ready:
                shrink.draining.difference_update(ready)
                shrink.unmapped += len(ready)
                actions += self._unmap(ready, shrink)
            if shrink.draining and now_s >= shrink.deadline_s and not shrink.preempted:
                shrink.preempted = True
                actions.append(PreemptHolders(tuple(sorted(shrink.draining))))
        return actions

    def _unmap(
        self, granules: tuple[GranuleId, ...], shrink: _Shrink | None = None
    ) -> list[Action]:
        self.mapped.difference_update(granules)
        self._unmapping.update(granules)
        pages = len(granules) * self._granule_pages

        def answered(outcome: Outcome) -> list[Action]:
            self._unmapping.difference_update(granules)
            if outcome.refused is not None:
                # The worker holds them mapped still: count them so, and let them be drained anew.
                self.mapped.update(granules)
                if shrink is not None:
                    shrink.unmapped -= len(granules)
                return [AddGranules(granules), *self._shrink_answer(shrink)]
            self.counters.granules_unmapped += len(granules)
            if shrink is None:
                self._reserve_pages += pages
                return []
            return self._release(pages, lambda back: self._shrunk(shrink, back))

        return [ForgetGranules(granules), self._order(UnmapGranules(granules), answered)]

    def _shrunk(self, shrink: _Shrink, back: tuple[PageId, ...]) -> list[Action]:
        shrink.returned.extend(back)
        return self._shrink_answer(shrink)

    def _shrink_answer(self, shrink: _Shrink | None) -> list[Action]:
        """Answer the agent once all of a shrink's granules came back."""
        if shrink is None or shrink.draining:
            return []
        if len(shrink.returned) < shrink.unmapped * self._granule_pages:
            return []
        self._shrinks.remove(shrink)
        back = tuple(shrink.returned)
        if shrink.operation_id is None:
            return [SendGiveBack(back)]
        return [SendDone(shrink.operation_id, back)]

    # ---- the worker

    def _order(self, operation: Operation, answered: Callable[[Outcome], list[Action]]) -> Order:
        self._answers.append(answered)
        return Order(operation)

    def _release(
        self, count: int, then: Callable[[tuple[PageId, ...]], list[Action]]
    ) -> list[Action]:
        if count <= 0:
            return then(())
        return [self._order(Release(count), lambda outcome: then(outcome.pages))]

    def _set_plan(self, plan: RemapPlan) -> None:
        freed_before = self.plan.freed_pages(self._unit_pages)
        freed_after = plan.freed_pages(self._unit_pages)
        self.counters.remaps += freed_after > freed_before
        self.counters.reversions += freed_after < freed_before
        self.plan = plan
