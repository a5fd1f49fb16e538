"""When: shortage predicted, use watched, pages given back with hysteresis (§5.1, §7.6.1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_snapshots import prove

from mirage_core.errors import ConfigError
from mirage_core.policy.when import (
    Demand,
    Reversion,
    UseWatch,
    admission_headroom_blocks,
    needed_blocks,
    returnable_pages,
    watch_use,
)

demands = st.builds(
    Demand,
    held_tokens=st.integers(0, 500),
    next_tokens=st.integers(0, 500),
    final_tokens=st.integers(0, 1000),
)


def test_running_request_needs_a_block_when_it_grows_out_of_its_last() -> None:
    running = Demand(held_tokens=29, next_tokens=30, final_tokens=100)
    assert needed_blocks([running], block_tokens=16, max_running=8, horizon_steps=2) == 2
    assert needed_blocks([running], block_tokens=16, max_running=8, horizon_steps=3) == 3


def test_waiting_request_needs_its_whole_prompt() -> None:
    waiting = Demand(held_tokens=0, next_tokens=100, final_tokens=300)
    assert needed_blocks([waiting], block_tokens=16, max_running=8, horizon_steps=1) == 7


def test_request_needs_nothing_beyond_its_last_token() -> None:
    ending = Demand(held_tokens=30, next_tokens=31, final_tokens=32)
    assert needed_blocks([ending], block_tokens=16, max_running=8, horizon_steps=50) == 2


def test_requests_that_cannot_run_yet_are_not_needed_yet() -> None:
    waiting = [Demand(held_tokens=0, next_tokens=16, final_tokens=16)] * 5
    assert needed_blocks(waiting, block_tokens=16, max_running=3, horizon_steps=16) == 3


@prove
@given(st.lists(demands), st.integers(1, 64), st.integers(0, 9), st.integers(0, 50))
def test_a_longer_view_never_needs_less(
    requests: list[Demand], block_tokens: int, max_running: int, horizon_steps: int
) -> None:
    def needed(steps: int) -> int:
        return needed_blocks(
            requests, block_tokens=block_tokens, max_running=max_running, horizon_steps=steps
        )

    held = sum(-(-request.held_tokens // block_tokens) for request in requests[:max_running])
    assert held <= needed(horizon_steps) <= needed(horizon_steps + 1)


def test_nothing_is_returned_before_a_whole_hold_was_watched() -> None:
    reversion = Reversion(margin_share=0.0, hold_s=2.0)
    watch = watch_use(None, 10, 0.0, reversion)
    assert returnable_pages(watch, 100, 0, 1, reversion) == 0
    watch = watch_use(watch, 30, 1.0, reversion)
    assert returnable_pages(watch, 100, 0, 1, reversion) == 0
    watch = watch_use(watch, 20, 2.0, reversion)
    assert returnable_pages(watch, 100, 0, 1, reversion) == 70


def test_without_hold_and_margin_everything_unused_is_returned_at_once() -> None:
    reversion = Reversion(margin_share=0.0, hold_s=0.0)
    watch = watch_use(None, 25, 5.0, reversion)
    assert returnable_pages(watch, 100, 0, 10, reversion) == 70


def test_use_that_rises_within_a_hold_is_kept_at_once() -> None:
    reversion = Reversion(margin_share=0.0, hold_s=1.0)
    watch = watch_use(UseWatch(0.0, 10, 10), 40, 0.5, reversion)
    assert returnable_pages(watch, 100, 0, 1, reversion) == 60


@prove
@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=30),
    st.integers(0, 100),
    st.integers(1, 9),
    st.floats(0.0, 2.0),
    st.integers(0, 5),
)
def test_what_was_used_within_the_last_hold_is_never_returned(
    used: list[int], minimum: int, granule: int, margin: float, hold: int
) -> None:
    reversion = Reversion(margin, float(hold))
    watch = None
    for now, pages in enumerate(used):
        watch = watch_use(watch, pages, float(now), reversion)
    back = returnable_pages(watch, 100, minimum, granule, reversion)
    recent = max(used[-(hold + 1) :])
    assert back % granule == 0
    assert back == 0 or 100 - back >= max(minimum, math.ceil(recent * (1 + margin)))
    assert len(used) > hold or back == 0
    # Giving it back leaves nothing more to give.
    assert returnable_pages(watch, 100 - back, minimum, granule, reversion) == 0


def test_hysteresis_must_be_finite_and_not_negative() -> None:
    for margin, hold in ((-0.1, 1.0), (0.1, -1.0), (math.nan, 1.0), (0.1, math.inf)):
        with pytest.raises(ConfigError):
            Reversion(margin, hold)


@st.composite
def newcomers(draw: st.DrawFn) -> Demand:
    next_tokens = draw(st.integers(1, 200))
    return Demand(
        held_tokens=0,
        next_tokens=next_tokens,
        final_tokens=next_tokens + draw(st.integers(0, 200)),
    )


@prove
@given(
    running=st.lists(newcomers(), max_size=6),
    waiting=st.lists(newcomers(), max_size=8),
    spare_blocks=st.integers(0, 80),
    horizon_steps=st.integers(0, 100),
)
def test_whoever_is_admitted_has_room_for_the_whole_horizon(
    running: list[Demand], waiting: list[Demand], spare_blocks: int, horizon_steps: int
) -> None:
    """Admit as vLLM does: in turn, while the free blocks beyond the headroom hold the prompt."""
    tokens, most = 16, 8
    running = [d._replace(held_tokens=d.next_tokens) for d in running]

    def at(step: int, several: list[Demand]) -> int:
        alive = [d for d in several if d.next_tokens + step <= d.final_tokens]
        return sum(-(-(d.next_tokens + step) // tokens) for d in alive)

    held = sum(-(-d.held_tokens // tokens) for d in running)
    free = spare_blocks
    headroom = admission_headroom_blocks(
        running,
        waiting,
        free_blocks=free,
        block_tokens=tokens,
        max_running=most,
        horizon_steps=horizon_steps,
    )
    admitted: list[Demand] = []
    left = free
    for demand in waiting[: most - len(running)]:
        prompt = -(-demand.next_tokens // tokens)
        if prompt + headroom > left:
            break
        admitted.append(demand)
        left -= prompt
    if admitted:
        assert all(at(step, running + admitted) <= held + free for step in range(horizon_steps + 1))


def test_requests_that_end_in_time_make_room_for_others() -> None:
    """Four blocks: the one that runs ends before the one that waits needs the fourth."""
    running = Demand(held_tokens=60, next_tokens=60, final_tokens=64)
    waiting = Demand(held_tokens=0, next_tokens=32, final_tokens=96)
    headroom = admission_headroom_blocks(
        [running], [waiting], free_blocks=2, block_tokens=32, max_running=8, horizon_steps=32
    )
    assert headroom == 0


def test_a_request_waits_while_its_growth_would_push_others_out() -> None:
    running = Demand(held_tokens=60, next_tokens=60, final_tokens=500)
    waiting = Demand(held_tokens=0, next_tokens=32, final_tokens=96)
    headroom = admission_headroom_blocks(
        [running], [waiting], free_blocks=2, block_tokens=32, max_running=8, horizon_steps=64
    )
    assert headroom == 2


def test_a_lone_request_is_admitted_once_its_prompt_and_growth_fit() -> None:
    lone = Demand(held_tokens=0, next_tokens=64, final_tokens=96)
    headroom = admission_headroom_blocks(
        [], [lone], free_blocks=3, block_tokens=32, max_running=8, horizon_steps=64
    )
    assert headroom + 2 <= 3
