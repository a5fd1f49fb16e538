"""Requests of the sharing benchmark; their distributions' tests are in ``simulation/workloads``."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sharing.workload import (
    FIRST_ORDINARY_TOKEN,
    SHORTEST_PROMPT,
    WorkloadSpec,
    at_once,
    generate,
)
from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.quantiles import AZURE_CODE, SHAREGPT

SPEC = WorkloadSpec(
    horizon_s=40.0,
    period_s=10.0,
    gaps=AZURE_CODE,
    lengths=SHAREGPT,
    length_scale=0.2,
    longest_tokens=256,
    vocabulary=4096,
    seed=7,
)
OFFERED = {"a": 200.0, "b": 80.0}


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert generate(SPEC, OFFERED) == generate(SPEC, OFFERED)
    assert generate(SPEC, OFFERED) != generate(replace(SPEC, seed=8), OFFERED)


def test_only_the_model_that_is_on_gets_arrivals() -> None:
    for request in generate(SPEC, OFFERED):
        turn = int(request.arrival_s // SPEC.period_s) % 2
        assert request.model == ("a", "b")[turn]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rate_tok_s=st.floats(5, 300),
    longest=st.integers(8, 512),
    scale=st.floats(0.02, 1),
)
def test_requests_fit_the_engine_and_the_offered_rate(
    seed: int, rate_tok_s: float, longest: int, scale: float
) -> None:
    spec = replace(SPEC, seed=seed, longest_tokens=longest, length_scale=scale)
    requests = generate(spec, {"a": rate_tok_s, "b": rate_tok_s})

    assert [request.request_id for request in requests] == list(range(len(requests)))
    arrivals_s = [request.arrival_s for request in requests]
    assert arrivals_s == sorted(arrivals_s)
    assert arrivals_s[0] >= 0
    assert arrivals_s[-1] < spec.horizon_s
    for request in requests:
        assert len(request.prompt) >= SHORTEST_PROMPT
        assert len(request.prompt) + request.output_tokens <= longest
        assert request.output_tokens >= 1
        assert min(request.prompt) >= FIRST_ORDINARY_TOKEN
        assert max(request.prompt) < spec.vocabulary
    for model in ("a", "b"):
        outputs = [request.output_tokens for request in requests if request.model == model]
        budget = rate_tok_s * spec.horizon_s
        assert budget <= sum(outputs) < budget + longest


def test_saturating_requests_differ_only_in_their_arrival() -> None:
    requests = generate(SPEC, OFFERED)
    for before, after in zip(requests, at_once(requests), strict=True):
        assert after == replace(before, arrival_s=0.0)


@pytest.mark.parametrize("horizon_s", [5.0, 10.0, 30.0, 45.0])
def test_a_horizon_that_favours_a_model_is_refused(horizon_s: float) -> None:
    with pytest.raises(ConfigError, match="even number of periods"):
        replace(SPEC, horizon_s=horizon_s)


def test_another_number_of_models_than_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="two models"):
        generate(SPEC, {"a": 1.0})
