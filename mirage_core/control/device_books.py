"""The books of one device: who holds which page, what engines said, what they were asked for.

Nothing is decided here.  The snapshots that policy decides from are taken here, and counted in
them is what is on its way: pages that engines were asked for and will still bring back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mirage_core.control.device_summary import EngineSummary
from mirage_core.control.directed import NO_DIRECTIONS
from mirage_core.control.engine_record import EngineRecord, PendingOperation
from mirage_core.errors import OwnershipError, ProtocolError
from mirage_core.memory.ledger import Ledger
from mirage_core.model import EngineId, ModelName, OperationId, PageId
from mirage_core.policy.algorithm1 import most_lending_row
from mirage_core.policy.settings import Policy
from mirage_core.policy.view import DeviceView, EngineView

ANSWER_PATIENCE_S = 10.0
"""An operation unanswered for so long no longer counts as coming."""


class DeviceBooks:
    """Mutable: the arbiter writes, as engines speak; ``ledger`` is the truth about pages."""

    def __init__(self, pages: int, policy: Policy, awaited: Mapping[EngineId, ModelName]) -> None:
        self.ledger = Ledger(pages)
        self.records = {e: EngineRecord(e, model) for e, model in awaited.items()}
        self.pending: dict[OperationId, PendingOperation] = {}
        self.directions = NO_DIRECTIONS
        self._policy = policy

    def check(self) -> None:
        """Raise OwnershipError unless the books agree (DESIGN §8.1)."""
        self.ledger.check()
        strangers = self.ledger.engines() - self.records.keys()
        if strangers:
            raise OwnershipError(f"pages of unknown engines {sorted(strangers)}")
        for operation in self.pending.values():
            if operation.engine not in self.records:
                raise OwnershipError(f"operation {operation.operation} of an unknown engine")

    # ---- what engines do

    def forget(self, engine: EngineId) -> None:
        """It is dead: its pages are free."""
        self.ledger.forget_engine(engine)
        self.records.pop(engine, None)
        self.pending = {o: p for o, p in self.pending.items() if p.engine != engine}

    def answered(
        self, record: EngineRecord, operation: OperationId, pages: Iterable[PageId]
    ) -> PendingOperation | None:
        """The operation that an engine answers with ``pages``; None if it was asked before a
        lost link.  Raises ProtocolError or OwnershipError, and nothing was changed, if the
        operation is another's or a page is not the engine's to return.
        """
        pending = self.pending.get(operation)
        if pending is not None and pending.engine != record.engine:
            raise ProtocolError(f"engine {record.engine} answers another's operation")
        went_with = None if pending is None else operation
        for page in pages:
            owner = self.ledger.owner(page)
            if (
                owner is None
                or owner.engine != record.engine
                or owner.operation not in (None, went_with)
            ):
                raise OwnershipError(
                    f"engine {record.engine} returns page {page}, whose owner is {owner}"
                )
        return pending

    def close(
        self, operation: PendingOperation | None, record: EngineRecord, pages: tuple[PageId, ...]
    ) -> None:
        """``operation`` is over and brought ``pages`` back."""
        if operation is not None:
            del self.pending[operation.operation]
            if operation.pages_taken:
                self.ledger.confirm(operation.operation)
        self.ledger.give_back(record.engine, pages)

    def adopt(self, record: EngineRecord, stated: set[PageId]) -> None:
        """Make the ledger say what a returned engine says, unless another owns a page of it."""
        known = {
            page
            for page in map(PageId, range(self.ledger.pages))
            if (owner := self.ledger.owner(page)) is not None and owner.engine == record.engine
        }
        self.ledger.adopt(record.engine, sorted(stated - known))
        for operation in self.pending_of(record.engine):
            self.close(operation, record, ())
        self.ledger.give_back(record.engine, sorted(known - stated))

    # ---- counting

    @property
    def units_lent(self) -> bool:
        """Some engine lends units, or was asked to."""
        return any(record.plan.slots for record in self.records.values()) or any(
            operation.plan is not None for operation in self.pending.values()
        )

    def pending_of(self, engine: EngineId) -> list[PendingOperation]:
        return [p for p in self.pending.values() if p.engine == engine]

    def coming_pages(self, now_s: float) -> int:
        """Pages asked back from engines that can still be expected to answer.

        One that has lost its link rejoins or dies soon; either settles what it was asked for.
        """
        return sum(
            p.pages_expected
            for p in self.pending.values()
            if now_s - p.asked_s <= ANSWER_PATIENCE_S
        )

    def granule_pages(self, engine: EngineId) -> int:
        description = self.records[engine].description
        return description.granule_pages if description else 1

    def held_pages(self, engine: EngineId) -> int:
        return self.ledger.held_pages(engine) + self.ledger.in_flight_pages(engine)

    def least_pages(self, record: EngineRecord) -> int:
        """Pages that an engine cannot do without: while it starts, all that it has."""
        if record.description is None:
            return self.held_pages(record.engine)
        return self.least_pages_of(record, self.view_of(record))

    def least_pages_of(self, record: EngineRecord, view: EngineView) -> int:
        """``least_pages`` of one that has described itself, seen as ``view``."""
        return record.least_pages + sum(view.unit_pages) - self.lendable_pages(view, active=False)

    def lendable_pages(self, view: EngineView, *, active: bool) -> int:
        """Unit pages that the policy lets an engine lend at most, at its present cost."""
        if not self._policy.weights_move:
            return 0
        return most_lending_row(view, active, self._policy).freed_pages

    # ---- views

    def view_of(self, record: EngineRecord) -> EngineView:
        return record.view(self.held_pages(record.engine), self.pending_of(record.engine))

    def linked_views(self) -> Iterator[EngineView]:
        """Every engine that is heard, whether it can be asked now or not."""
        for record in self.records.values():
            if record.description is not None and record.linked:
                yield self.view_of(record)

    def device_view(
        self, now_s: float, owed_pages: int | None, include: EngineId | None = None
    ) -> DeviceView:
        """The snapshot to decide from; ``owed_pages`` None: all that is free or coming is.

        Left out are engines that cannot be asked now, but for ``include``, which asks itself.
        """
        free_pages, coming_pages = self.ledger.free_pages, self.coming_pages(now_s)
        return DeviceView(
            free_pages=free_pages,
            engines=tuple(self._views(now_s, include)),
            coming_pages=coming_pages,
            owed_pages=free_pages + coming_pages if owed_pages is None else owed_pages,
            sharing=self.directions.device.sharing,
        )

    def _views(self, now_s: float, include: EngineId | None) -> Iterator[EngineView]:
        for record in self.records.values():
            if record.description is None or not record.linked:
                continue
            pending = self.pending_of(record.engine)
            late = any(now_s - p.asked_s > ANSWER_PATIENCE_S for p in pending)
            remapping = any(p.plan is not None for p in pending)
            silent = late or remapping or now_s < record.not_before_s
            if record.engine == include or not silent:
                yield record.view(self.held_pages(record.engine), pending)

    def summary(self, record: EngineRecord, waiting_pages: int) -> EngineSummary:
        """``waiting_pages``: what the engine has asked for and not got."""
        engine = record.engine
        held = self.ledger.held_pages(engine)
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
            in_flight_pages=self.ledger.in_flight_pages(engine),
            cycled_units=len(record.plan.cycled),
            waiting_pages=waiting_pages,
            priority=None if described is None else record.priority,
            pinned=None if described is None else record.pinned,
            units=None if described is None else len(described.unit_pages),
            unit_pages=None if described is None else sum(described.unit_pages),
            lent_pages=None if described is None else record.plan.freed_pages(described.unit_pages),
        )
