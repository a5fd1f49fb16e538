"""The generator's statistics against the figures of the traces that it stands for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sharing.workload import (
    ALPACA,
    AZURE_CODE,
    FIRST_ORDINARY_TOKEN,
    SHAREGPT,
    SHORTEST_PROMPT,
    WorkloadSpec,
    at_once,
    burstiness,
    generate,
)
from mirage_core.errors import ConfigError

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
AZURE_ROWS = 8819


@pytest.mark.parametrize("seed", range(5))
def test_arrivals_are_as_bursty_as_azure_code(seed: int) -> None:
    arrivals_s = np.cumsum(AZURE_CODE.sample(AZURE_ROWS, np.random.default_rng(seed)))
    figures = burstiness(arrivals_s, (1, 10, 60))

    assert AZURE_ROWS / arrivals_s[-1] == pytest.approx(2.57, rel=0.1)
    assert figures["gap_cv"] == pytest.approx(13.15, rel=0.1)
    assert figures["idle_1_s"] == pytest.approx(0.73, abs=0.03)
    assert figures["dispersion_1_s"] == pytest.approx(13, rel=0.25)
    assert figures["dispersion_10_s"] == pytest.approx(71, rel=0.25)
    assert figures["dispersion_60_s"] == pytest.approx(161, rel=0.35)


def test_a_poisson_stream_is_not_bursty() -> None:
    arrivals_s = np.cumsum(np.random.default_rng(0).exponential(0.4, 20_000))
    figures = burstiness(arrivals_s, (1,))
    assert figures["gap_cv"] == pytest.approx(1, abs=0.05)
    assert figures["dispersion_1_s"] == pytest.approx(1, abs=0.1)


def test_too_few_arrivals_have_no_statistics() -> None:
    assert burstiness(np.array([1.0]), (1,)) == {}
    assert burstiness(np.array([1.0, 1.0]), (1,)) == {}
    assert set(burstiness(np.array([1.0, 2.5]), (1,))) == {"gap_cv"}


@pytest.mark.parametrize(
    ("lengths", "prompt", "output"),
    [
        (SHAREGPT, (109, 30, 339, 902), (313, 268, 648, 1147)),
        (ALPACA, (18.6, 15, 29, 69), (59.6, 43.5, 128, 272)),
    ],
    ids=["ShareGPT", "Alpaca"],
)
def test_lengths_have_the_mean_and_quantiles_of_the_data(lengths, prompt, output) -> None:
    drawn = lengths.sample(50_000, np.random.default_rng(0))
    for values, stated in zip(drawn, (prompt, output), strict=True):
        measured = [values.mean(), *np.quantile(values, (0.5, 0.9, 0.99))]
        assert measured == pytest.approx(stated, rel=0.07)


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
