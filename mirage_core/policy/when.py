"""When: a shortage is seen before it happens (§5.1), and memory given back after it (§7.6.1).

A pool that maps fewer blocks than the next steps need is short; blocks beyond the need are spare,
and the rest is the pool's *use*.  A pool gives back what is beyond its highest use of a whole hold
and a margin over that, so the two rules cannot chase each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from mirage_core.errors import ConfigError

_LOOKS_AHEAD = 8
"""Moments at which admission looks, evenly over its horizon."""


class Demand(NamedTuple):
    """What one request will have in the KV pool.

    held_tokens   computed: their blocks are held already (0 while it waits)
    next_tokens   known now, prompt included: computed within the next steps
    final_tokens  prompt and the most that it may generate
    """

    held_tokens: int
    next_tokens: int
    final_tokens: int


@dataclass(frozen=True, slots=True)
class Reversion:
    """Dynamic reversion (§7.6.1) with hysteresis.

    margin_share  part of the pages in use that a pool keeps mapped beyond them
    hold_s        seconds that pages must have been spare before they are given back
    """

    margin_share: float
    hold_s: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.margin_share < math.inf or not 0.0 <= self.hold_s < math.inf:
            raise ConfigError(f"reversion's margin and hold must be finite and not below 0: {self}")


@dataclass(frozen=True, slots=True)
class UseWatch:
    """What was seen of a pool's use, hold after hold.

    since_s          monotonic begin of the present hold
    peak_pages       highest use seen in it
    held_peak_pages  highest use in the whole hold before, and ever since; None in the first hold
    """

    since_s: float
    peak_pages: int
    held_peak_pages: int | None = None


def needed_blocks(
    demands: Iterable[Demand],
    *,
    block_tokens: int,
    max_running: int,
    horizon_steps: int,
) -> int:
    """KV blocks that the next ``horizon_steps`` steps need in all (§5.1).

    A pool with fewer is about to run out.  Requests in the order in which they run, waiting ones
    last: ``max_running`` of them count.  Each needs its whole prompt and grows by a token a step.
    """
    blocks = 0
    for held_tokens, next_tokens, final_tokens in islice(demands, max_running):
        tokens = max(held_tokens, min(next_tokens + horizon_steps, final_tokens))
        blocks += -(-tokens // block_tokens)
    return blocks


def admission_headroom_blocks(
    running: Iterable[Demand],
    waiting: Iterable[Demand],
    *,
    free_blocks: int,
    block_tokens: int,
    max_running: int,
    horizon_steps: int,
) -> int:
    """Free blocks to leave when waiting requests are admitted, so that none must give way soon.

    A scheduler admits waiting requests in turn while the free blocks beyond the headroom hold
    their prompts.  This headroom stops it where the requests then running would need more blocks
    than there are at some moment within ``horizon_steps``: what a request writes is lost when it
    is preempted.  A request that has ended by then needs none.
    """
    stride = -(-horizon_steps // _LOOKS_AHEAD)
    moments = range(stride, stride * _LOOKS_AHEAD + 1, stride) if stride else (0,)
    profile = [0] * len(moments)
    held_blocks = count = 0
    for demand in running:
        held_blocks += -(-demand.held_tokens // block_tokens)
        count += 1
        for place, step in enumerate(moments):
            profile[place] += _blocks_around(demand, step, stride, block_tokens)
    limit = held_blocks + free_blocks
    left = free_blocks
    for demand in islice(waiting, max(0, max_running - count)):
        for place, step in enumerate(moments):
            profile[place] += _blocks_around(demand, step, stride, block_tokens)
        prompt_blocks = -(-demand.next_tokens // block_tokens)
        if max(profile) > limit or prompt_blocks > left:
            return left
        left -= prompt_blocks
    return 0


def _blocks_around(demand: Demand, step: int, stride: int, block_tokens: int) -> int:
    """The most that a request holds within ``stride`` steps up to ``step``; 0 once it ended."""
    held_tokens, next_tokens, final_tokens = demand
    if next_tokens + step - stride > final_tokens:
        return 0
    return -(-max(held_tokens, min(next_tokens + step, final_tokens)) // block_tokens)


def watch_use(
    watch: UseWatch | None, used_pages: int, now_s: float, reversion: Reversion
) -> UseWatch:
    """``watch`` after one more look at a pool that uses ``used_pages``; None begins it."""
    if watch is None:
        watch = UseWatch(now_s, used_pages)
    peak_pages = max(watch.peak_pages, used_pages)
    if now_s - watch.since_s >= reversion.hold_s:
        return UseWatch(now_s, used_pages, held_peak_pages=peak_pages)
    held_peak_pages = watch.held_peak_pages
    if held_peak_pages is not None:
        held_peak_pages = max(held_peak_pages, used_pages)
    return UseWatch(watch.since_s, peak_pages, held_peak_pages)


def returnable_pages(
    watch: UseWatch | None,
    pool_pages: int,
    pool_min_pages: int,
    granule_pages: int,
    reversion: Reversion,
) -> int:
    """Pages, in whole granules, that a pool of ``pool_pages`` mapped pages can give back now.

    0 until a whole hold was watched.  Giving them back leaves nothing more to give: use does not
    change by it.
    """
    if watch is None or watch.held_peak_pages is None:
        return 0
    kept_pages = math.ceil(watch.held_peak_pages * (1.0 + reversion.margin_share))
    beyond_pages = max(0, pool_pages - max(kept_pages, pool_min_pages))
    return beyond_pages // granule_pages * granule_pages
