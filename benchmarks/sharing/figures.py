"""From outcomes to figures: pure arithmetic, the same for every arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.sharing.client import Outcome, Run

TokenIds = Mapping[int, tuple[int, ...]]
"""Answers of the finished requests by request id."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm under one load.  A percentile is None if nothing came to take it of."""

    throughput_tok_s: float
    """tokens of finished requests / time until the last request is done"""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tbt_p50_s: float | None
    tbt_p99_s: float | None
    preemptions: int
    completed: int
    failed: int
    makespan_s: float
    errors: tuple[str, ...] = ()
    """what failed requests were told, each text once"""
    extra: Mapping[str, float] = field(default_factory=dict)
    """an arm's own counters over the run"""

    def as_json(self) -> dict[str, object]:
        figures: dict[str, object] = asdict(self)
        del figures["extra"]
        return {**figures, **self.extra}


def figures_of(run: Run, counted: Mapping[str, float]) -> Figures:
    """``counted``: growth of the arm's counters over the run, ``preemptions`` among them.

    TTFT is over all requests that got a first token, finished or not; TBT over all gaps between
    tokens of all requests.
    """
    outcomes = run.outcomes
    finished = [outcome for outcome in outcomes if outcome.finished]
    tokens = sum(len(outcome.token_ids) for outcome in finished)
    ttft_s = [outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]
    gaps_s = [gap for outcome in outcomes for gap in outcome.gaps_s]
    return Figures(
        throughput_tok_s=tokens / run.makespan_s if run.makespan_s else 0.0,
        ttft_p50_s=_percentile(ttft_s, 50),
        ttft_p99_s=_percentile(ttft_s, 99),
        tbt_p50_s=_percentile(gaps_s, 50),
        tbt_p99_s=_percentile(gaps_s, 99),
        preemptions=round(counted["preemptions"]),
        completed=len(finished),
        failed=len(outcomes) - len(finished),
        makespan_s=run.makespan_s,
        errors=tuple(sorted({o.error for o in outcomes if o.error is not None})),
        extra=_extra(counted),
    )


def _extra(counted: Mapping[str, float]) -> dict[str, float]:
    """All but the preemptions, and the rate at which fetches went over the link."""
    extra = {name: value for name, value in counted.items() if name != "preemptions"}
    if busy_s := extra.get("fetch_busy_s"):
        extra["fetch_gb_s"] = extra["fetched_bytes"] / busy_s / 1e9
    return extra


def saturation_tok_s(
    outcomes: Iterable[Outcome], from_s: float, until_s: float
) -> dict[str, float]:
    """Tokens a second of each model within a span of a run in which all models were busy."""
    tokens: dict[str, int] = {}
    for outcome in outcomes:
        model = outcome.request.model
        came = sum(from_s <= time_s < until_s for time_s in outcome.token_times_s)
        tokens[model] = tokens.get(model, 0) + came
    return {model: count / (until_s - from_s) for model, count in tokens.items()}


def answers(outcomes: Iterable[Outcome]) -> dict[int, tuple[int, ...]]:
    return {o.request.request_id: tuple(o.token_ids) for o in outcomes if o.finished}


def identical(arms: Sequence[TokenIds]) -> bool | None:
    """Whether every arm finished the same requests with the same tokens; None of fewer than two."""
    return all(arm == arms[0] for arm in arms) if len(arms) > 1 else None


def divergence(one: TokenIds, other: TokenIds) -> float | None:
    """Share of the requests that both finished whose tokens differ; None if there are none."""
    both = one.keys() & other.keys()
    return sum(one[i] != other[i] for i in both) / len(both) if both else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
