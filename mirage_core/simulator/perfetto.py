"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Chrome's JSON.

    process   a device
    thread    an engine: spans of steps; instants where requests were preempted and the pool
              changed size; and its fetches: how long the link needs of each stretch of steps
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
_FETCHES = 1_000_000
"""Added to an engine's number: the thread of its fetches."""


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
        fetches = {"pid": process, "tid": engine + _FETCHES}
        yield {"ph": "M", "name": "thread_name", **at, "args": {"name": model}}
        yield {"ph": "M", "name": "thread_name", **fetches, "args": {"name": f"{model} fetches"}}
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
        if values["streamed_ps"]:
            busy_ps = min(span_ps, values["streamed_ps"] * values["steps"])
            fetches = {"pid": at["pid"], "tid": at["tid"] + _FETCHES}
            span = {"ts": start_us, "dur": busy_ps / PS_PER_US}
            yield {"ph": "X", "name": "fetch", "cat": "fetch", **span, **fetches}
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
    """What happened since the step before: the pool changed size, requests were preempted."""
    if not before:
        return
    grown = values["capacity_blocks"] - before["capacity_blocks"]
    preempted = values["preemptions"] - before["preemptions"]
    instant = {"ph": "i", "s": "t", "ts": start_us, **at}
    if grown:
        name = f"pool {'grows' if grown > 0 else 'shrinks'}"
        yield {"name": name, "cat": "remap", "args": {"blocks": grown}, **instant}
    if preempted:
        args = {"requests": preempted}
        yield {"name": "preemption", "cat": "preemption", "args": args, **instant}


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
