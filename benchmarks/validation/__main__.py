"""``python -m benchmarks.validation``: ``build/bench/validation.json``.

    {"calibrated_on": {"stock": ..., "plug-in": ...} or null, "runs": n, "conditions": n,
     "metrics": {"ttft": {"median_error": ..., "p99_error": ..., "noise_floor": ...,
                          "noise_floor_p99": ..., "why": null}, "tbt": ..., "throughput": ...,
                 "preemptions": ...},
     "thrash": {the same, over runs with a preemption for every other request or more},
     "conditions_apart": [{"run": ..., "repeats": ..., "real": ..., "predicted": ...}, ...]}

An error is |predicted - real| / real, real being the mean of a run's repeats.  Of a latency,
``median_error`` is that of its median and ``p99_error`` that of its P99, each the median over all
conditions; throughput and preemptions have one figure a run, so ``median_error`` is the median and
``p99_error`` the 99th percentile over the conditions.  Preemptions are compared where there were
some, by one at least.  ``noise_floor`` is what one real run is off the mean of its repeats, taken
the same way.  What cannot be had is null, and ``why`` says what is missing.

One run calibrates each kind of kernels (stock's, and the plug-in's), one in which no weights move,
with the fewest preemptions a request and the most requests, and is not predicted.  A calibration on
CPU says nothing of GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.validation.calibrate import Calibration, calibrate
from benchmarks.validation.predict import (
    Outcome,
    added_first_token_s,
    predict,
    real_outcome,
)
from benchmarks.validation.records import Record, read_records, repeats
from mirage_core.errors import ConfigError, MirageError

REPEATS = 5
"""Real runs of one condition that a noise floor wants."""
THRASH = 0.5
"""Preemptions a request."""
METRICS: dict[str, tuple[str, str]] = {
    "ttft": ("ttft_p50_s", "ttft_p99_s"),
    "tbt": ("tbt_p50_s", "tbt_p99_s"),
    "throughput": ("throughput_tok_s", "throughput_tok_s"),
    "preemptions": ("preemptions", "preemptions"),
}
console = Console()


@dataclass(frozen=True, slots=True)
class Compared:
    """One condition: its real runs, and the run as predicted."""

    name: str
    real: tuple[Outcome, ...]
    predicted: Outcome
    thrashes: bool


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One kind of kernels, on one run; ``first_token_s`` as in ``predict``."""

    on: Record
    models: dict[str, Calibration]
    first_token_s: float


def main(
    runs: Annotated[
        list[Path], typer.Option(help="Folder of real runs' records; may be given again.")
    ] = [Path("build/bench/runs")],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Where the result is written.")] = Path(
        "build/bench/validation.json"
    ),
) -> None:
    """Calibrate the simulator on one real run and predict the others."""
    try:
        records = [record for folder in runs for record in read_records(folder)]
        result = validate(records)
    except MirageError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    console.print_json(json.dumps(result["metrics"]))
    console.print(f"result: {out}")


def validate(records: Sequence[Record]) -> dict[str, object]:
    """The whole result; ``records`` may be empty."""
    calibrated: dict[str, Calibrated] = {}
    for kernels in sorted({record.head.kernels for record in records}):
        calibrated[kernels] = _calibrate([r for r in records if r.head.kernels == kernels])
    compared = []
    for group in track(repeats(records), "predicting", console=console, disable=not records):
        used = calibrated[group[0].head.kernels]
        if used.on not in group:
            compared.append(_compare(group, used))
    return {
        "calibrated_on": {k: used.on.head.name for k, used in calibrated.items()} or None,
        "fits": {
            k: {
                "first_token_s": used.first_token_s,
                **{model: _fit_json(each) for model, each in used.models.items()},
            }
            for k, used in calibrated.items()
        },
        "runs": len(records),
        "conditions": len(compared),
        "metrics": _metrics(compared),
        "thrash": _metrics([each for each in compared if each.thrashes]),
        "conditions_apart": [
            {
                "run": each.name,
                "repeats": len(each.real),
                "real": asdict(_mean(each.real)),
                "predicted": asdict(each.predicted),
            }
            for each in compared
        ],
    }


def _calibrate(records: Sequence[Record]) -> Calibrated:
    """On the run in which step times can be seen best: no weights move, the fewest preemptions a
    request, the most requests."""

    def rank(record: Record) -> tuple[float, float, int]:
        asked = len(record.requests)
        return (record.head.counted.get("remaps", 0.0), record.head.preemptions / asked, -asked)

    failures = []
    for record in sorted(records, key=rank):
        try:
            models = {model: calibrate(record, model) for model in record.head.models}
        except ConfigError as error:
            failures.append(str(error))
            continue
        return Calibrated(record, models, added_first_token_s(record, models))
    raise ConfigError("no run calibrates: " + "; ".join(failures[:3]))


def _compare(group: Sequence[Record], used: Calibrated) -> Compared:
    real = tuple(real_outcome(record) for record in group)
    preempted = float(np.mean([outcome.preemptions for outcome in real]))
    return Compared(
        name=group[0].head.name,
        real=real,
        predicted=predict(group[0], used.models, used.first_token_s),
        thrashes=preempted >= THRASH * len(group[0].requests),
    )


def _metrics(compared: Sequence[Compared]) -> dict[str, dict[str, object]]:
    """Errors and noise floors by metric."""
    enough = [each for each in compared if len(each.real) >= REPEATS]
    found: dict[str, dict[str, object]] = {}
    for name, (middle, tail) in METRICS.items():
        single = middle == tail
        late = (lambda e: float(np.percentile(e, 99))) if single else _median
        found[name] = {
            "median_error": _over(compared, middle, _error, _median),
            "p99_error": _over(compared, tail, _error, late),
            "noise_floor": _over(enough, middle, _noise, _median),
            "noise_floor_p99": _over(enough, tail, _noise, late),
            "why": _why(compared, enough),
        }
    return found


def _why(compared: Sequence[Compared], enough: Sequence[Compared]) -> str | None:
    if not compared:
        return "no real run to predict: run the sharing benchmark with its raw timelines"
    if not enough:
        return f"no condition was run {REPEATS} times, so there is no noise floor"
    return None


def _over(
    compared: Sequence[Compared],
    field: str,
    of: Callable[[Compared, str], float | None],
    reduce: Callable[[Sequence[float]], float],
) -> float | None:
    values = [value for each in compared if (value := of(each, field)) is not None]
    return reduce(values) if values else None


def _error(each: Compared, field: str) -> float | None:
    real = getattr(_mean(each.real), field)
    return abs(getattr(each.predicted, field) - real) / real if real else None


def _noise(each: Compared, field: str) -> float | None:
    """Median distance of a single real run from the mean of its repeats."""
    mean = getattr(_mean(each.real), field)
    if not mean:
        return None
    return _median([abs(getattr(run, field) - mean) / mean for run in each.real])


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    names = Outcome.__dataclass_fields__
    return Outcome(*(float(np.mean([getattr(o, name) for o in outcomes])) for name in names))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _fit_json(calibration: Calibration) -> dict[str, object]:
    return {
        "slowdown": calibration.slowdown,
        "steps": calibration.steps,
        "residual_share": calibration.residual_share,
        **asdict(calibration.step_time),
    }


if __name__ == "__main__":
    typer.run(main)
