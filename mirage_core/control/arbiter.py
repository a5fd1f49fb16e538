"""The arbiter of one device: who gets pages, from whom, and when they go back.

A state machine: events in, actions out; it owns the page ledger and touches nothing else.  An
event is either refused by an exception (ProtocolError, OwnershipError: the engine's fault, and
nothing was changed) or taken in whole; then the arbiter settles:

    1. models that lend more than they may get their units back      (policy, §5.3)
    2. engines that start get their pages, first come first served
    3. asks are served, most important engine first, then oldest
    4. models that are directed to lend do so, needed or not
    5. what nobody waits for goes back to lenders                    (policy, §7.6.1)

Each settling looks at the whole present state, never at the kind of event that led to it.  What
engines were asked for counts as coming until they answer, so nothing is asked for twice; pages
are granted only from the free list, so nothing is granted twice.  "Cannot" is Denied with a
reason; every ask ends in full grants or in Denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mirage_core.cluster_model import Effect
from mirage_core.control.arbiter_events import (
    Action,
    Directed,
    EngineDied,
    Event,
    Explain,
    Linked,
    Received,
    Send,
    Tick,
    Unlinked,
)
from mirage_core.control.directed import NO_DIRECTIONS, decision_input
from mirage_core.control.engine_record import EngineRecord, PendingOperation, newcomer_view
from mirage_core.errors import MisuseError, OwnershipError, ProtocolError
from mirage_core.memory.ledger import Ledger
from mirage_core.model import EngineId, ModelName, OperationId, PageId, RemapPlan
from mirage_core.policy.algorithm1 import (
    most_lending_row,
    overlent_row,
    plan_lending,
    plan_reversion,
    plan_shortage,
)
from mirage_core.policy.decision import ApplyPlan, Decision, Reason, ReclaimPool
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView
from mirage_core.wire import messages as m

SHRINK_DEADLINE_S = 2.0
"""After it, the holders of the last blocks of a drain are preempted."""
ANSWER_PATIENCE_S = 10.0
"""An operation unanswered for so long no longer counts as coming."""
TAKE_PATIENCE_S = 60.0
"""An engine that starts waits so long for its pages, then is denied."""
MIN_RETRY_S = 0.25
MAX_RETRY_S = 8.0
"""An engine that refuses is left alone for a time that doubles with each refusal."""
MAX_WITHHELD = 256
"""Decisions that freeze or shadow mode withheld, remembered so as to be explained once."""
_LEAST_PRIORITY = -(1 << 31) - 1


@dataclass(slots=True)
class _Take:
    engine: EngineId
    request_id: int
    pages: int
    asked_s: float


@dataclass(slots=True)
class _Ask:
    """An ask that is not ended; ``missing_pages`` are not granted yet."""

    engine: EngineId
    request_id: int
    pages: int
    missing_pages: int
    number: int
    """of all asks, ascending: the older first"""


@dataclass(slots=True)
class Counters:
    """What the arbiter did since it started."""

    asks: int = 0
    takes: int = 0
    granted_pages: int = 0
    denials: int = 0
    remaps: int = 0
    """plans applied that freed pages"""
    reversions: int = 0
    """plans applied that took pages back"""
    shrinks: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """One engine's pages, for metrics and plots; before it has described itself all are pool.

    ``resident_pages`` are those of resident units and of the part that never moves.  The last
    fields are None until it has described itself; directives count in ``priority`` and ``pinned``.
    """

    engine: EngineId
    model: ModelName
    active: bool
    pool_pages: int
    spare_pages: int
    resident_pages: int
    slot_pages: int
    in_flight_pages: int
    cycled_units: int
    waiting_pages: int
    priority: int | None = None
    pinned: bool | None = None
    units: int | None = None
    unit_pages: int | None = None
    lent_pages: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    free_pages: int
    coming_pages: int
    engines: tuple[EngineSummary, ...] = field(default=())


class Arbiter:
    """Decides for a device of ``pages`` pages under ``policy``.

    ``awaited`` are engines that held pages before the agent restarted.  Which ones is known only
    once they rejoin or die; until then nothing is granted.  ``first_operation`` must exceed every
    operation id of earlier incarnations.
    """

    def __init__(
        self,
        pages: int,
        policy: Policy,
        awaited: Mapping[EngineId, ModelName] | None = None,
        first_operation: int = 1,
    ) -> None:
        self._policy = policy
        self._ledger = Ledger(pages)
        self._records = {e: EngineRecord(e, model) for e, model in (awaited or {}).items()}
        self._awaited = set(self._records)
        self._next_operation = first_operation
        self._next_ask = 0
        self._pending: dict[OperationId, PendingOperation] = {}
        self._takes: list[_Take] = []
        self._asks: dict[EngineId, _Ask] = {}
        self._limits: dict[EngineId, m.Limits] = {}
        self._limits_stale = False
        self._actions: list[Action] = []
        self._directions = NO_DIRECTIONS
        self._withheld: set[tuple[EngineId | None, tuple[ReclaimPool | ApplyPlan, ...]]] = set()
        self.counters = Counters()

    # ---- what others may know

    @property
    def free_pages(self) -> int:
        return self._ledger.free_pages

    @property
    def awaited(self) -> frozenset[EngineId]:
        """Engines that must rejoin, or die, before anything is granted."""
        return frozenset(self._awaited)

    def must_rejoin(self, engine: EngineId) -> bool:
        """Whether a scheduler that links now must first say what its engine holds."""
        record = self._records.get(engine)
        return record is None or record.scheduler_seen or engine in self._awaited

    def check(self) -> None:
        """Raise OwnershipError unless the books agree (DESIGN §8.1)."""
        self._ledger.check()
        strangers = self._ledger.engines() - self._records.keys()
        if strangers:
            raise OwnershipError(f"pages of unknown engines {sorted(strangers)}")
        for operation in self._pending.values():
            if operation.engine not in self._records:
                raise OwnershipError(f"operation {operation.operation} of an unknown engine")

    def summary(self, now_s: float) -> DeviceSummary:
        return DeviceSummary(
            free_pages=self._ledger.free_pages,
            coming_pages=self._coming_pages(now_s),
            engines=tuple(self._summary(record) for record in self._records.values()),
        )

    # ---- events

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """Take in one event; what is to be sent, in order."""
        self._actions = []
        match event:
            case Linked():
                self._link(event)
            case Unlinked():
                self._unlink(event)
            case EngineDied():
                self._bury(event.engine)
            case Received():
                self._receive(event.engine, event.message, now_s)
            case Tick():
                self._watch_pools(now_s)
            case Directed():
                self._direct(event)
        self._settle(now_s)
        return tuple(self._actions)

    def _link(self, event: Linked) -> None:
        must_rejoin = self.must_rejoin(event.engine)
        record = self._records.setdefault(event.engine, EngineRecord(event.engine, event.model))
        if record.model != event.model:
            raise ProtocolError(f"engine {event.engine} runs {record.model}, not {event.model}")
        record.direction = self._directions.of(record.model)
        if event.role is m.Role.SCHEDULER:
            record.forget_link()
            record.linked = not must_rejoin
            record.scheduler_seen = True
            self._limits.pop(event.engine, None)

    def _unlink(self, event: Unlinked) -> None:
        record = self._records.get(event.engine)
        if record is None:
            return
        if event.role is m.Role.WORKER:
            self._takes = [take for take in self._takes if take.engine != event.engine]
        else:
            record.forget_link()
            self._asks.pop(event.engine, None)
            self._limits_stale = True

    def _bury(self, engine: EngineId) -> None:
        self._limits_stale = True
        self._ledger.forget_engine(engine)
        self._records.pop(engine, None)
        self._awaited.discard(engine)
        self._asks.pop(engine, None)
        self._limits.pop(engine, None)
        self._takes = [take for take in self._takes if take.engine != engine]
        self._pending = {o: p for o, p in self._pending.items() if p.engine != engine}

    def _direct(self, event: Directed) -> None:
        self._directions = event.directions
        self._withheld.clear()
        self._limits_stale = True
        for record in self._records.values():
            record.direction = event.directions.of(record.model)
            record.most_lendable_pages = 0

    def _receive(self, engine: EngineId, message: object, now_s: float) -> None:
        record = self._records.get(engine)
        if record is None:
            raise MisuseError(f"a message of {engine}, which is not linked")
        match message:
            case m.Take():
                self._enter_take(record, message, now_s)
                return
            case m.Rejoin():
                self._rejoin(record, message)
                return
        if not record.linked:
            raise ProtocolError(f"engine {engine} must rejoin before it sends anything else")
        match message:
            case m.Describe():
                record.describe(message, self._policy.slots)
                self._limits_stale = True
            case m.Report():
                before = record.plan
                self._limits_stale |= record.report(message, now_s, self._policy.slots)
                if record.plan != before:
                    self._explain_own(record, before, now_s)
                self._watch_pool(record, now_s)
            case m.Ask():
                self._enter_ask(record, message)
            case m.Done():
                self._finish(record, message)
            case m.Refused():
                self._refuse(record, message, now_s)
            case m.GiveBack():
                self._ledger.give_back(engine, message.pages)
            case _:
                raise ProtocolError(f"the agent does not take {type(message).__name__} here")

    def _watch_pools(self, now_s: float) -> None:
        """An engine that is silent is as it last said: idle ones say nothing more."""
        for record in self._records.values():
            if record.linked and record.description is not None:
                self._watch_pool(record, now_s)

    def _watch_pool(self, record: EngineRecord, now_s: float) -> None:
        if self._policy.reversion is not None:
            record.watch(self._view_of(record), now_s, self._policy.reversion)

    def _enter_take(self, record: EngineRecord, take: m.Take, now_s: float) -> None:
        if any(waiting.engine == record.engine for waiting in self._takes):
            raise ProtocolError(f"engine {record.engine} takes twice at once")
        self.counters.takes += 1
        self._takes.append(_Take(record.engine, take.request_id, take.pages, now_s))

    def _enter_ask(self, record: EngineRecord, ask: m.Ask) -> None:
        if record.description is None:
            raise ProtocolError(f"engine {record.engine} asks before it has described itself")
        self.counters.asks += 1
        self._next_ask += 1
        self._asks[record.engine] = _Ask(
            record.engine, ask.request_id, ask.pages, ask.pages, self._next_ask
        )

    def _finish(self, record: EngineRecord, done: m.Done) -> None:
        operation = self._answered(record, done.operation)
        self._require_held(record.engine, operation, done.pages)
        record.done(done)
        self._close(operation, record, done.pages)
        if operation is None or operation.plan is None:
            record.gave_back(len(done.pages))
        elif operation.pages_expected > 0:
            self.counters.remaps += 1
        else:
            self.counters.reversions += 1

    def _refuse(self, record: EngineRecord, refused: m.Refused, now_s: float) -> None:
        operation = self._answered(record, refused.operation)
        self._require_held(record.engine, operation, refused.pages)
        self._close(operation, record, refused.pages)
        self.counters.refusals += 1
        wait_s = min(MIN_RETRY_S * 2**record.refusals, MAX_RETRY_S)
        record.not_before_s = now_s + wait_s
        record.refusals += 1

    def _answered(self, record: EngineRecord, operation: OperationId) -> PendingOperation | None:
        """The operation that an engine answers; None if it was asked before a lost link."""
        pending = self._pending.get(operation)
        if pending is not None and pending.engine != record.engine:
            raise ProtocolError(f"engine {record.engine} answers another's operation")
        return pending

    def _require_held(
        self, engine: EngineId, operation: PendingOperation | None, pages: Iterable[PageId]
    ) -> None:
        """OwnershipError unless the engine holds ``pages``, or they went with ``operation``."""
        went_with = operation.operation if operation is not None else None
        for page in pages:
            owner = self._ledger.owner(page)
            if owner is None or owner.engine != engine or owner.operation not in (None, went_with):
                raise OwnershipError(f"engine {engine} returns page {page}, whose owner is {owner}")

    def _close(
        self,
        operation: PendingOperation | None,
        record: EngineRecord,
        pages: tuple[PageId, ...],
    ) -> None:
        if operation is not None:
            del self._pending[operation.operation]
            if operation.pages_taken:
                self._ledger.confirm(operation.operation)
        self._ledger.give_back(record.engine, pages)

    def _rejoin(self, record: EngineRecord, rejoin: m.Rejoin) -> None:
        """Make the ledger say what the engine says, unless another owns a page of it."""
        if record.linked or not record.scheduler_seen:
            raise ProtocolError(f"engine {record.engine} rejoins out of place")
        stated = set(rejoin.holdings.all())
        known = {
            page
            for page in map(PageId, range(self._ledger.pages))
            if (owner := self._ledger.owner(page)) is not None and owner.engine == record.engine
        }
        self._ledger.adopt(record.engine, sorted(stated - known))
        for operation in [p for p in self._pending.values() if p.engine == record.engine]:
            self._close(operation, record, ())
        self._ledger.give_back(record.engine, sorted(known - stated))
        self._awaited.discard(record.engine)
        record.linked = True
        self._limits_stale = True

    # ---- settling

    def _settle(self, now_s: float) -> None:
        if self._awaited:
            self._deny_while_rebuilding(now_s)
            return
        self._restore_overlent(now_s)
        self._serve_takes(now_s)
        self._serve_asks(now_s)
        self._lend_directed(now_s)
        self._revert(now_s)
        if self._limits_stale:
            self._limits_stale = False
            self._send_limits()

    def _deny_while_rebuilding(self, now_s: float) -> None:
        names = ", ".join(sorted(self._awaited))
        reason = f"the agent has restarted and waits for {names} to rejoin or end"
        for ask in list(self._asks.values()):
            self._deny_ask(ask, reason)
        self._deny_late_takes(now_s, reason)

    def _restore_overlent(self, now_s: float) -> None:
        """Free pages go first to models that lend more than load or operators allow."""
        view = self._device_view(now_s, owed_pages=0)
        overlent = {e.engine for e in view if overlent_row(e, self._policy) is not None}
        if not overlent:
            return
        decision = plan_reversion(view, self._policy, now_s)
        urgent = tuple(
            action
            for action in decision.actions
            if not isinstance(action, ApplyPlan)
            or action.freed_pages > 0
            or action.engine in overlent
        )
        self._perform(None, replace(decision, actions=urgent), view, now_s)

    def _serve_takes(self, now_s: float) -> None:
        """All or nothing, in order: what the first waits for is kept from all behind it."""
        while self._takes:
            take = self._takes[0]
            reason = self._take_obstacle(take, now_s)
            if reason is not None:
                self._deny_take(take, reason)
            elif take.pages <= self._ledger.free_pages:
                self._takes.pop(0)
                self._grant(take.engine, m.Role.WORKER, take.request_id, take.pages)
            else:
                break
        self._deny_late_takes(now_s, "other engines did not give their pages in time")

    def _take_obstacle(self, take: _Take, now_s: float) -> str | None:
        """Why the pages cannot be had, once all who can give were asked; None if they come."""
        obstacle = self._directions.start_obstacle(self._records[take.engine].model)
        if obstacle is not None:
            return obstacle
        missing = take.pages - self._ledger.free_pages - self._coming_pages(now_s)
        if missing <= 0:
            return None
        ceiling = self._ledger.pages - sum(
            self._least_pages(record)
            for record in self._records.values()
            if record.engine != take.engine
        )
        held = self._ledger.held_pages(take.engine)
        if take.pages + held > ceiling:
            return (
                f"the device is too small: {take.pages + held} pages wanted,"
                f" {take.pages + held - ceiling} more than its {self._ledger.pages} pages leave"
                " beside the engines on it"
            )
        newcomer = newcomer_view(take.engine, self._records[take.engine].model, _LEAST_PRIORITY)
        view = self._device_view(now_s, owed_pages=None)
        others = tuple(e for e in view.engines if e.engine != take.engine)
        view = replace(view, engines=(*others, newcomer))
        decision = plan_shortage(view, take.engine, missing, self._policy, now_s)
        self._perform(take.engine, decision, view, now_s)
        missing = take.pages - self._ledger.free_pages - self._coming_pages(now_s)
        if missing <= 0:
            return None
        return (
            f"{missing} of {take.pages} pages are missing: {self._ledger.free_pages} are free and"
            f" the other engines' pools are in use{self._held_back()}; start again when they are"
            " quieter"
        )

    def _serve_asks(self, now_s: float) -> None:
        """Grant from the free list; assign what comes; ask donors for the rest."""
        free_pages, coming_pages = self._after_takes(now_s)
        for ask in self._waiting_asks():
            granule_pages = self._granule_pages(ask.engine)
            now_pages = min(ask.missing_pages, free_pages)
            if now_pages < ask.missing_pages:
                now_pages -= now_pages % granule_pages
            if now_pages:
                free_pages -= now_pages
                ask.missing_pages -= now_pages
                self._grant(ask.engine, m.Role.SCHEDULER, ask.request_id, now_pages)
            if not ask.missing_pages:
                del self._asks[ask.engine]
                continue
            assigned_pages = min(ask.missing_pages, free_pages + coming_pages)
            short_pages = ask.missing_pages - assigned_pages
            free_part = min(assigned_pages, free_pages)
            free_pages -= free_part
            coming_pages -= assigned_pages - free_part
            if short_pages:
                found_pages, why = self._find(ask, short_pages, now_s)
                used_pages = min(found_pages, short_pages)
                coming_pages += found_pages - used_pages
                if assigned_pages - free_part + used_pages == 0:
                    self._deny_ask(ask, why)
                    free_pages += free_part

    def _find(self, ask: _Ask, short_pages: int, now_s: float) -> tuple[int, str]:
        """Ask donors for ``short_pages``; the pages that will come, or why none will."""
        view = self._device_view(now_s, owed_pages=None, include=ask.engine)
        decision = plan_shortage(view, ask.engine, short_pages, self._policy, now_s)
        before_pages = self._coming_pages(now_s)
        self._perform(ask.engine, decision, view, now_s)
        found_pages = self._coming_pages(now_s) - before_pages
        tried = "; ".join(
            f"{reason.engine}: {reason.why}" for reason in decision.reasons if reason.engine
        )
        return found_pages, (
            f"{ask.missing_pages} of {ask.pages} pages are not to be had"
            f" ({self._ledger.free_pages} free{'; ' + tried if tried else ''})"
            f"{self._held_back()}"
        )

    def _revert(self, now_s: float) -> None:
        view = self._device_view(now_s, owed_pages=self._owed_pages())
        self._perform(None, plan_reversion(view, self._policy, now_s), view, now_s)

    def _lend_directed(self, now_s: float) -> None:
        view = self._device_view(now_s, owed_pages=self._owed_pages())
        self._perform(None, plan_lending(view, self._policy, now_s), view, now_s)

    def _send_limits(self) -> None:
        """Tell each engine its bounds where they have changed."""
        # Who has not described itself yet may turn out to need little.
        described = [r for r in self._records.values() if r.description is not None]
        least_pages = {record.engine: self._least_pages(record) for record in described}
        for record in [r for r in described if r.linked]:
            view = self._view_of(record)
            lendable = self._lendable_pages(view, active=True)
            if record.measured:
                record.most_lendable_pages = max(record.most_lendable_pages, lendable)
                own_lendable = record.most_lendable_pages
            else:  # what it can lend is not known yet: fail no request for it
                own_lendable = self._lendable_pages(view, active=False)
            others = sum(pages for e, pages in least_pages.items() if e != record.engine)
            own = record.static_pages + sum(view.unit_pages) - own_lendable
            room = max(0, self._ledger.pages - others - own)
            limits = m.Limits(
                pool_limit_pages=min(room - room % view.granule_pages, record.pool_max_pages),
                allowance_pages=lendable,
                plan_held=self._effect is not Effect.PERFORMED,
                lend_most_pages=0 if record.direction and view.pinned else view.lend_most_pages,
            )
            if self._limits.get(record.engine) != limits:
                self._limits[record.engine] = limits
                self._actions.append(Send(record.engine, m.Role.SCHEDULER, limits))

    # ---- carrying out

    def _perform(
        self, engine: EngineId | None, decision: Decision, view: DeviceView, now_s: float
    ) -> None:
        """Ask engines for what was decided; what they cannot be asked for now is left out."""
        if self._effect is not Effect.PERFORMED:
            self._withhold(engine, decision, view, now_s)
            return
        performed = False
        for action in decision.actions:
            match action:
                case ReclaimPool():
                    performed |= self._send_shrink(action, now_s)
                case ApplyPlan():
                    performed |= self._send_plan(action, now_s)
        if performed:
            self._explain(engine, decision, view, now_s)

    @property
    def _effect(self) -> Effect:
        """What comes of decisions at present."""
        if self._directions.device.freeze:
            return Effect.FROZEN
        return Effect.SHADOWED if self._directions.device.shadow else Effect.PERFORMED

    def _withhold(
        self, engine: EngineId | None, decision: Decision, view: DeviceView, now_s: float
    ) -> None:
        """Explain what would have been done, once and not at each settling."""
        moves = tuple(a for a in decision.actions if isinstance(a, ReclaimPool | ApplyPlan))
        if not moves or (engine, moves) in self._withheld:
            return
        if len(self._withheld) >= MAX_WITHHELD:
            self._withheld.clear()
        self._withheld.add((engine, moves))
        self._explain(engine, decision, view, now_s)

    def _explain(
        self, engine: EngineId | None, decision: Decision, view: DeviceView, now_s: float
    ) -> None:
        inputs = tuple(decision_input(each, now_s) for each in view)
        self._actions.append(Explain(engine, decision, self._effect, view.free_pages, inputs))

    def _explain_own(self, record: EngineRecord, before: RemapPlan, now_s: float) -> None:
        """An engine that changed its plan unasked has used its standing allowance."""
        view = self._view_of(record)
        freed_pages = (
            view.plan_table.row_of(record.plan).freed_pages
            - view.plan_table.row_of(before).freed_pages
        )
        limits = self._limits.get(record.engine)
        allowance_pages = limits.allowance_pages if limits is not None else 0
        why = (
            f"its own layers for its own pool; {allowance_pages} pages are allowed, more only while"
            " it starves"
            if freed_pages > 0
            else "its own pool has room again"
        )
        rule = "own layers" if freed_pages > 0 else "restore own layers"
        reason = Reason(rule, record.engine, abs(freed_pages), abs(freed_pages), why)
        action = ApplyPlan(record.engine, record.plan, freed_pages)
        view = replace(view, plan=before)
        self._actions.append(
            Explain(
                record.engine,
                Decision(now_s, (action,), (reason,)),
                Effect.PERFORMED,
                self._ledger.free_pages,
                (decision_input(view, now_s),),
            )
        )

    def _held_back(self) -> str:
        """For the reason of a denial, while nothing may move."""
        match self._effect:
            case Effect.FROZEN:
                return ", and an operator has frozen all movement"
            case Effect.SHADOWED:
                return ", and shadow mode moves nothing"
        return ""

    def _send_shrink(self, action: ReclaimPool, now_s: float) -> bool:
        if not self._may_ask(action.engine, now_s):
            return False
        operation = self._new_operation()
        self._pending[operation] = PendingOperation(
            operation, action.engine, now_s, pages_expected=action.pages
        )
        self.counters.shrinks += 1
        self._actions.append(
            Send(
                action.engine,
                m.Role.SCHEDULER,
                m.Shrink(operation, action.pages, SHRINK_DEADLINE_S),
            )
        )
        return True

    def _send_plan(self, action: ApplyPlan, now_s: float) -> bool:
        """One plan at a time; pages that it needs go with it."""
        if not self._may_ask(action.engine, now_s) or any(
            p.plan is not None for p in self._pending_of(action.engine)
        ):
            return False
        taken_pages = max(0, -action.freed_pages)
        if taken_pages > self._ledger.free_pages:
            return False
        operation = self._new_operation()
        pages = self._ledger.take(action.engine, taken_pages, operation) if taken_pages else ()
        self._pending[operation] = PendingOperation(
            operation,
            action.engine,
            now_s,
            pages_expected=max(0, action.freed_pages),
            plan=action.plan,
            pages_taken=taken_pages,
        )
        self._actions.append(
            Send(action.engine, m.Role.SCHEDULER, m.ApplyPlan(operation, action.plan, pages))
        )
        return True

    def _may_ask(self, engine: EngineId, now_s: float) -> bool:
        record = self._records[engine]
        return record.linked and now_s >= record.not_before_s

    def _grant(self, engine: EngineId, role: m.Role, request_id: int, count: int) -> None:
        operation = self._new_operation()
        pages = self._ledger.take(engine, count, operation)
        # No answer comes: a link delivers, or is lost, and then the engine says what it holds.
        self._ledger.confirm(operation)
        self.counters.granted_pages += count
        self._actions.append(Send(engine, role, m.Granted(request_id, pages)))

    def _deny_ask(self, ask: _Ask, reason: str) -> None:
        del self._asks[ask.engine]
        self._deny(ask.engine, m.Role.SCHEDULER, ask.request_id, reason)

    def _deny_take(self, take: _Take, reason: str) -> None:
        self._takes.remove(take)
        self._deny(take.engine, m.Role.WORKER, take.request_id, reason)

    def _deny_late_takes(self, now_s: float, reason: str) -> None:
        for take in [t for t in self._takes if now_s - t.asked_s > TAKE_PATIENCE_S]:
            self._deny_take(take, reason)

    def _deny(self, engine: EngineId, role: m.Role, request_id: int, reason: str) -> None:
        self.counters.denials += 1
        self._actions.append(Send(engine, role, m.Denied(request_id, reason)))

    def _new_operation(self) -> OperationId:
        operation = OperationId(self._next_operation)
        self._next_operation += 1
        return operation

    # ---- counting

    def _pending_of(self, engine: EngineId) -> list[PendingOperation]:
        return [p for p in self._pending.values() if p.engine == engine]

    def _coming_pages(self, now_s: float) -> int:
        """Pages asked back from engines that can still be expected to answer.

        One that has lost its link rejoins or dies soon; either settles what it was asked for.
        """
        return sum(
            p.pages_expected
            for p in self._pending.values()
            if now_s - p.asked_s <= ANSWER_PATIENCE_S
        )

    def _owed_pages(self) -> int:
        return sum(take.pages for take in self._takes) + sum(
            ask.missing_pages for ask in self._asks.values()
        )

    def _after_takes(self, now_s: float) -> tuple[int, int]:
        """Pages free, and pages coming, that no take waits for."""
        free_pages, coming_pages = self._ledger.free_pages, self._coming_pages(now_s)
        for take in self._takes:
            free_part = min(take.pages, free_pages)
            free_pages -= free_part
            coming_pages -= min(take.pages - free_part, coming_pages)
        return free_pages, coming_pages

    def _waiting_asks(self) -> list[_Ask]:
        """1. most important engine; 2. oldest."""

        def rank(ask: _Ask) -> tuple[int, int]:
            return (-self._records[ask.engine].priority, ask.number)

        return sorted(self._asks.values(), key=rank)

    def _granule_pages(self, engine: EngineId) -> int:
        description = self._records[engine].description
        return description.granule_pages if description else 1

    def _held_pages(self, engine: EngineId) -> int:
        return self._ledger.held_pages(engine) + self._ledger.in_flight_pages(engine)

    def _least_pages(self, record: EngineRecord) -> int:
        """Pages that an engine cannot do without: while it starts, all that it has."""
        if record.description is None:
            return self._held_pages(record.engine)
        view = self._view_of(record)
        return record.least_pages + sum(view.unit_pages) - self._lendable_pages(view, active=False)

    def _lendable_pages(self, view: EngineView, *, active: bool) -> int:
        """Unit pages that the policy lets an engine lend at most, at its present cost."""
        if not self._policy.weights_move:
            return 0
        return most_lending_row(view, active, self._policy).freed_pages

    # ---- views

    def _view_of(self, record: EngineRecord) -> EngineView:
        return record.view(self._held_pages(record.engine), self._pending_of(record.engine))

    def _device_view(
        self, now_s: float, owed_pages: int | None, include: EngineId | None = None
    ) -> DeviceView:
        """The snapshot to decide from; ``owed_pages`` None: all that is free or coming is.

        Left out are engines that cannot be asked now, but for ``include``, which asks itself.
        """
        free_pages, coming_pages = self._ledger.free_pages, self._coming_pages(now_s)
        return DeviceView(
            free_pages=free_pages,
            engines=tuple(self._views(now_s, include)),
            coming_pages=coming_pages,
            owed_pages=free_pages + coming_pages if owed_pages is None else owed_pages,
            sharing=self._directions.device.sharing,
        )

    def _views(self, now_s: float, include: EngineId | None) -> Iterator[EngineView]:
        for record in self._records.values():
            if record.description is None or not record.linked:
                continue
            pending = self._pending_of(record.engine)
            late = any(now_s - p.asked_s > ANSWER_PATIENCE_S for p in pending)
            remapping = any(p.plan is not None for p in pending)
            silent = late or remapping or now_s < record.not_before_s
            if record.engine == include or not silent:
                yield record.view(self._held_pages(record.engine), pending)

    def _summary(self, record: EngineRecord) -> EngineSummary:
        engine = record.engine
        ask = self._asks.get(engine)
        waiting = ask.missing_pages if ask else 0
        waiting += sum(take.pages for take in self._takes if take.engine == engine)
        held = self._ledger.held_pages(engine)
        resident = slots = 0
        described = record.description
        if described is not None:
            unit_pages = described.unit_pages
            slots = sum(max(unit_pages[unit] for unit in members) for members in record.plan)
            resident = record.static_pages + record.plan.pages(unit_pages) - slots
        return EngineSummary(
            engine=engine,
            model=record.model,
            active=record.active,
            pool_pages=max(0, held - resident - slots),
            spare_pages=record.spare_pages,
            resident_pages=resident,
            slot_pages=slots,
            in_flight_pages=self._ledger.in_flight_pages(engine),
            cycled_units=len(record.plan.cycled),
            waiting_pages=waiting,
            priority=None if described is None else record.priority,
            pinned=None if described is None else record.pinned,
            units=None if described is None else len(described.unit_pages),
            unit_pages=None if described is None else sum(described.unit_pages),
            lent_pages=None if described is None else record.plan.freed_pages(described.unit_pages),
        )
