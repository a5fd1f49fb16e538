"""Which model lends next: one total order of a device's engines (§5.2)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from mirage_core.cluster_model import Sharing
from mirage_core.model import EngineId
from mirage_core.policy.view import EngineView


class DonorOrder(Enum):
    """Who lends first among models of equal priority (§5.2, ablated in §7.2)."""

    MRU = "mru"
    """the most recently used: under round robin its next turn is furthest away"""
    LRU = "lru"
    """the least recently used"""
    PRIORITY = "priority"
    """priority alone decides"""


def rank_donors(
    engines: Iterable[EngineView], borrower: EngineId | None, order: DonorOrder
) -> list[EngineView]:
    """``engines``, the first to be asked first; the borrower has its place among them.

    1. inactive before active (the borrower counts as active);
    2. lowest priority first;
    3. the borrower before its equals: who needs pays first;
    4. as ``order`` says;
    5. by engine id, so that the order is total.
    """

    def key(view: EngineView) -> tuple[bool, int, bool, float, EngineId]:
        borrows = view.engine == borrower
        return (
            view.active or borrows,
            view.priority,
            not borrows,
            _recency(view, order),
            view.engine,
        )

    return sorted(engines, key=key)


def may_lend(view: EngineView, borrower: EngineView, sharing: Sharing = Sharing.SPATIAL) -> bool:
    """Whether ``view`` may lend unit pages to ``borrower``'s pool at all (§5.2).

    Never if pinned.  While active, under spatial sharing to a model at least as important, under
    temporal sharing to itself alone: it is its turn, or about to be.
    """
    if view.pinned:
        return False
    if not view.active or view.engine == borrower.engine:
        return True
    return sharing is Sharing.SPATIAL and view.priority <= borrower.priority


def _recency(view: EngineView, order: DonorOrder) -> float:
    if order is DonorOrder.MRU:
        return -view.last_active_s
    return view.last_active_s if order is DonorOrder.LRU else 0.0
