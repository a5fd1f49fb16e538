"""From runs to verdicts: ``build/figures/claims.json``.

    [{"claim": "c1-tbt", "figure": "8", "text": ..., "paper": 0.544,
      "ours": {"base": ..., "low": ..., "high": ...}, "verdict": "partly", "why": ...,
      "conditions": {axis: [choices]}, "sensitivity": {axis: {choice: mean}}, "settings": n,
      "against_elastic": {"base": ..., "low": ..., "high": ..., "verdict": ..., "why": ...},
      "calibrated": false}, ...]

``base`` is the mean over the settings in which everything beside the crossed axes is as in the
base.  Values are shares; GH200 and GB200 were not measured, so every value stands with its range.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import conditions as on
from benchmarks.figures.claims import BY_NAME, CLAIMS
from benchmarks.figures.comparisons import Comparison, Metric, Pair, against_elastic
from benchmarks.figures.runs import Runner
from benchmarks.figures.verdicts import Claim, Form, Setting, judge, sensitivity

Values = Mapping[Setting, float]
SPIKE = 0.5
"""A reduction by half is a spike of twice the height."""


def effect(metric: Metric, ours: float, baseline: float) -> float:
    """Reduction of a latency or gain of throughput, as a share; nan without a baseline."""
    if math.isnan(ours) or math.isnan(baseline) or baseline <= 0:
        return math.nan
    return ours / baseline - 1 if metric is Metric.THROUGHPUT else 1 - ours / baseline


def values_of(
    claim: Claim,
    metrics: Sequence[Metric],
    pairs: Mapping[Setting, Sequence[Pair]],
    runner: Runner,
) -> Values:
    """One value a setting, as the claim's form wants it."""
    found = {}
    for setting, each in pairs.items():
        effects = [
            effect(metric, runner.run(ours).value(metric), runner.run(baseline).value(metric))
            for ours, baseline in each
            for metric in metrics
        ]
        if claim.form is Form.HOLDS:
            found[setting] = float(max(effects) >= SPIKE)
        elif claim.form is Form.UP_TO:
            found[setting] = max(effects)
        else:
            found[setting] = sum(effects) / len(effects)
    return found


def entry(claim: Claim, values: Values, elastic: Values | None) -> dict[str, object]:
    """One claim's part of the JSON."""
    judgement = judge(claim, values)
    found: dict[str, object] = {
        "claim": claim.name,
        "figure": claim.figure,
        "text": claim.text,
        "form": claim.form.value,
        "paper": claim.paper,
        "ours": _range(values),
        "verdict": judgement.verdict.value,
        "why": judgement.why,
        "settings": judgement.settings,
        "conditions": _choices(values),
        "sensitivity": sensitivity(values),
        "against_elastic": None,
        "calibrated": False,
    }
    if elastic is not None:
        against = judge(claim, elastic)
        found["against_elastic"] = {
            **_range(elastic),
            "verdict": against.verdict.value,
            "why": against.why,
        }
    return found


def _choices(values: Values) -> dict[str, list[str]]:
    """What was chosen for each thing unstated, the base first."""
    found: dict[str, dict[str, None]] = {}
    for setting in values:
        for axis, choice in setting:
            found.setdefault(axis, {})[choice] = None
    return {axis: list(choices) for axis, choices in found.items()}


def _range(values: Values) -> dict[str, float | None]:
    base = [value for setting, value in values.items() if dict(setting).get("other") == "base"]
    return {
        "base": _mean(base or list(values.values())),
        "low": min(values.values(), default=math.nan),
        "high": max(values.values(), default=math.nan),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def evaluate(
    compared: Sequence[Comparison], computed: Mapping[str, Values], runner: Runner
) -> list[dict[str, object]]:
    """Entries of all claims, in the order of the figures; every claim must have its values."""
    entries: dict[str, dict[str, object]] = {}
    for comparison in compared:
        claim = BY_NAME[comparison.claim]
        values = values_of(claim, comparison.metrics, comparison.pairs, runner)
        elastic = (
            values_of(claim, comparison.metrics, against_elastic(comparison), runner)
            if comparison.elastic
            else None
        )
        entries[claim.name] = entry(claim, values, elastic)
    for name, values in computed.items():
        entries[name] = entry(BY_NAME[name], values, None)
    return [entries[claim.name] for claim in CLAIMS]


def write(
    entries: Sequence[dict[str, object]], path: Path, runs: int, took_s: float | None
) -> None:
    """The whole result; a value that cannot be had is null (``took_s`` of a resumed run, too)."""
    counts = Counter(str(each["verdict"]) for each in entries)
    whole = {
        "verdicts": {name: counts.get(name, 0) for name in ("reproduced", "partly", "not")},
        "conditions": {
            "gpu": on.GPU,
            "requests_per_model": on.REQUESTS,
            "loads": on.LOADS,
            "arrivals": "Azure 2023 code quantiles, compressed in time",
            "deviations": on.DEVIATIONS,
            "rules": "benchmarks/figures/verdicts.py, committed before the runs",
        },
        "runs": runs,
        "took_s": None if took_s is None else round(took_s, 1),
        "claims": entries,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_without_nan(whole), indent=2) + "\n")


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
