"""What requests claim of a pool, and for how many decode steps a port's answer to that stands."""

from __future__ import annotations

from collections.abc import Iterable

from mirage_core.policy.when import Demand
from mirage_core.simulator.memory_port import EngineView

QUIET_STEPS = 1 << 40
"""No number of steps changes the answer (below NEVER_PS, which would also mean: no event does)."""


def claims_of(view: EngineView, limit_tokens: int, *, waiting: bool) -> list[Demand]:
    """Demands in the order in which they run, until they exceed ``limit_tokens`` in all.

    Without ``waiting`` requests: what running ones hold.
    """
    claims: list[Demand] = []
    if not view.unfinished:
        return claims
    tokens = 0
    for demand in view.demands():
        if not waiting and not demand.held_tokens:
            break
        claims.append(demand)
        tokens += demand.next_tokens
        if tokens > limit_tokens:
            break
    return claims


def steps_until_more(
    demands: Iterable[Demand], *, block_tokens: int, horizon_steps: int, spare_blocks: int
) -> int:
    """Decode steps for which ``needed_blocks`` of ``demands`` grows by ``spare_blocks`` at most.

    Every request that computes has one more token each step, so in ``block_tokens`` steps it needs
    one block more, at a step that its length decides.  Requests that end are events, and what they
    would not come to need only makes the answer too small.
    """
    if spare_blocks < 0:
        return 0
    due = sorted(
        -(next_tokens + horizon_steps) % block_tokens + 1
        for held_tokens, next_tokens, final_tokens in demands
        if held_tokens and next_tokens + horizon_steps <= final_tokens
    )
    if not due:
        return QUIET_STEPS
    rounds, rest = divmod(spare_blocks, len(due))
    return rounds * block_tokens + due[rest] - 1
