"""The agent's record of a device's memory over time: JSON lines, one engine's state a line.

    {"t_s": 12.5, "engine": "2546d254-...", "model": "small", "active": true, "pool_pages": 40,
     "spare_pages": 9, "resident_pages": 320, "slot_pages": 0, "cycled_units": 0, "free_pages": 6}

``t_s`` is of the monotonic clock, ``free_pages`` are the device's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.sharing.servers import ServerError


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine's memory at one time, in pages."""

    t_s: float
    model: str
    pool_pages: int
    spare_pages: int
    resident_pages: int
    cycled_units: int
    free_pages: int


def read_timeline(path: Path, from_s: float, until_s: float) -> tuple[Sample, ...]:
    """Samples within ``from_s..until_s``, their times counted from ``from_s``.

    A last line without its end is still being written and left out.  Raises ServerError if the
    file is missing or a line is not a sample.
    """
    names = {field.name for field in fields(Sample)}
    samples = []
    try:
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                samples.append(Sample(**{name: row[name] for name in names}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{path}: no timeline to read: {error!r}") from error
    return tuple(
        replace(sample, t_s=sample.t_s - from_s)
        for sample in samples
        if from_s <= sample.t_s <= until_s
    )
