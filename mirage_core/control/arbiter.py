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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_core.cluster_model import Effect
from mirage_core.control.arbiter_events import (
    Action,
    Directed,
    EngineDied,
    Event,
    Linked,
    Received,
    Tick,
    Unlinked,
)
from mirage_core.control.device_books import DeviceBooks
from mirage_core.control.device_summary import Counters, DeviceSummary
from mirage_core.control.engine_record import EngineRecord, newcomer_view
from mirage_core.control.orders import Orders
from mirage_core.errors import MisuseError, ProtocolError
from mirage_core.model import EngineId, ModelName
from mirage_core.policy.algorithm1 import (
    overlent_row,
    plan_lending,
    plan_reversion,
    plan_shortage,
    recalled_pages,
)
from mirage_core.policy.decision import ApplyPlan
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView
from mirage_core.wire import messages as m

TAKE_PATIENCE_S = 60.0
"""An engine that starts waits so long for its pages, then is denied."""
MIN_RETRY_S = 0.25
MAX_RETRY_S = 8.0
"""An engine that refuses is left alone for a time that doubles with each refusal."""
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
        self._books = DeviceBooks(pages, policy, awaited or {})
        self._awaited = set(self._books.records)
        self._next_ask = 0
        self._takes: list[_Take] = []
        self._asks: dict[EngineId, _Ask] = {}
        self._limits_stale = False
        self.counters = Counters()
        self._orders = Orders(self._books, self.counters, first_operation)

    # ---- what others may know

    @property
    def free_pages(self) -> int:
        return self._books.ledger.free_pages

    @property
    def awaited(self) -> frozenset[EngineId]:
        """Engines that must rejoin, or die, before anything is granted."""
        return frozenset(self._awaited)

    def must_rejoin(self, engine: EngineId) -> bool:
        """Whether a scheduler that links now must first say what its engine holds."""
        record = self._books.records.get(engine)
        return record is None or record.scheduler_seen or engine in self._awaited

    def check(self) -> None:
        """Raise OwnershipError unless the books agree (DESIGN §8.1)."""
        self._books.check()

    def summary(self, now_s: float) -> DeviceSummary:
        return DeviceSummary(
            free_pages=self._books.ledger.free_pages,
            coming_pages=self._books.coming_pages(now_s),
            engines=tuple(
                self._books.summary(record, self._waiting_pages(record.engine))
                for record in self._books.records.values()
            ),
        )

    # ---- events

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """Take in one event; what is to be sent, in order."""
        self._orders.begin()
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
        return tuple(self._orders.actions)

    def _link(self, event: Linked) -> None:
        must_rejoin = self.must_rejoin(event.engine)
        record = self._books.records.setdefault(
            event.engine, EngineRecord(event.engine, event.model)
        )
        if record.model != event.model:
            raise ProtocolError(f"engine {event.engine} runs {record.model}, not {event.model}")
        record.direction = self._books.directions.of(record.model)
        if event.role is m.Role.SCHEDULER:
            record.forget_link()
            record.linked = not must_rejoin
            record.scheduler_seen = True
            self._orders.forget_limits(event.engine)

    def _unlink(self, event: Unlinked) -> None:
        record = self._books.records.get(event.engine)
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
        self._books.forget(engine)
        self._awaited.discard(engine)
        self._asks.pop(engine, None)
        self._orders.forget_limits(engine)
        self._takes = [take for take in self._takes if take.engine != engine]

    def _direct(self, event: Directed) -> None:
        self._orders.direct(event)
        self._limits_stale = True
        for record in self._books.records.values():
            record.direction = event.directions.of(record.model)
            record.most_lendable_pages = 0

    def _receive(self, engine: EngineId, message: object, now_s: float) -> None:
        record = self._books.records.get(engine)
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
                    self._orders.explain_own(record, before, now_s)
                self._watch_pool(record, now_s)
            case m.Ask():
                self._enter_ask(record, message)
            case m.Done():
                self._finish(record, message)
            case m.Refused():
                self._refuse(record, message, now_s)
            case m.GiveBack():
                self._books.ledger.give_back(engine, message.pages)
            case _:
                raise ProtocolError(f"the agent does not take {type(message).__name__} here")

    def _watch_pools(self, now_s: float) -> None:
        """An engine that is silent is as it last said: idle ones say nothing more."""
        for record in self._books.records.values():
            if record.linked and record.description is not None:
                self._watch_pool(record, now_s)

    def _watch_pool(self, record: EngineRecord, now_s: float) -> None:
        if self._policy.reversion is not None:
            held_pages = self._books.held_pages(record.engine)
            pending = self._books.pending_of(record.engine)
            record.watch(held_pages, pending, now_s, self._policy.reversion)

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
        operation = self._books.answered(record, done.operation, done.pages)
        record.done(done)
        self._books.close(operation, record, done.pages)
        self._orders.done(operation)
        if operation is None or operation.plan is None:
            record.gave_back(len(done.pages))
        elif operation.pages_expected > 0:
            self.counters.remaps += 1
        else:
            self.counters.reversions += 1

    def _refuse(self, record: EngineRecord, refused: m.Refused, now_s: float) -> None:
        operation = self._books.answered(record, refused.operation, refused.pages)
        self._books.close(operation, record, refused.pages)
        self.counters.refusals += 1
        wait_s = min(MIN_RETRY_S * 2**record.refusals, MAX_RETRY_S)
        record.not_before_s = now_s + wait_s
        record.refusals += 1

    def _rejoin(self, record: EngineRecord, rejoin: m.Rejoin) -> None:
        if record.linked or not record.scheduler_seen:
            raise ProtocolError(f"engine {record.engine} rejoins out of place")
        self._books.adopt(record, set(rejoin.holdings.all()))
        self._awaited.discard(record.engine)
        record.linked = True
        self._limits_stale = True

    # ---- settling

    def _settle(self, now_s: float) -> None:
        if self._awaited:
            self._deny_while_rebuilding(now_s)
            return
        view = self._books.device_view(now_s, owed_pages=0) if self._books.units_lent else None
        if view is not None:
            self._restore_overlent(view, now_s)
        self._serve_takes(now_s)
        self._serve_asks(now_s)
        self._lend_directed(now_s)
        if view is not None or self._books.units_lent:
            self._revert(view, now_s)
        if self._limits_stale:
            self._limits_stale = False
            self._send_limits()

    def _deny_while_rebuilding(self, now_s: float) -> None:
        names = ", ".join(sorted(self._awaited))
        reason = f"the agent has restarted and waits for {names} to rejoin or end"
        for ask in list(self._asks.values()):
            self._deny_ask(ask, reason)
        self._deny_late_takes(now_s, reason)

    def _restore_overlent(self, view: DeviceView, now_s: float) -> None:
        """Free pages go first to models that lend more than load or operators allow."""
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
        self._orders.perform(None, replace(decision, actions=urgent), view, now_s)

    def _serve_takes(self, now_s: float) -> None:
        """All or nothing, in order: what the first waits for is kept from all behind it."""
        while self._takes:
            take = self._takes[0]
            reason = self._take_obstacle(take, now_s)
            if reason is not None:
                self._deny_take(take, reason)
            elif take.pages <= self._books.ledger.free_pages:
                self._takes.pop(0)
                self._orders.grant(take.engine, m.Role.WORKER, take.request_id, take.pages)
            else:
                break
        self._deny_late_takes(now_s, "other engines did not give their pages in time")

    def _take_obstacle(self, take: _Take, now_s: float) -> str | None:
        """Why the pages cannot be had, once all who can give were asked; None if they come."""
        model = self._books.records[take.engine].model
        obstacle = self._books.directions.start_obstacle(model)
        if obstacle is not None:
            return obstacle
        ledger = self._books.ledger
        missing = take.pages - ledger.free_pages - self._books.coming_pages(now_s)
        if missing <= 0:
            return None
        ceiling = ledger.pages - sum(
            self._books.least_pages(record)
            for record in self._books.records.values()
            if record.engine != take.engine
        )
        wanted = take.pages + ledger.held_pages(take.engine)
        if wanted > ceiling:
            return (
                f"the device is too small: {wanted} pages wanted, {wanted - ceiling} more than its"
                f" {ledger.pages} pages leave beside the engines on it"
            )
        newcomer = newcomer_view(take.engine, model, _LEAST_PRIORITY)
        view = self._books.device_view(now_s, owed_pages=None)
        others = tuple(e for e in view.engines if e.engine != take.engine)
        view = replace(view, engines=(*others, newcomer))
        decision = plan_shortage(view, take.engine, missing, self._policy, now_s)
        self._orders.perform(take.engine, decision, view, now_s)
        missing = take.pages - ledger.free_pages - self._books.coming_pages(now_s)
        if missing <= 0:
            return None
        return (
            f"{missing} of {take.pages} pages are missing: {ledger.free_pages} are free and the"
            f" other engines' pools are in use{self._orders.held_back()}; start again when they"
            " are quieter"
        )

    def _serve_asks(self, now_s: float) -> None:
        """Grant from the free list; assign what comes; ask donors for the rest."""
        if not self._asks:
            return
        free_pages, coming_pages = self._after_takes(now_s)
        for ask in self._waiting_asks():
            granule_pages = self._books.granule_pages(ask.engine)
            now_pages = min(ask.missing_pages, free_pages)
            if now_pages < ask.missing_pages:
                now_pages -= now_pages % granule_pages
            if now_pages:
                free_pages -= now_pages
                ask.missing_pages -= now_pages
                self._orders.grant(ask.engine, m.Role.SCHEDULER, ask.request_id, now_pages)
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
        view = self._books.device_view(now_s, owed_pages=None, include=ask.engine)
        decision = plan_shortage(view, ask.engine, short_pages, self._policy, now_s)
        before_pages = self._books.coming_pages(now_s)
        self._orders.perform(ask.engine, decision, view, now_s)
        found_pages = self._books.coming_pages(now_s) - before_pages
        tried = "; ".join(
            f"{reason.engine}: {reason.why}" for reason in decision.reasons if reason.engine
        )
        return found_pages, (
            f"{ask.missing_pages} of {ask.pages} pages are not to be had"
            f" ({self._books.ledger.free_pages} free{'; ' + tried if tried else ''})"
            f"{self._orders.held_back()}"
        )

    def _revert(self, view: DeviceView | None, now_s: float) -> None:
        """``view`` is of the settling's start, and serves if nothing was done since."""
        if view is None or self._orders.actions:
            view = self._books.device_view(now_s, owed_pages=0)
        owed_pages = self._owed_pages()
        if owed_pages:
            view = replace(view, owed_pages=owed_pages)
        self._orders.perform(None, plan_reversion(view, self._policy, now_s), view, now_s)

    def _lend_directed(self, now_s: float) -> None:
        if not self._books.directions.lending:
            return
        view = self._books.device_view(now_s, owed_pages=self._owed_pages())
        self._orders.perform(None, plan_lending(view, self._policy, now_s), view, now_s)

    def _send_limits(self) -> None:
        """Tell each engine its bounds where they have changed."""
        # Who has not described itself yet may turn out to need little.
        described = [r for r in self._books.records.values() if r.description is not None]
        views = {record.engine: self._books.view_of(record) for record in described}
        least_pages = {
            record.engine: self._books.least_pages_of(record, views[record.engine])
            for record in described
        }
        for record in [r for r in described if r.linked]:
            view = views[record.engine]
            lendable = self._books.lendable_pages(view, active=True)
            if record.measured:
                record.most_lendable_pages = max(record.most_lendable_pages, lendable)
                own_lendable = record.most_lendable_pages
            else:  # what it can lend is not known yet: fail no request for it
                own_lendable = self._books.lendable_pages(view, active=False)
            others = sum(pages for e, pages in least_pages.items() if e != record.engine)
            own = record.static_pages + sum(view.unit_pages) - own_lendable
            room = max(0, self._books.ledger.pages - others - own)
            limits = m.Limits(
                pool_limit_pages=min(room - room % view.granule_pages, record.pool_max_pages),
                allowance_pages=lendable,
                plan_held=self._orders.effect is not Effect.PERFORMED,
                lend_most_pages=self._lend_most_pages(record, view),
            )
            self._orders.tell_limits(record.engine, limits)

    def _lend_most_pages(self, record: EngineRecord, view: EngineView) -> int | None:
        """Bound of what it may lend even to itself, however it starves; None: no bound."""
        if not self._policy.weights_move or (record.direction and view.pinned):
            return 0
        return view.lend_most_pages

    # ---- denying

    def _deny_ask(self, ask: _Ask, reason: str) -> None:
        del self._asks[ask.engine]
        self._orders.deny(ask.engine, m.Role.SCHEDULER, ask.request_id, reason)

    def _deny_take(self, take: _Take, reason: str) -> None:
        self._takes.remove(take)
        self._orders.deny(take.engine, m.Role.WORKER, take.request_id, reason)

    def _deny_late_takes(self, now_s: float, reason: str) -> None:
        for take in [t for t in self._takes if now_s - t.asked_s > TAKE_PATIENCE_S]:
            self._deny_take(take, reason)

    # ---- counting

    def _owed_pages(self) -> int:
        return sum(take.pages for take in self._takes) + sum(
            ask.missing_pages for ask in self._asks.values()
        )

    def _after_takes(self, now_s: float) -> tuple[int, int]:
        """Pages free, and pages coming, that no take and no recall waits for."""
        free_pages, coming_pages = self._books.ledger.free_pages, self._books.coming_pages(now_s)
        recalled = recalled_pages(self._books.linked_views(), self._policy, now_s)
        for pages in (*(take.pages for take in self._takes), recalled):
            free_part = min(pages, free_pages)
            free_pages -= free_part
            coming_pages -= min(pages - free_part, coming_pages)
        return free_pages, coming_pages

    def _waiting_asks(self) -> list[_Ask]:
        """1. most important engine; 2. oldest."""

        def rank(ask: _Ask) -> tuple[int, int]:
            return (-self._books.records[ask.engine].priority, ask.number)

        return sorted(self._asks.values(), key=rank)

    def _waiting_pages(self, engine: EngineId) -> int:
        ask = self._asks.get(engine)
        taken = sum(take.pages for take in self._takes if take.engine == engine)
        return taken + (ask.missing_pages if ask else 0)
