"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Chrome's JSON.

    process   a device
    thread    an engine: spans of steps; instants for preemptions and remaps
    counter   an engine's KV blocks (held, free) and requests (running, waiting)

Times are microseconds, as the format wants them.  A stretch of equal steps is one span.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirage_core.errors import ConfigError
from mirage_core.simulator.config import RunConfig
from mirage_core.simulator.results import Results, StepLog

PS_PER_US = 10**6
Event = dict[str, Any]


def write_trace(results: Results, config: RunConfig, path: Path) -> None:
    """The whole run; raises ConfigError if it kept no log of steps."""
    if results.steps is None:
        raise ConfigError("a trace needs the log of steps: leave record_steps on")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(results.steps, config)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def trace_events(steps: StepLog, config: RunConfig) -> Iterator[Event]:
    """Every event, engine by engine."""
    places = [
        (place, device.name, engine.model)
        for place, device in enumerate(config.devices)
        for engine in device.engines
    ]
    named: set[int] = set()
    for engine, (process, device, model) in enumerate(places):
        at = {"pid": process, "tid": engine}
        if process not in named:
            named.add(process)
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": device}}
        yield {"ph": "M", "name": "thread_name", **at, "args": {"name": model}}
        yield from _engine_events(steps, engine, model, at)


def _engine_events(
    steps: StepLog, engine: int, model: str, at: Mapping[str, int]
) -> Iterator[Event]:
    rows = np.flatnonzero(steps.engine == engine)
    count = steps.steps[rows]
    took_ps = steps.first_ps[rows] * count + steps.growth_ps[rows] * (count * (count - 1) // 2)
    before: dict[str, int] = {}
    for row, span_ps in zip(rows.tolist(), took_ps.tolist(), strict=True):
        values = {name: int(getattr(steps, name)[row]) for name in StepLog.__slots__}
        start_us = values["start_ps"] / PS_PER_US
        yield {
            "ph": "X",
            "name": _name(values),
            "cat": "step",
            "ts": start_us,
            "dur": span_ps / PS_PER_US,
            **at,
            "args": {k: values[k] for k in ("steps", "decodes", "prefill_tokens")},
        }
        yield from _changes(before, values, start_us, at)
        yield from _counters(before, values, start_us, model, at)
        before = values


def _name(values: Mapping[str, int]) -> str:
    if values["prefill_tokens"]:
        return f"prefill {values['prefill_tokens']}" + (" + decode" if values["decodes"] else "")
    return "decode" if values["steps"] == 1 else f"decode x{values['steps']}"


def _changes(
    before: Mapping[str, int], values: Mapping[str, int], start_us: float, at: Mapping[str, int]
) -> Iterator[Event]:
    """A pool that grew or shrank since the step before."""
    if not before or before["capacity_blocks"] == values["capacity_blocks"]:
        return
    grown = values["capacity_blocks"] - before["capacity_blocks"]
    name = f"pool {'grows' if grown > 0 else 'shrinks'}"
    args = {"blocks": grown}
    yield {"ph": "i", "s": "t", "name": name, "cat": "remap", "ts": start_us, **at, "args": args}


def _counters(
    before: Mapping[str, int],
    values: Mapping[str, int],
    start_us: float,
    model: str,
    at: Mapping[str, int],
) -> Iterator[Event]:
    """Counters that changed."""
    groups: Sequence[tuple[str, dict[str, int]]] = (
        (
            "KV blocks",
            {
                "held": values["used_blocks"],
                "free": max(0, values["capacity_blocks"] - values["used_blocks"]),
            },
        ),
        ("requests", {"running": values["running"], "waiting": values["waiting"]}),
    )
    watched = ("used_blocks", "capacity_blocks"), ("running", "waiting")
    for (name, args), names in zip(groups, watched, strict=True):
        if not before or any(before[each] != values[each] for each in names):
            counter = f"{name} of {model}"
            yield {"ph": "C", "name": counter, "pid": at["pid"], "ts": start_us, "args": args}
