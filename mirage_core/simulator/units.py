"""Seconds to picoseconds and back: the simulator's clock is an integer count of picoseconds.

A picosecond resolves the time to read one token's KV cache (some 4,000 to 400,000 ps), and 63 bits
of them last 106 days.
"""

from __future__ import annotations

PS_PER_S = 10**12
NEVER_PS = 2**62
"""Later than any run's end; fits int64 with room to add."""


def to_ps(time_s: float) -> int:
    """The nearest whole picosecond."""
    return round(time_s * PS_PER_S)


def to_s(time_ps: int) -> float:
    return time_ps / PS_PER_S
