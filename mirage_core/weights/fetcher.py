"""What a weight store asks of whatever fetches units (the transfer engine)."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from mirage_core.model import RemapPlan, UnitId
from mirage_core.ports import Fence


class Fetcher(Protocol):
    """Brings units' bytes from the host copy to their spans, whose addresses never change.

    It touches memory between ``configure`` and the next ``drain`` only.  Whoever computes with a
    unit waits for it there; a unit that cannot be brought raises TransferError at that wait.
    """

    def drain(self) -> Fence:
        """Start no more fetches, wait for those under way, and return the fence of all work,
        computing included, that touched units."""
        ...

    def present(self) -> Set[UnitId]:
        """After ``drain``: units whose bytes lie whole, and right, in their spans."""
        ...

    def configure(self, plan: RemapPlan, present: Set[UnitId]) -> None:
        """Adopt a plan, of which the ``present`` units need no fetch, and return at once.

        It fetches every other resident unit, and keeps the slots going from now on.
        """
        ...
