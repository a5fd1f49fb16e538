"""Seeded requests with the burstiness of Azure's code trace and ShareGPT's or Alpaca's lengths.

Arrivals.  Gaps between arrivals are drawn from the quantiles of the Azure 2023 code trace, with a
correlation of their ranks (short gaps follow short ones), which the trace's index of dispersion
at 1 s needs and independent gaps miss.  A trace is then compressed in time, which keeps its
coefficient of variation, until it offers the rate that is asked for.

Alternation.  Each model is *on* in every other period: its arrivals fill its own periods, and the
other model's the periods between.

    model a   |##  # ####|         |# ##### #|         |
    model b   |          |### #  ##|         |## # ####|
              0        period    2 x period

Lengths come from quantiles of the data sets (tokens of the OPT tokenizer), or from a file, times
a stated scale, cut so that no request is longer than the engines accept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mirage_core.errors import ConfigError

Floats = npt.NDArray[np.float64]

FIRST_ORDINARY_TOKEN = 3
"""Prompts hold no special token; they are the tokenizer's first."""
SHORTEST_PROMPT = 4
"""As in vLLM's own serving benchmark."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to ask for; ``arrival_s`` from the start of the run."""

    request_id: int
    model: str
    arrival_s: float
    prompt: tuple[int, ...]
    output_tokens: int


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
    """Prompt and output tokens of requests, before scaling; the two are drawn independently."""

    prompt: Quantiles
    output: Quantiles

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        return self.prompt.sample(rng.random(count)), self.output.sample(rng.random(count))


@dataclass(frozen=True, slots=True)
class GapQuantiles:
    """Gaps between arrivals by quantiles, their ranks correlated from one to the next."""

    quantiles: Quantiles
    rank_correlation: float

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
        ranks = (np.argsort(np.argsort(score)) + 0.5) / count
        return self.quantiles.sample(ranks)


class LengthSource(Protocol):
    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Prompt and output tokens of ``count`` requests."""
        ...


class GapSource(Protocol):
    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """``count`` gaps between arrivals, in seconds of the trace."""
        ...


_TAILS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

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

_GAPS_S = (
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
)

AZURE_CODE = GapQuantiles(
    quantiles=Quantiles(tuple(at for at, _ in _GAPS_S), tuple(gap_s for _, gap_s in _GAPS_S)),
    rank_correlation=0.65,
)
"""Azure's 2023 code trace (8,819 rows).  The correlation is the value at which the index of
dispersion is that of the trace: about 13, 71 and 161 at 1, 10 and 60 s."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Everything but the rate."""

    horizon_s: float
    """arrivals are in 0..horizon"""
    period_s: float
    """a model is on for one period, then off for one"""
    gaps: GapSource
    lengths: LengthSource
    length_scale: float
    longest_tokens: int
    """prompt and output together"""
    vocabulary: int
    seed: int

    def __post_init__(self) -> None:
        periods = self.horizon_s / self.period_s
        if periods < 2 or periods % 2:
            raise ConfigError(
                f"the horizon ({self.horizon_s:g} s) must be an even number of periods "
                f"({self.period_s:g} s), so that each model is on equally long"
            )
        if self.longest_tokens < 2 * SHORTEST_PROMPT:
            raise ConfigError(f"longest_tokens must be {2 * SHORTEST_PROMPT} or more")


def generate(spec: WorkloadSpec, offered_tok_s: Mapping[str, float]) -> tuple[Request, ...]:
    """Requests in order of arrival.

    ``offered_tok_s``: output tokens a second for each of two models, averaged over the horizon;
    its order says which model is on first.  The same spec and rates give the same requests.
    """
    if len(offered_tok_s) != 2:
        raise ConfigError(f"the workload alternates between two models, not {len(offered_tok_s)}")
    drafts: list[tuple[float, str, tuple[int, ...], int]] = []
    for turn, (model, rate_tok_s) in enumerate(offered_tok_s.items()):
        rng = np.random.default_rng([spec.seed, turn])
        prompts, outputs = _draw_lengths(spec, rate_tok_s * spec.horizon_s, rng)
        arrivals_s = _alternate(spec, turn, _draw_arrivals(spec, len(outputs), rng))
        for arrival_s, prompt_tokens, output_tokens in zip(
            arrivals_s, prompts, outputs, strict=True
        ):
            prompt = rng.integers(FIRST_ORDINARY_TOKEN, spec.vocabulary, size=prompt_tokens)
            drafts.append((float(arrival_s), model, tuple(prompt.tolist()), int(output_tokens)))
    return tuple(
        Request(i, model, at, prompt, out)
        for i, (at, model, prompt, out) in enumerate(sorted(drafts))
    )


def at_once(requests: Sequence[Request]) -> tuple[Request, ...]:
    """The same requests, all arriving at the start: what saturates an engine."""
    return tuple(Request(r.request_id, r.model, 0.0, r.prompt, r.output_tokens) for r in requests)


def burstiness(arrivals_s: Floats, windows_s: Sequence[float]) -> dict[str, float]:
    """Statistics of arrivals: CV of the gaps, share of idle windows and index of dispersion.

    The index of dispersion is variance over mean of the arrivals in a window; 1 for Poisson.
    A window of which fewer than two fit is left out.
    """
    gaps_s = np.diff(np.sort(arrivals_s))
    if not gaps_s.any():
        return {}
    figures = {"gap_cv": float(gaps_s.std() / gaps_s.mean())}
    for window_s in windows_s:
        edges = np.arange(arrivals_s.min(), arrivals_s.max(), window_s)
        if len(edges) < 3:
            continue
        counts = np.histogram(arrivals_s, edges)[0]
        figures[f"dispersion_{window_s:g}_s"] = float(counts.var() / counts.mean())
        figures[f"idle_{window_s:g}_s"] = float((counts == 0).mean())
    return figures


def _draw_lengths(
    spec: WorkloadSpec, budget_tokens: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Prompt and output tokens of as many requests as it takes to reach ``budget_tokens``."""
    prompts: list[int] = []
    outputs: list[int] = []
    while not outputs or sum(outputs) < budget_tokens:
        prompt, output = (
            max(1, round(float(drawn[0]) * spec.length_scale))
            for drawn in spec.lengths.sample(1, rng)
        )
        prompt = min(max(prompt, SHORTEST_PROMPT), spec.longest_tokens // 2)
        prompts.append(prompt)
        outputs.append(min(output, spec.longest_tokens - prompt))
    return np.array(prompts), np.array(outputs)


def _draw_arrivals(spec: WorkloadSpec, count: int, rng: np.random.Generator) -> Floats:
    """``count`` arrivals in the time that one model is on, compressed to fill it."""
    times_s = np.concatenate([[0.0], np.cumsum(spec.gaps.sample(count, rng))])
    on_s: Floats = times_s[:-1] / times_s[-1] * spec.horizon_s / 2
    return on_s


def _alternate(spec: WorkloadSpec, turn: int, on_s: Floats) -> Floats:
    """Time on the clock of a time counted only while the model is on."""
    period = np.floor(on_s / spec.period_s)
    return on_s + (period + turn) * spec.period_s
