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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.quantiles import Floats, GapSource, LengthSource

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
