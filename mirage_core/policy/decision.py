"""What is to be done on a device, and why: values for the arbiter to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mirage_core.model import EngineId, RemapPlan


@dataclass(frozen=True, slots=True)
class GrantPages:
    """Give ``pages`` of the free list to the engine's KV pool."""

    engine: EngineId
    pages: int


@dataclass(frozen=True, slots=True)
class ReclaimPool:
    """Ask the engine for ``pages`` of its KV pool (whole granules)."""

    engine: EngineId
    pages: int


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """Ask the engine to take on ``plan``.

    freed_pages  pages that come back by it; below 0, pages of the free list that it takes
    """

    engine: EngineId
    plan: RemapPlan
    freed_pages: int


Action = GrantPages | ReclaimPool | ApplyPlan


class Reason(NamedTuple):
    """One rule that was tried: what it was asked for, what it gave, and on what grounds."""

    rule: str
    engine: EngineId | None
    asked_pages: int
    given_pages: int
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions in the order to take them.

    decided_s     monotonic time of the snapshot
    short_pages   pages that no rule could find
    coming_pages  pages that the actions bring to the free list once engines have done them
    """

    decided_s: float
    actions: tuple[Action, ...] = ()
    reasons: tuple[Reason, ...] = ()
    short_pages: int = 0

    @property
    def coming_pages(self) -> int:
        return sum(
            action.pages if isinstance(action, ReclaimPool) else action.freed_pages
            for action in self.actions
            if isinstance(action, ReclaimPool)
            or (isinstance(action, ApplyPlan) and action.freed_pages > 0)
        )
