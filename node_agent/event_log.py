"""The event log: every event that the arbiter took in, every decision, as JSON lines.

The first line names the policy and the device; each agent that appends to the file begins anew.
The arbiter is pure, so the events alone give its decisions again (``replay``).
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
from typing import Any, NamedTuple

from mirage_core.control import arbiter_events
from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Event
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


class Line(NamedTuple):
    """One line of a log, read; ``decision`` is plain JSON, to be held against ``to_json``'s."""

    number: int
    t_s: float
    beginning: Beginning | None = None
    event: Event | None = None
    decision: Any = None


def read_log(path: Path) -> Iterator[Line]:
    """The log's lines in order; ConfigError names the one that cannot be read."""
    number = 0
    try:
        with path.open() as log:
            for number, text in enumerate(log, 1):
                yield _read_line(number, text)
    except OSError as error:
        raise ConfigError(f"cannot read the event log {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"{type(error).__name__}: {error}"
        raise ConfigError(f"line {number} of {path} is none of an event log's ({fault})") from None


def _read_line(number: int, text: str) -> Line:
    values = json.loads(text)
    t_s = float(values["t_s"])
    if "beginning" in values:
        return Line(number, t_s, beginning=_from_json(Beginning, values["beginning"]))
    if "event" in values:
        return Line(number, t_s, event=_from_json(Event, values["event"]))
    return Line(number, t_s, decision=values["decision"])


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
    """The inverse of ``to_json`` for values of the type ``kind``.

    A field that an older log lacks has its default.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        possible = [each for each in arguments if each is not type(None)]
        if value is None:
            return None
        if len(possible) == 1:
            return _from_json(possible[0], value)
        if not isinstance(value, dict):
            kinds_of_plain = [a for a in arguments if a is not types.NoneType]
            plain = value is None or len(kinds_of_plain) > 1
            return value if plain else _from_json(kinds_of_plain[0], value)
        kinds = {getattr(argument, "__name__", ""): argument for argument in arguments}
        kind = kinds[value["kind"]]
    if origin is tuple:
        item = arguments[0]
        return tuple(_from_json(item, each) for each in value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        known = {f.name: hints[f.name] for f in _fields(kind) if f.name in value}
        return kind(**{name: _from_json(hint, value[name]) for name, hint in known.items()})
    return value


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(kind) if f.init)


_hints = functools.cache(typing.get_type_hints)
