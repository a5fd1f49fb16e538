"""What a remap plan makes of a model's steps, slot by slot (DESIGN §5, FACTS §4's recurrence).

With compute times in proportion to the step's plain time x, the steady step time under a plan is a
convex, piecewise linear function S(x) >= x: the greatest cycle mean of ``policy.cost``, whose
cycles each have a part that grows with x and a part that the link alone decides.  An engine wants
one line of it (``Stretch``): the tangent at the present x.  So the simulated step is exact for the
batch at hand and never longer than the exact one for another.

Left out: the first step after a change of plan settles into the steady cycle at once, but for
units that are still on their way (``landing_delay_s``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_core.errors import ConfigError
from mirage_core.model import RemapPlan, UnitId
from mirage_core.policy.cost import StepCost, added_beyond, steady_step_s
from mirage_core.simulator.step_time import Stretch
from mirage_core.simulator.units import to_ps

BUCKET = 1.05
"""Step times within this factor have one tangent."""
_SLOPE_STEP = 1.0 / 1024
_REACH = 0.7
"""Where nothing waits at x, the line is taken at this part of x: shorter steps may wait."""
_CACHED = 4096


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit's bytes, and its compute as a share of a step with all weights resident."""

    size_bytes: int
    compute_share: float


def units_of(
    unit_bytes: Sequence[int], compute_share: Sequence[float], parts: int = 1
) -> tuple[Unit, ...]:
    """Units of a model in order of execution, each cut into ``parts`` equal ones.

    Without shares, compute is in proportion to bytes: decoding is bound by memory bandwidth.
    """
    if parts < 1:
        raise ConfigError(f"a unit cannot be cut into {parts} parts")
    total = sum(unit_bytes)
    shares = compute_share or [size / total for size in unit_bytes]
    return tuple(
        Unit(-(-size // parts), share / parts)
        for size, share in zip(unit_bytes, shares, strict=True)
        for _ in range(parts)
    )


class StallModel:
    """Stalls of one model's steps; remembers what it has worked out."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._shares = tuple(unit.compute_share for unit in units)
        self._bytes = tuple(unit.size_bytes for unit in units)
        self._rest_share = max(0.0, 1.0 - sum(self._shares))
        self._stretches: dict[tuple[RemapPlan, int, float], Stretch | None] = {}

    @property
    def unit_bytes(self) -> tuple[int, ...]:
        return self._bytes

    def cost(self, plain_s: float, bytes_per_s: float) -> StepCost:
        """Times of a step that takes ``plain_s`` with all weights on the device."""
        return StepCost(
            tuple(share * plain_s for share in self._shares),
            tuple(size / bytes_per_s for size in self._bytes),
            self._rest_share * plain_s,
        )

    def stretch(self, plan: RemapPlan, plain_s: float, bytes_per_s: float) -> Stretch | None:
        """What the plan adds to steps of about ``plain_s``; None if all units are resident."""
        if not plan.slots:
            return None
        key = (plan, bucket(plain_s, BUCKET), bytes_per_s)
        if key not in self._stretches:
            if len(self._stretches) >= _CACHED:
                self._stretches.clear()
            self._stretches[key] = self._tangent(plan, BUCKET ** key[1], bytes_per_s)
        return self._stretches[key]

    def _tangent(self, plan: RemapPlan, plain_s: float, bytes_per_s: float) -> Stretch:
        at_s = plain_s
        step_s = self.step_s(plan, at_s, bytes_per_s)
        if added_beyond(step_s, at_s) == 0.0:
            at_s *= _REACH
            step_s = self.step_s(plan, at_s, bytes_per_s)
        below_s = self.step_s(plan, at_s * (1 - _SLOPE_STEP), bytes_per_s)
        slope = (step_s - below_s) / (at_s * _SLOPE_STEP)
        share = max(0, round(slope * 1024))
        return Stretch(base_ps=to_ps(step_s - at_s * share / 1024), plain_1024ths=share)

    def step_s(self, plan: RemapPlan, plain_s: float, bytes_per_s: float) -> float:
        """The exact steady step time (policy's cost model)."""
        return steady_step_s(plan, self.cost(plain_s, bytes_per_s))

    def landing_delay_s(self, landing: Iterable[tuple[UnitId, float]], plain_s: float) -> float:
        """How long a step that begins now waits for units that land in so many seconds each.

        A unit that has not landed when its turn comes holds up itself and all behind it; so the
        step is late by the worst of them.
        """
        begins_s: list[float] = []
        at_s = 0.0
        for share in self._shares:
            begins_s.append(at_s)
            at_s += share * plain_s
        return max((lands_s - begins_s[unit] for unit, lands_s in landing), default=0.0)


def bucket(value: float, factor: float) -> int:
    """Which power of ``factor`` is nearest to ``value`` (above 0)."""
    return round(math.log(max(value, 1e-12), factor))
