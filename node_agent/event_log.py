"""The event log: every event that the arbiter took in, every decision, as JSON lines.

The first line names the policy and the device.  The arbiter is pure, so the events alone give its
decisions again: ``replay`` does that, and what it yields can be held against what was logged.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from mirage_core.control import arbiter_events
from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Action, Event
from mirage_core.errors import ConfigError
from mirage_core.model import EngineId, ModelName
from mirage_core.policy.settings import Policy
from node_agent.journal import JsonLines


@dataclasses.dataclass(frozen=True, slots=True)
class Beginning:
    """What an arbiter was made from."""

    pages: int
    policy: Policy
    awaited: Mapping[EngineId, ModelName]
    first_operation: int

    def make_arbiter(self) -> Arbiter:
        return Arbiter(self.pages, self.policy, self.awaited, self.first_operation)


class EventLog:
    def __init__(self, lines: JsonLines, beginning: Beginning, now_s: float) -> None:
        self._lines = lines
        self._lines.write({"t_s": now_s, "beginning": to_json(beginning)})

    def observe_event(self, event: Event, now_s: float) -> None:
        self._lines.write({"t_s": now_s, "event": to_json(event)})

    def observe_decision(self, decision: arbiter_events.Explain, now_s: float) -> None:
        self._lines.write({"t_s": now_s, "decision": to_json(decision)})


def replay(path: Path) -> Iterator[tuple[float, Event, tuple[Action, ...]]]:
    """Each logged event with its time, and what the arbiter makes of it now.

    Raises ConfigError if the log cannot be read.  A log of several agents starts anew with each.
    """
    arbiter: Arbiter | None = None
    try:
        for line in path.read_text().splitlines():
            values = json.loads(line)
            if "beginning" in values:
                arbiter = _from_json(Beginning, values["beginning"]).make_arbiter()
            elif "event" in values and arbiter is not None:
                event = _from_json(Event, values["event"])
                yield values["t_s"], event, arbiter.handle(event, values["t_s"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot read the event log {path}: {error}") from None


def to_json(value: Any) -> Any:
    """A value of the core as plain JSON; a dataclass names its kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_asdict"):
        return {name: to_json(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    return value


def _from_json(kind: Any, value: Any) -> Any:
    """The inverse of ``to_json`` for values of the type ``kind``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if not isinstance(value, dict):
            return value
        kind = next(k for k in arguments if getattr(k, "__name__", "") == value["kind"])
    if origin is tuple:
        item = arguments[0]
        return tuple(_from_json(item, each) for each in value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{f.name: _from_json(hints[f.name], value[f.name]) for f in _fields(kind)})
    return value


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(kind) if f.init)


_hints = functools.cache(typing.get_type_hints)
