"""The transfer engine as the weight store's ``Fetcher``."""

from __future__ import annotations

from collections.abc import Set

from mirage_core.model import RemapPlan, UnitId
from mirage_core.ports import Fence
from mirage_core.transfer.engine import TransferEngine


class _Drained:
    """The fence of a drained transfer engine at a step boundary of a CPU engine.

    The caller is the thread that computes, so nothing computes; and nothing is fetched until the
    engine is configured again.
    """

    def __init__(self) -> None:
        self.holds = True

    def passed(self) -> bool:
        return self.holds


class SlotFetcher:
    """Keeps the slots of a plan going (``weights.fetcher.Fetcher``)."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._fence = _Drained()

    def drain(self) -> Fence:
        self._engine.drain()
        self._fence = _Drained()
        return self._fence

    def present(self) -> Set[UnitId]:
        return self._engine.landed_units()

    def configure(self, plan: RemapPlan, present: Set[UnitId]) -> None:
        self._fence.holds = False
        self._engine.set_slots(plan.slots, present)
