"""Files of JSON lines, and the timeline of a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from mirage_core.control.device_summary import DeviceSummary, EngineSummary
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
        self._file.write(json.dumps(values, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()


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
