"""Files of JSON lines: the event log, from which decisions can be replayed, and the timeline."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from mirage_core.control.arbiter import DeviceSummary, EngineSummary
from mirage_core.errors import ConfigError
from mirage_core.model import EngineId

TIMELINE_INTERVAL_S = 0.25
"""A timeline has a line for each engine at least so often."""


class JsonLines:
    """A file that gets one JSON object a line; each line is written whole."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = path.open("a", buffering=1)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None

    def write(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, separators=(",", ":"), default=_plain) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Timeline:
    """Each engine's pages over time: a line when they change, and one each interval.

    ``t_s`` is the machine's monotonic clock, which other processes can read too.
    """

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._last: dict[EngineId, tuple[EngineSummary, int]] = {}
        self._whole_s = float("-inf")

    def observe(self, summary: DeviceSummary, now_s: float) -> None:
        whole = now_s - self._whole_s >= TIMELINE_INTERVAL_S
        if whole:
            self._whole_s = now_s
        present = {engine.engine: (engine, summary.free_pages) for engine in summary.engines}
        for engine, free_pages in present.values():
            if whole or self._last.get(engine.engine) != (engine, free_pages):
                self._lines.write(
                    {
                        "t_s": round(now_s, 6),
                        "engine": engine.engine,
                        "model": engine.model,
                        "active": engine.active,
                        "pool_pages": engine.pool_pages,
                        "spare_pages": engine.spare_pages,
                        "resident_pages": engine.resident_pages,
                        "slot_pages": engine.slot_pages,
                        "cycled_units": engine.cycled_units,
                        "free_pages": free_pages,
                    }
                )
        self._last = present


def to_json(value: Any) -> Any:
    """A value of the core as plain JSON; a dataclass names its kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        if hasattr(value, "_asdict"):
            return {name: to_json(item) for name, item in value._asdict().items()}
        return [to_json(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
