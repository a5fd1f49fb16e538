"""How much one caller may ask: a token bucket a caller."""

from __future__ import annotations

from collections import OrderedDict

_CALLERS_KEPT = 4096


class RateLimit:
    """``per_s`` calls on average, ``burst`` at once, for each caller."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, now_s: float) -> float:
        """0.0 if the call may go on, and it is counted; else how long to wait before it may."""
        tokens, then_s = self._buckets.get(caller, (float(self._burst), now_s))
        tokens = min(float(self._burst), tokens + (now_s - then_s) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if allowed else tokens, now_s)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _CALLERS_KEPT:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - tokens) / self._per_s
