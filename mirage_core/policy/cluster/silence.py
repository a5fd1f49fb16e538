"""When missing agents stop all moves.

One silent agent is a broken node.  Many at once are more likely a broken network, or a controller
that has only just started; whoever moved models then would move them all.
"""

from __future__ import annotations

from mirage_core.policy.cluster.view import Standing

STOP_SHARE = 3
"""Moves stop when one agent in so many is silent."""


def may_move_models(known: int, silent: int) -> bool:
    """Whether models may be placed anew: fewer than a third of the ``known`` agents are silent."""
    return silent * STOP_SHARE < known


def standing_of(*, drained: bool, silent_s: float | None, lost_after_s: float) -> Standing:
    """The standing of a device that has been silent for ``silent_s`` (None: it is heard from)."""
    if drained or (silent_s is not None and silent_s >= lost_after_s):
        return Standing.CLOSED
    return Standing.OPEN if silent_s is None else Standing.SILENT
