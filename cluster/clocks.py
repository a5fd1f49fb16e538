"""The clocks of a process of the cluster."""

from __future__ import annotations

import time


class BootClock:
    """Counts the time that the machine sleeps, so that a lease ends while it does."""

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemWallClock:
    def unix_s(self) -> float:
        return time.time()
