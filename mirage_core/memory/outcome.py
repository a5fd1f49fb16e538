"""The answer "cannot now": a value with a reason, never an exception (DESIGN §8.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed; ``reason`` is a line for people and logs."""

    reason: str
