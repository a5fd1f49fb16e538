"""From outcomes to figures, checked by hand and by property."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing_samples import outcome

from benchmarks.sharing.client import Run
from benchmarks.sharing.figures import (
    answers,
    divergence,
    figures_of,
    identical,
    saturation_tok_s,
)

TOKENS = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2)), max_size=6)


def test_figures_of_two_requests_by_hand() -> None:
    run = Run(
        100.0,
        (
            outcome(0, [1.0, 1.5, 2.5]),
            outcome(1, [4.0, 5.0], arrival_s=1.0, model="large"),
        ),
    )
    figures = figures_of(run, {"preemptions": 3.0, "remaps": 2.0})

    assert figures.throughput_tok_s == 5 / 5.0
    assert figures.ttft_p50_s == 2.0
    assert figures.ttft_p99_s == pytest.approx(2.98)
    assert figures.tbt_p50_s == 1.0
    assert figures.preemptions == 3
    assert (figures.completed, figures.failed) == (2, 0)
    assert figures.as_json()["remaps"] == 2.0
    assert "extra" not in figures.as_json()


def test_tokens_of_failed_requests_are_not_throughput_but_their_time_counts() -> None:
    run = Run(0.0, (outcome(0, [1.0, 2.0]), outcome(1, [1.0, 4.0], finished=False)))
    figures = figures_of(run, {"preemptions": 0})
    assert figures.throughput_tok_s == 2 / 4.0
    assert (figures.completed, figures.failed) == (1, 1)


def test_a_run_in_which_nothing_came_has_no_percentiles() -> None:
    figures = figures_of(Run(0.0, (outcome(0, [], finished=False),)), {"preemptions": 0})
    assert figures.throughput_tok_s == 0
    assert figures.ttft_p50_s is None
    assert figures.tbt_p99_s is None


def test_saturation_counts_the_span_only() -> None:
    outcomes = [
        outcome(0, [0.5, 1.0, 1.5, 2.9]),
        outcome(1, [2.0, 3.0, 9.0], model="large"),
    ]
    assert saturation_tok_s(outcomes, 1.0, 3.0) == {"small": 1.5, "large": 0.5}


def test_answers_are_those_of_finished_requests() -> None:
    outcomes = [outcome(3, [1.0, 2.0], [8, 9]), outcome(4, [1.0], [7], finished=False)]
    assert answers(outcomes) == {3: (8, 9)}


def test_identity_needs_the_same_requests_and_tokens() -> None:
    assert identical([{1: (2,)}, {1: (2,)}, {1: (2,)}]) is True
    assert identical([{1: (2,)}, {1: (3,)}]) is False
    assert identical([{1: (2,)}, {}]) is False
    assert identical([{1: (2,)}]) is None


def test_divergence_is_the_share_of_common_requests_that_differ() -> None:
    assert divergence({1: (1,), 2: (2,), 3: (3,)}, {1: (1,), 2: (9,), 4: (4,)}) == 0.5
    assert divergence({1: (1,)}, {2: (1,)}) is None


@given(TOKENS, TOKENS)
@settings(deadline=None)
def test_identical_arms_do_not_diverge(one, other) -> None:
    if identical([one, other]):
        assert divergence(one, other) in (0, None)
    assert divergence(one, other) == divergence(other, one)
