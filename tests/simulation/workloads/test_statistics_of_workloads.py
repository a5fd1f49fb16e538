"""Generated workloads against the published figures of the data that they stand for."""

import numpy as np
import pytest

from mirage_core.simulator.workloads.quantiles import (
    ALPACA,
    AZURE_CODE,
    AZURE_CODE_LENGTHS,
    AZURE_CONV,
    AZURE_CONV_LENGTHS,
    SHAREGPT,
    Even,
    Poisson,
)
from mirage_core.simulator.workloads.statistics import burstiness
from mirage_core.simulator.workloads.trace import Scaling, generate, scale

CODE_ROWS, CONV_ROWS = 8819, 19_366
LONGEST = 20_000


@pytest.mark.parametrize("seed", range(4))
def test_code_arrivals_are_as_bursty_as_azure_s(seed: int) -> None:
    """Rate and CV within 10 %, dispersion within 25 % (35 % at a minute)."""
    gaps_s = AZURE_CODE.sample(CODE_ROWS, np.random.default_rng(seed))
    arrivals_s = np.cumsum(gaps_s)
    figures = burstiness(arrivals_s, (1, 10, 60))
    assert CODE_ROWS / arrivals_s[-1] == pytest.approx(2.57, rel=0.1)
    assert figures["gap_cv"] == pytest.approx(13.15, rel=0.1)
    assert figures["idle_1_s"] == pytest.approx(0.73, abs=0.03)
    assert figures["dispersion_1_s"] == pytest.approx(13, rel=0.25)
    assert figures["dispersion_10_s"] == pytest.approx(71, rel=0.25)
    assert figures["dispersion_60_s"] == pytest.approx(161, rel=0.35)


@pytest.mark.parametrize("seed", range(4))
def test_conversation_arrivals_drift_as_azure_s_do(seed: int) -> None:
    """Rate and CV within 5 %, dispersion within 10 % at a second and 30 % at ten."""
    gaps_s = AZURE_CONV.sample(CONV_ROWS, np.random.default_rng(seed))
    arrivals_s = np.cumsum(gaps_s)
    figures = burstiness(arrivals_s, (1, 10, 60))
    assert CONV_ROWS / arrivals_s[-1] == pytest.approx(5.53, rel=0.05)
    assert figures["gap_cv"] == pytest.approx(1.094, rel=0.05)
    assert figures["idle_1_s"] == pytest.approx(0.011, abs=0.005)
    assert figures["dispersion_1_s"] == pytest.approx(1.39, rel=0.1)
    assert figures["dispersion_10_s"] == pytest.approx(4.0, rel=0.3)
    assert 6 < figures["dispersion_60_s"] < 25  # 16-21 in the trace, where the seed matters most


def test_a_poisson_stream_is_not_bursty() -> None:
    arrivals_s = np.cumsum(Poisson().sample(20_000, np.random.default_rng(0)))
    figures = burstiness(arrivals_s, (1,))
    assert figures["gap_cv"] == pytest.approx(1, abs=0.05)
    assert figures["dispersion_1_s"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("lengths", "prompt", "output"),
    [
        (SHAREGPT, (109, 30, 339, 902), (313, 268, 648, 1147)),
        (ALPACA, (18.6, 15, 29, 69), (59.6, 43.5, 128, 272)),
        (AZURE_CODE_LENGTHS, (2048, 1469, 5188, 7436), (27.9, 13, 55, 251)),
        (AZURE_CONV_LENGTHS, (1155, 1020, 2734, 4142), (211, 129, 424, 601)),
    ],
    ids=["ShareGPT", "Alpaca", "Azure code", "Azure conv"],
)
def test_lengths_have_the_mean_and_quantiles_of_the_data(lengths, prompt, output) -> None:
    """Mean, median, p90 and p99 within 8 %."""
    drawn = lengths.sample(50_000, np.random.default_rng(0))
    for values, stated in zip(drawn, (prompt, output), strict=True):
        measured = [values.mean(), *np.quantile(values, (0.5, 0.9, 0.99))]
        assert measured == pytest.approx(stated, rel=0.08)


def test_synthetic_lengths_have_their_mean_and_stay_within_their_spread() -> None:
    prompt, output = Even(1734, 0.18, 0.25).sample(20_000, np.random.default_rng(0))
    total = prompt + output
    assert total.mean() == pytest.approx(1734, rel=0.01)
    assert total.max() <= 1734 * 1.18 + 1e-6
    assert prompt == pytest.approx(total / 4)


@pytest.mark.parametrize("rate_per_s", [0.5, 8.0])
def test_compression_keeps_the_cv_and_gives_the_rate(rate_per_s: float) -> None:
    trace = generate(AZURE_CODE, ALPACA, 2.5, 2000.0, LONGEST, seed=3)
    scaled = scale(trace, rate_per_s, Scaling.COMPRESS, seed=0)
    before, after = (burstiness(each.arrivals_s, ())["gap_cv"] for each in (trace, scaled))
    assert after == pytest.approx(before)
    assert scaled.rate_per_s == pytest.approx(rate_per_s)
    assert np.array_equal(scaled.output_tokens, trace.output_tokens)


def test_thinning_and_superposition_give_the_rate_and_less_dispersion() -> None:
    trace = generate(AZURE_CODE, ALPACA, 2.5, 4000.0, LONGEST, seed=3)
    dispersion = burstiness(trace.arrivals_s, (10,))["dispersion_10_s"]
    thin = scale(trace, 0.5, Scaling.THIN, seed=0)
    dense = scale(trace, 8 * trace.rate_per_s, Scaling.SUPERPOSE, seed=0)
    assert thin.rate_per_s == pytest.approx(0.5, rel=0.1)
    assert dense.rate_per_s == pytest.approx(8 * trace.rate_per_s, rel=0.01)
    assert burstiness(thin.arrivals_s, (10,))["dispersion_10_s"] < 0.5 * dispersion
    # Eight copies at once have the dispersion of one; against the mean it is an eighth.
    assert burstiness(dense.arrivals_s, (10,))["dispersion_10_s"] < 2 * dispersion
