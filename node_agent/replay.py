"""An event log held against the arbiter: do its events give the logged decisions again?

The arbiter is pure, so they must, to the last digit; where they do not, the log was changed, or
was written by an arbiter that decides otherwise.  Grants and denials are not logged; a grant of
other pages shows when an engine gives back what it does not have, and the arbiter refuses that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Explain
from mirage_core.errors import ConfigError, MirageError
from node_agent.event_log import Line, read_log, to_json


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where log and arbiter part; ``logged`` and ``replayed`` are JSON or None."""

    line: int
    what: str
    logged: Any = None
    replayed: Any = None


@dataclass(slots=True)
class Replay:
    """What was replayed, up to the first difference if there is one."""

    agents: int = 0
    events: int = 0
    decisions: int = 0
    difference: Difference | None = None


def replay(path: Path) -> Replay:
    """Feed a log's events to the arbiter; ConfigError if it is no event log."""
    done = Replay()
    arbiter: Arbiter | None = None
    expected: deque[tuple[int, Any]] = deque()
    """decisions that the log must name next, each with the line of its event"""
    for line in read_log(path):
        if line.beginning is not None:
            done.difference = _unlogged(expected)
            if done.difference is None:
                done.agents += 1
                arbiter = line.beginning.make_arbiter()
        elif arbiter is None:
            raise ConfigError(f"{path} does not begin as an event log does")
        elif line.event is not None:
            done.difference = _take_in(arbiter, line, expected)
            done.events += 1
        else:
            done.difference = _compare(line, expected)
            done.decisions += 1
        if done.difference is not None:
            return done
    if arbiter is None:
        raise ConfigError(f"{path} is empty")
    done.difference = _unlogged(expected)
    return done


def _take_in(arbiter: Arbiter, line: Line, expected: deque[tuple[int, Any]]) -> Difference | None:
    assert line.event is not None
    try:
        actions = arbiter.handle(line.event, line.t_s)
    except MirageError as error:
        return Difference(line.number, f"the arbiter refuses this event now: {error}")
    expected.extend((line.number, to_json(a)) for a in actions if isinstance(a, Explain))
    return None


def _compare(line: Line, expected: deque[tuple[int, Any]]) -> Difference | None:
    if not expected:
        return Difference(line.number, "no event asks for this decision", logged=line.decision)
    event_line, decision = expected.popleft()
    if decision == line.decision:
        return None
    what = f"the event of line {event_line} is decided otherwise now"
    return Difference(line.number, what, line.decision, decision)


def _unlogged(expected: deque[tuple[int, Any]]) -> Difference | None:
    """An agent's life ends with every decision logged, unless it was killed between two lines."""
    if not expected:
        return None
    line, decision = expected[0]
    return Difference(line, "the log lacks a decision on this event", replayed=decision)
