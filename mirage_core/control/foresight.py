"""How far an engine's scheduler looks ahead: shared by the engine adapters and the simulator."""

from __future__ import annotations

HORIZON_STEPS = 64
"""The pool is to hold what requests will have so many decode steps from now; a request is admitted
only with room for as many."""
STUCK_PREEMPTIONS = 3
"""A request preempted so often, the last time with no other running, is stuck."""
STUCK_S = 1.0
"""So is an engine with requests whose steps compute nothing for so long."""
OWN_PLANS_INTERVAL_S = 5.0
"""Measured times drift; the table of own plans follows so often."""


def granules_needed(
    blocks: int, *, granule_blocks: int, min_granules: int, limit_granules: int
) -> int:
    """Granules for ``blocks`` (``policy.when.needed_blocks``): the pool's least at least, and no
    more than the device could ever give."""
    return max(min_granules, min(granules_holding(blocks, granule_blocks), limit_granules))


def granules_holding(blocks: int, granule_blocks: int) -> int:
    """Granules that hold ``blocks`` and vLLM's null block."""
    return -(-(blocks + 1) // granule_blocks)
