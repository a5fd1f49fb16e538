"""What an agent is to make of a model on its device."""

from __future__ import annotations

from mirage_core.cluster_model import ModelState, ModelWish, Turn


def choose_turn(wish: ModelWish, *, placed: bool, running_elsewhere: int) -> Turn | None:
    """The turn of ``wish`` on one device; None: its engine says itself whether it is active.

    running_elsewhere  its replicas that are placed and run on other devices

    1. absent: it drains;
    2. placed here: inactive if that is wished, else as the engine says;
    3. not placed here: it drains once enough replicas run where they belong, and serves till then.
    """
    if wish.state is ModelState.ABSENT:
        return Turn.DRAINING
    if placed or running_elsewhere < wish.placement.replicas:
        return Turn.INACTIVE if wish.state is ModelState.INACTIVE else None
    return Turn.DRAINING
