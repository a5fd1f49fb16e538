"""Step times from one real run, seen from outside: tokens that came at one moment are one step's.

A step's length is known where a request got a token from it and from the step before.  The length
is then explained by what was in the step:

    (step + decode * decodes + context * context tokens + prefill * prompts + token * prompt tokens)
    * (1 + slowdown, if another engine had requests: they share caches, memory and cores)

Steps without prompts give the first three terms by least squares without outliers (on a shared
machine a step is now and then held up by something else), and what steps with prompts take beyond
that gives the other two by least distances, because prompts that are computed again with others
stand out.  No term is negative.  Runs with preemptions calibrate worse, because
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
_PROMPTS = 3
"""column of the prompts in a step, after 1, decodes and context"""
_SLOWDOWNS = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True, slots=True)
class Calibration:
    """One model's step times.

    slowdown        of a step while another engine is busy, as a share of the step alone
    residual_share  median absolute error of steps without prompts, as a share of the median step
    """

    step_time: FittedStepTime
    slowdown: float
    steps: int
    residual_share: float


def calibrate(record: Record, model: str) -> Calibration:
    """Raises ConfigError if the run shows too few steps of the model."""
    requests = [each for each in record.requests if each.model == model]
    others = [each for each in record.requests if each.model != model]
    rows, begins_s, lengths_s = _steps(requests)
    matrix, target = np.array(rows).reshape(-1, 5), np.array(lengths_s)
    plain = matrix[:, _PROMPTS] == 0
    if plain.sum() < LEAST_STEPS or not len(target[~plain]):
        raise ConfigError(
            f"{record.head.name}: {plain.sum()} steps of {model} without prompts and "
            f"{(~plain).sum()} with some can be told apart, {LEAST_STEPS} and 1 are needed; "
            "calibrate on a longer run"
        )
    busy = _busy(others, np.array(begins_s), target)
    decodes = matrix[:, :_PROMPTS]
    fits = [
        (share, *_robust_fit(decodes[plain] * (1 + share * busy[plain])[:, None], target[plain]))
        for share in (_SLOWDOWNS if busy.any() else _SLOWDOWNS[:1])
    ]
    slowdown, terms, off = min(fits, key=lambda fit: float(fit[2].mean()))
    step_s, decode_s, context_s = terms.tolist()
    beyond_s = (target / (1 + slowdown * busy) - decodes @ terms)[~plain]
    prefill_s, token_s = _median_fit(matrix[~plain, _PROMPTS:], beyond_s).tolist()
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
        slowdown=float(slowdown),
        steps=len(target),
        residual_share=float(np.median(off) / np.median(target)),
    )


def _steps(requests: Sequence[Served]) -> tuple[list[list[float]], list[float], list[float]]:
    """What was in each step whose length is known, when it began, and its length."""
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
    rows, begins_s, lengths_s = [], [], []
    for before, group in pairwise(groups):
        went_on = {index for _, index, _ in before} & {index for _, index, _ in group}
        if went_on:
            rows.append(_row(requests, group))
            begins_s.append(before[0][0])
            lengths_s.append(group[0][0] - before[0][0])
    return rows, begins_s, lengths_s


def _row(requests: Sequence[Served], group: Sequence[tuple[float, int, int]]) -> list[float]:
    decodes = [(index, place) for _, index, place in group if place]
    prompts = [index for _, index, place in group if not place]
    context = sum(requests[index].prompt_tokens + place for index, place in decodes)
    prompt_tokens = sum(requests[index].prompt_tokens for index in prompts)
    return [1.0, float(len(decodes)), float(context), float(len(prompts)), float(prompt_tokens)]


def _busy(
    others: Sequence[Served], begins_s: npt.NDArray[np.float64], lengths_s: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """1 for steps during which another engine had a request, else 0."""
    busy = np.zeros(len(begins_s))
    for each in others:
        if each.token_times_s:
            here = (begins_s + lengths_s > each.arrival_s) & (begins_s < each.token_times_s[-1])
            busy[here] = 1.0
    return busy


def _robust_fit(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Terms fitted without outliers, and how far each step is off."""
    kept = np.ones(len(target), dtype=bool)
    for _ in range(_ROUNDS):
        terms = _fit(matrix[kept], target[kept])
        off = np.abs(matrix @ terms - target)
        kept = off <= _OUTLIER * max(float(np.median(off)), 1e-6)
    return terms, off


def _median_fit(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Terms of least distances, which half of the rows may spoil: squares, weighted again and
    again by what they were off."""
    weights = np.ones(len(target))
    for _ in range(50):
        root = np.sqrt(weights)
        terms = _fit(matrix * root[:, None], target * root)
        weights = 1.0 / np.maximum(np.abs(matrix @ terms - target), 1e-5)
    return terms


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
