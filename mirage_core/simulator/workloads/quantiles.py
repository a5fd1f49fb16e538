"""Distributions of lengths and of gaps between arrivals, by their quantiles.

The quantiles below are those of public data, written down here so that a seed alone gives a
workload of the same statistics: Azure's LLM inference traces of 2023 (CC-BY-4.0), the first two
turns of ShareGPT under vLLM's filter, and Stanford Alpaca, both in tokens of the OPT tokenizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class LengthSource(Protocol):
    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Prompt and output tokens of ``count`` requests."""
        ...


class GapSource(Protocol):
    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """``count`` gaps between arrivals, in seconds of the trace."""
        ...


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of positive values by some of its quantiles, log-linear between them."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def sample(self, ranks: Floats) -> Floats:
        """Values at ``ranks`` in 0..1 (the inverse of the distribution function)."""
        logs: Floats = np.interp(ranks, self.at, np.log(self.values))
        return np.exp(logs)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output tokens of requests, before scaling; the two are drawn independently.

    Their ranks correlate little in the data: -0.26 (Alpaca) to 0.12 (ShareGPT).
    """

    prompt: Quantiles
    output: Quantiles

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return self.prompt.sample(rng.random(count)), self.output.sample(rng.random(count))


@dataclass(frozen=True, slots=True)
class Even:
    """Synthetic requests: prompt and output together evenly spread round a mean.

    mean_tokens   of prompt and output together
    spread        the farthest from the mean, as a share of it
    prompt_share  part of a request's tokens that is prompt
    """

    mean_tokens: float
    spread: float
    prompt_share: float

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        total = self.mean_tokens * (1 + self.spread * rng.uniform(-1, 1, count))
        return total * self.prompt_share, total * (1 - self.prompt_share)


@dataclass(frozen=True, slots=True)
class GapQuantiles:
    """Gaps between arrivals by quantiles, their ranks correlated from one to the next.

    rank_correlation  of the part of the ranks that is remembered, from one gap to the next
    memory_share      part of the ranks' variance that is remembered; the rest is fresh each time
    """

    quantiles: Quantiles
    rank_correlation: float
    memory_share: float = 1.0

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """``count`` gaps in seconds, their ranks spread evenly.

        Even ranks give a short trace the same share of long gaps as a long one, which independent
        draws would leave to the seed.
        """
        noise = rng.standard_normal(count)
        fresh = math.sqrt(1 - self.rank_correlation**2)
        score = noise.copy()
        for i in range(1, count):
            score[i] = self.rank_correlation * score[i - 1] + fresh * noise[i]
        if self.memory_share < 1.0:
            score *= math.sqrt(self.memory_share)
            score += math.sqrt(1 - self.memory_share) * rng.standard_normal(count)
        ranks = (np.argsort(np.argsort(score)) + 0.5) / count
        return self.quantiles.sample(ranks)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent, exponential gaps of mean 1 s: the stream without bursts to compare with."""

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        return rng.exponential(1.0, count)


_TAILS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LONG_TAILS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)

SHAREGPT = Lengths(
    prompt=Quantiles(_TAILS, (4, 7, 9, 15, 30, 99, 339, 561, 902, 1024)),
    output=Quantiles(_TAILS, (4, 25, 47, 128, 268, 416, 648, 801, 1147, 1930)),
)
"""ShareGPT's first two turns under vLLM's filter, OPT tokens (9,904 rows)."""

ALPACA = Lengths(
    prompt=Quantiles(_TAILS, (5, 8, 9, 12, 15, 22, 29, 37, 69, 155)),
    output=Quantiles(_TAILS, (2, 5, 7, 14, 43.5, 87, 128, 165, 272, 568)),
)
"""Alpaca's instructions and answers, OPT tokens (2,000 rows)."""

AZURE_CODE_LENGTHS = Lengths(
    prompt=Quantiles(_LONG_TAILS, (3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437, 7437)),
    output=Quantiles(
        (*_LONG_TAILS[:-2], 0.995, *_LONG_TAILS[-2:]),
        (6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 359, 825, 1899),
    ),
)
"""Azure's 2023 code trace (8,819 rows)."""

AZURE_CONV_LENGTHS = Lengths(
    prompt=Quantiles(
        _LONG_TAILS, (2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 6179, 14050)
    ),
    output=Quantiles(_LONG_TAILS, (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000)),
)
"""Azure's 2023 conversation trace (19,366 rows)."""


def _gaps(*quantiles: tuple[float, float]) -> Quantiles:
    return Quantiles(tuple(at for at, _ in quantiles), tuple(gap_s for _, gap_s in quantiles))


AZURE_CODE = GapQuantiles(
    quantiles=_gaps(
        (0.0, 1e-5),
        (0.01, 2.23e-5),
        (0.05, 8.8e-5),
        (0.1, 2.09e-4),
        (0.25, 2.08e-3),
        (0.5, 0.0638),
        (0.75, 0.104),
        (0.9, 0.273),
        (0.95, 0.401),
        (0.99, 2.21),
        (0.995, 9.98),
        (0.997, 28.1),
        (0.998, 41.4),
        (0.999, 79.2),
        (1.0, 217.0),
    ),
    rank_correlation=0.65,
)
"""Azure's 2023 code trace (8,819 rows).  The correlation is the value at which the index of
dispersion is that of the trace: about 13, 71 and 161 at 1, 10 and 60 s."""

AZURE_CONV = GapQuantiles(
    quantiles=_gaps(
        (0.0, 1e-5),
        (0.01, 5.46e-4),
        (0.05, 6.32e-3),
        (0.1, 0.0161),
        (0.25, 0.0483),
        (0.4, 0.0873),
        (0.5, 0.118),
        (0.6, 0.159),
        (0.7, 0.214),
        (0.8, 0.289),
        (0.9, 0.421),
        (0.95, 0.565),
        (0.99, 0.89),
        (0.995, 1.03),
        (0.999, 1.41),
        (0.9998, 2.69),
        (1.0, 4.31),
    ),
    rank_correlation=0.996,
    memory_share=0.055,
)
"""Azure's 2023 conversation trace (19,366 rows): nearly Poisson from one arrival to the next
(CV 1.09), with a rate that drifts over minutes (index of dispersion 1.4, 4 and 16-21 at 1, 10
and 60 s), which a small and long memory gives."""
