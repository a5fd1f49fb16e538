"""Step times from one real run, seen from outside: tokens that came at one moment are one step's.

A step's length is known where a request got a token from it and from the step before.  The length
is then explained by what was in the step:

    step + decode * decodes + context * context tokens + prefill * prompts + token * prompt tokens

by least squares, without terms that come out negative and without outliers (on a shared machine a
step is now and then held up by something else).  Runs with preemptions calibrate worse, because
prompts computed again cannot be seen from outside: use a run without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from benchmarks.validation.records import Record, Served
from mirage_core.errors import ConfigError
from mirage_core.simulator.step_models import FittedStepTime
from mirage_core.simulator.units import to_ps

SAME_STEP_S = 0.004
"""Tokens of one step reach the client within this time."""
LEAST_STEPS = 30
_OUTLIER = 4.0
"""median absolute deviations"""
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """One model's step times, and what HTTP and the client add to a first token.

    residual_share  median absolute error of the fit, as a share of the median step
    """

    step_time: FittedStepTime
    http_s: float
    steps: int
    residual_share: float


def calibrate(record: Record, model: str) -> Calibration:
    """Raises ConfigError if the run shows too few steps of the model."""
    requests = [each for each in record.requests if each.model == model]
    rows, lengths_s = _steps(requests)
    if len(rows) < LEAST_STEPS:
        raise ConfigError(
            f"{record.head.name}: {len(rows)} steps of {model} can be told apart, "
            f"{LEAST_STEPS} are needed; calibrate on a longer run"
        )
    matrix, target = np.array(rows), np.array(lengths_s)
    kept = np.ones(len(target), dtype=bool)
    for _ in range(_ROUNDS):
        terms = _fit(matrix[kept], target[kept])
        off = np.abs(matrix @ terms - target)
        spread = max(float(np.median(off)), 1e-6)
        kept = off <= _OUTLIER * spread
    step_s, decode_s, context_s, prefill_s, token_s = terms.tolist()
    fitted = FittedStepTime(
        step_ps=max(1, to_ps(step_s)),
        decode_ps=to_ps(decode_s),
        context_ps=to_ps(context_s),
        prefill_ps=to_ps(prefill_s),
        prefill_token_ps=to_ps(token_s),
        pair_ps=0,
    )
    return Calibration(
        step_time=fitted,
        http_s=_http_s(requests, step_s + prefill_s, token_s),
        steps=len(target),
        residual_share=float(np.median(off) / np.median(target)),
    )


def _steps(requests: Sequence[Served]) -> tuple[list[list[float]], list[float]]:
    """What was in each step whose length is known, and the length."""
    tokens = sorted(
        (time_s, index, place)
        for index, request in enumerate(requests)
        for place, time_s in enumerate(request.token_times_s)
    )
    groups: list[list[tuple[float, int, int]]] = []
    for token in tokens:
        if not groups or token[0] - groups[-1][0][0] > SAME_STEP_S:
            groups.append([])
        groups[-1].append(token)
    rows, lengths_s = [], []
    for before, group in pairwise(groups):
        went_on = {index for _, index, _ in before} & {index for _, index, _ in group}
        if went_on:
            rows.append(_row(requests, group))
            lengths_s.append(group[0][0] - before[0][0])
    return rows, lengths_s


def _row(requests: Sequence[Served], group: Sequence[tuple[float, int, int]]) -> list[float]:
    decodes = [(index, place) for _, index, place in group if place]
    prompts = [index for _, index, place in group if not place]
    context = sum(requests[index].prompt_tokens + place for index, place in decodes)
    prompt_tokens = sum(requests[index].prompt_tokens for index in prompts)
    return [1.0, float(len(decodes)), float(context), float(len(prompts)), float(prompt_tokens)]


def _fit(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Least squares with no negative term: the most negative one is left out until none is."""
    used = list(range(matrix.shape[1]))
    terms = np.zeros(matrix.shape[1])
    while used:
        found = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        if (found >= 0).all():
            terms[used] = found
            break
        used.pop(int(found.argmin()))
    return terms


def _http_s(requests: Sequence[Served], prompt_s: float, token_s: float) -> float:
    """What a first token takes beyond its step, for requests that met an idle engine."""
    beyond = []
    busy_until_s = 0.0
    for request in sorted(requests, key=lambda each: each.arrival_s):
        if request.token_times_s:
            if request.arrival_s > busy_until_s:
                step_s = prompt_s + token_s * request.prompt_tokens
                beyond.append(request.token_times_s[0] - request.arrival_s - step_s)
            busy_until_s = max(busy_until_s, request.token_times_s[-1])
    return max(0.0, float(np.median(beyond))) if beyond else 0.0
