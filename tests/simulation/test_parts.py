"""Parts of the simulator by themselves: closed forms against plain counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_core.errors import ConfigError
from mirage_core.simulator.config import LinkSpec, SchedulerLimits
from mirage_core.simulator.link import Direction, LinkDomain
from mirage_core.simulator.pool import DecodeGrowth, PrefixCache
from mirage_core.simulator.segment import Segment, decode_line, fewest_steps
from mirage_core.simulator.step_models import (
    FittedStepTime,
    RooflineCosts,
    RooflineStepTime,
    TableStepTime,
)
from mirage_core.simulator.step_time import Batch, Stretch

PHASES = st.lists(st.integers(0, 7), min_size=1, max_size=30)
ROOFLINES = st.builds(
    RooflineCosts,
    weight_bytes=st.floats(1e6, 1e11),
    kv_bytes_per_token=st.floats(0, 1e6),
    flops_per_token=st.floats(0, 1e12),
    flops_per_pair=st.floats(0, 1e8),
    bytes_per_s=st.floats(1e9, 1e13),
    flops_per_s=st.floats(1e11, 1e15),
    step_overhead_s=st.floats(0, 1e-2),
    request_overhead_s=st.floats(0, 1e-4),
    expert_bytes=st.floats(0, 1e11),
    expert_share=st.floats(0, 1),
)


@given(phases=PHASES, tick=st.integers(0, 100), steps=st.integers(0, 60))
def test_growth_counts_what_counting_step_by_step_gives(
    phases: list[int], tick: int, steps: int
) -> None:
    growth = DecodeGrowth(8)
    for phase in phases:
        growth.add(phase)
    counted = sum(phases.count((tick + step) % 8) for step in range(steps))
    assert growth.blocks(tick, steps) == counted


@given(phases=PHASES, tick=st.integers(0, 100), steps=st.integers(0, 60), blocks=st.integers(0, 90))
def test_steps_within_a_pool_are_the_most_that_fit(
    phases: list[int], tick: int, steps: int, blocks: int
) -> None:
    growth = DecodeGrowth(8)
    for phase in phases:
        growth.add(phase)
    within = growth.steps_within(tick, steps, blocks)
    assert growth.blocks(tick, within) <= blocks
    assert within == steps or growth.blocks(tick, within + 1) > blocks


@given(first=st.integers(1, 10**12), growth=st.integers(0, 10**9), span=st.integers(-5, 10**15))
def test_fewest_steps_are_enough_and_one_less_is_not(first: int, growth: int, span: int) -> None:
    def end(steps: int) -> int:
        return steps * first + growth * (steps * (steps - 1) // 2)

    steps = fewest_steps(first, growth, span)
    assert end(steps) >= span
    assert steps == 0 or end(steps - 1) < span


def test_a_cut_segment_ends_at_the_first_boundary_from_then_on() -> None:
    segment = Segment(100, 10, 2, 5, 3, 0, (0, 0, 0, 0, 0, 0))  # ends at 110, 122, 136, 152, 170
    moments = (0, 110, 111, 136, 151, 170, 999)
    assert [segment.steps_to(at) for at in moments] == [1, 1, 2, 3, 4, 5, 5]


@given(
    costs=ROOFLINES,
    decodes=st.integers(1, 300),
    context=st.integers(1, 10**6),
    more=st.integers(0, 10**6),
)
def test_a_line_holds_as_far_as_it_says_and_never_falls(
    costs: RooflineCosts, decodes: int, context: int, more: int
) -> None:
    model = RooflineStepTime(costs)
    line = model.decode_line(decodes, context)
    assert line.until_tokens >= context
    assert line.slope_ps >= 0
    further = min(context + more, line.until_tokens)
    there = model.decode_line(decodes, further)
    now = line.base_ps + line.slope_ps * further
    assert there.base_ps + there.slope_ps * further == now
    assert now > 0
    # A step with a prompt beside the same requests is not shorter.
    assert model.mixed_step_ps(Batch(decodes, further, 1, 10, 55, 10)) >= now - decodes


@given(
    costs=ROOFLINES,
    context=st.integers(1, 10**6),
    base=st.integers(-(10**12), 10**12),
    per_context=st.integers(0, 10**6),
    share=st.integers(0, 2048),
)
def test_a_stretched_line_is_the_later_of_its_two_sides(
    costs: RooflineCosts, context: int, base: int, per_context: int, share: int
) -> None:
    plain = RooflineStepTime(costs).decode_line(4, context)
    stretch = Stretch(base, per_context, share)
    line = decode_line(plain, 1024, stretch, context)
    waits = stretch.line(plain)
    assert context <= line.until_tokens <= plain.until_tokens
    for tokens in {context, min(line.until_tokens, context + 10**7)}:
        assert line.base_ps + line.slope_ps * tokens == max(
            plain.base_ps + plain.slope_ps * tokens, waits.base_ps + waits.slope_ps * tokens
        )


def test_a_profile_gives_its_own_points_and_lines_between() -> None:
    table = TableStepTime(
        batches=(1, 3),
        contexts=(0, 100, 300),
        decode_s=((1.0, 2.0, 3.0), (2.0, 4.0, 9.0)),
        prompts=(1, 11),
        prefill_s=(1.0, 3.0),
    )

    def decode_s(decodes: int, context: int) -> float:
        line = table.decode_line(decodes, context)
        return (line.base_ps + line.slope_ps * context) / 1e12

    assert [decode_s(1, c) for c in (0, 50, 100, 200, 300)] == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert decode_s(2, 100) == 3.0
    assert table.mixed_step_ps(Batch(0, 0, 1, 6, 21, 6)) == 2 * 10**12
    assert table.mixed_step_ps(Batch(3, 100, 1, 11, 66, 11)) == 6 * 10**12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": (3, 1)}, "batches must ascend"),
        ({"decode_s": ((1.0, 2.0), (3.0, 2.0))}, r"decode_s\[1\] must be positive and not fall"),
        ({"prefill_s": (1.0,)}, "one time a prompt length"),
    ],
)
def test_a_bad_profile_is_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "batches": (1, 3),
        "contexts": (0, 100),
        "decode_s": ((1.0, 2.0), (2.0, 4.0)),
        "prompts": (1, 11),
        "prefill_s": (1.0, 3.0),
    }
    with pytest.raises(ConfigError, match=message):
        TableStepTime(**(good | change))  # type: ignore[arg-type]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="a step would take no time"):
        RooflineStepTime(RooflineCosts(0, 1, 1, 1, 1e12, 1e15))
    with pytest.raises(ConfigError, match="step_ps is 0"):
        FittedStepTime(0, 0, 0, 0, 0, 0)
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 8"):
        SchedulerLimits(max_num_batched_tokens=8, max_num_seqs=16)


def test_devices_of_one_domain_share_its_link_and_directions_do_not() -> None:
    link = LinkDomain(LinkSpec("grace", 400.0, 200.0, 300.0, 150.0))
    to_device, to_host = Direction.TO_DEVICE, Direction.TO_HOST
    assert link.rate_bytes_per_s("a", to_device) == 300.0
    link.open_stream("a", "fetch", to_device)
    link.open_stream("b", "fetch", to_device)
    assert link.rate_bytes_per_s("a", to_device) == 200.0
    assert link.rate_bytes_per_s("a", to_host) == 150.0
    link.open_stream("a", "other", to_device)
    assert link.rate_bytes_per_s("a", to_device) == 100.0
    assert link.rate_bytes_per_s("b", to_device) == 200.0
    link.close_stream("b", "fetch", to_device)
    assert link.rate_bytes_per_s("a", to_device) == 150.0


def test_a_prefix_is_found_until_its_place_is_needed_the_last_block_first() -> None:
    cache = PrefixCache()
    cache.hold(row=1, group=5, shared_blocks=3, first=0, last=4)
    assert cache.match(row=2, group=5, shared_blocks=3, most=9) == (3, 0)
    assert cache.release(row=1, group=5, shared_blocks=3, whole=4) == 4
    assert cache.match(row=2, group=5, shared_blocks=3, most=9) == (3, 3)
    assert cache.match(row=1, group=5, shared_blocks=3, most=9) == (4, 4)
    cache.trim(2)
    assert cache.match(row=2, group=5, shared_blocks=3, most=9) == (2, 2)
