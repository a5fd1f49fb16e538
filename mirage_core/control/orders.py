"""Carrying out what was decided for one device: what is sent to engines, and what is explained.

Pages that an order needs are charged to the ledger before it is sent, so that nothing is granted
twice; what comes of an order is settled when the engine answers.  Freeze and shadow mode end
here: decisions are made and explained, and engines are asked for nothing.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_core.cluster_model import Effect
from mirage_core.control.arbiter_events import Action, Directed, Explain, Send
from mirage_core.control.device_books import DeviceBooks
from mirage_core.control.device_summary import Counters
from mirage_core.control.directed import decision_input
from mirage_core.control.engine_record import EngineRecord, PendingOperation
from mirage_core.model import EngineId, OperationId, RemapPlan
from mirage_core.policy.decision import ApplyPlan, Decision, Reason, ReclaimPool
from mirage_core.policy.view import DeviceView
from mirage_core.wire import messages as m

SHRINK_DEADLINE_S = 2.0
"""After it, the holders of the last blocks of a drain are preempted."""
MAX_WITHHELD = 256
"""Decisions that freeze or shadow mode withheld, remembered so as to be explained once."""


class Orders:
    """``actions`` are those of the present event, in the order in which they are to be sent."""

    def __init__(self, books: DeviceBooks, counters: Counters, first_operation: int) -> None:
        self.actions: list[Action] = []
        self._books = books
        self._counters = counters
        self._next_operation = first_operation
        self._limits: dict[EngineId, m.Limits] = {}
        self._withheld: set[tuple[EngineId | None, tuple[ReclaimPool | ApplyPlan, ...]]] = set()
        self._directed_by = ""
        """trace of the directive that the present event is"""
        self._room_by = ""
        """trace of the order that the present event answers"""

    def begin(self) -> None:
        """An event comes: nothing follows from it yet."""
        self.actions = []
        self._directed_by = self._room_by = ""

    def direct(self, event: Directed) -> None:
        """What is directed changed: what was withheld is explained anew."""
        self._books.directions = event.directions
        self._directed_by = event.traceparent
        self._withheld.clear()

    def done(self, operation: PendingOperation | None) -> None:
        """An order was carried out: its pages may be what a directive still waited for."""
        self._room_by = operation.traceparent if operation is not None else ""

    def perform(
        self, engine: EngineId | None, decision: Decision, view: DeviceView, now_s: float
    ) -> None:
        """Ask engines for what was decided; what they cannot be asked for now is left out."""
        if self.effect is not Effect.PERFORMED:
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
    def effect(self) -> Effect:
        """What comes of decisions at present."""
        if self._books.directions.device.freeze:
            return Effect.FROZEN
        return Effect.SHADOWED if self._books.directions.device.shadow else Effect.PERFORMED

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
        self.actions.append(Explain(engine, decision, self.effect, view.free_pages, inputs))

    def explain_own(self, record: EngineRecord, before: RemapPlan, now_s: float) -> None:
        """An engine that changed its plan unasked has used its standing allowance."""
        view = self._books.view_of(record)
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
        self.actions.append(
            Explain(
                record.engine,
                Decision(now_s, (action,), (reason,)),
                Effect.PERFORMED,
                self._books.ledger.free_pages,
                (decision_input(view, now_s),),
            )
        )

    def held_back(self) -> str:
        """For the reason of a denial, while nothing may move."""
        match self.effect:
            case Effect.FROZEN:
                return ", and an operator has frozen all movement"
            case Effect.SHADOWED:
                return ", and shadow mode moves nothing"
        return ""

    def _send_shrink(self, action: ReclaimPool, now_s: float) -> bool:
        if not self._may_ask(action.engine, now_s):
            return False
        operation = self._new_operation()
        self._books.pending[operation] = PendingOperation(
            operation,
            action.engine,
            now_s,
            pages_expected=action.pages,
            traceparent=self._directed_by,
        )
        self._counters.shrinks += 1
        self.actions.append(
            Send(
                action.engine,
                m.Role.SCHEDULER,
                m.Shrink(operation, action.pages, SHRINK_DEADLINE_S, self._directed_by),
            )
        )
        return True

    def _send_plan(self, action: ApplyPlan, now_s: float) -> bool:
        """One plan at a time; pages that it needs go with it."""
        if not self._may_ask(action.engine, now_s) or any(
            p.plan is not None for p in self._books.pending_of(action.engine)
        ):
            return False
        taken_pages = max(0, -action.freed_pages)
        if taken_pages > self._books.ledger.free_pages:
            return False
        operation = self._new_operation()
        pages = (
            self._books.ledger.take(action.engine, taken_pages, operation) if taken_pages else ()
        )
        traceparent = self._directed_by or (self._room_by if taken_pages else "")
        self._books.pending[operation] = PendingOperation(
            operation,
            action.engine,
            now_s,
            pages_expected=max(0, action.freed_pages),
            plan=action.plan,
            pages_taken=taken_pages,
            traceparent=traceparent,
        )
        message = m.ApplyPlan(operation, action.plan, pages, traceparent)
        self.actions.append(Send(action.engine, m.Role.SCHEDULER, message))
        return True

    def _may_ask(self, engine: EngineId, now_s: float) -> bool:
        record = self._books.records[engine]
        return record.linked and now_s >= record.not_before_s

    def grant(self, engine: EngineId, role: m.Role, request_id: int, count: int) -> None:
        operation = self._new_operation()
        pages = self._books.ledger.take(engine, count, operation)
        # No answer comes: a link delivers, or is lost, and then the engine says what it holds.
        self._books.ledger.confirm(operation)
        self._counters.granted_pages += count
        self.actions.append(Send(engine, role, m.Granted(request_id, pages)))

    def deny(self, engine: EngineId, role: m.Role, request_id: int, reason: str) -> None:
        self._counters.denials += 1
        self.actions.append(Send(engine, role, m.Denied(request_id, reason)))

    def _new_operation(self) -> OperationId:
        operation = OperationId(self._next_operation)
        self._next_operation += 1
        return operation

    # ---- bounds

    def tell_limits(self, engine: EngineId, limits: m.Limits) -> None:
        """Where they have changed."""
        if self._limits.get(engine) != limits:
            self._limits[engine] = limits
            self.actions.append(Send(engine, m.Role.SCHEDULER, limits))

    def forget_limits(self, engine: EngineId) -> None:
        """Whoever links next has heard nothing."""
        self._limits.pop(engine, None)
