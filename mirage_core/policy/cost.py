"""Step time of one model under a remap plan: circular execution with one serial link (§5.4).

A step runs the units in order, then the rest of the step (head, sampling), then the next step
begins with unit 0 again.  As soon as a cycled unit has run, its slot's next unit is fetched; the
link carries one fetch at a time, first come first served.

    units   0   1   2   3   4   5   6   7 | 0 ...       slot {1, 5}, one slot, alpha = 1
    slot        1 [ fetch 5 ]   5 [ fetch 1 ] 1

Every event waits for the later of two others, so a step is a *max-plus linear* map of the state
(time, link free, one slot ready each).  The steady step time of such a system is its greatest
cycle mean, which Karp's theorem gives exactly from as many steps as the state has parts: no
warm-up is guessed at and none is averaged away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mirage_core.errors import MisuseError
from mirage_core.model import RemapPlan, UnitId

_NEVER = -math.inf
TOLERANCE = 1e-9
"""Share of a step below which added time is rounding and counts as none."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Measured times of one model at its present batch, one entry a unit, in execution order.

    compute_s[u]   from the start of unit u to the start of the next one, all weights on device
    transfer_s[u]  host to device, the link to itself
    rest_s         the step's end, after the last unit: final norm, head, sampling, scheduling
    """

    compute_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    rest_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.compute_s) != len(self.transfer_s):
            raise MisuseError(
                f"{len(self.compute_s)} compute times, {len(self.transfer_s)} transfer times"
            )
        for time_s in (*self.compute_s, *self.transfer_s, self.rest_s):
            if not 0.0 <= time_s < math.inf:
                raise MisuseError(f"a time must be finite and not negative, got {time_s!r}")

    @property
    def units(self) -> int:
        return len(self.compute_s)

    @property
    def resident_step_s(self) -> float:
        """Step time with every unit resident: T_Compute of §5.3."""
        return sum(self.compute_s) + self.rest_s


@dataclass(frozen=True, slots=True)
class Cycle:
    """The cycled units of one plan as the recurrence needs them, in order of execution.

    gap_s[j]      compute of the resident units between the cycled unit before and this one
    compute_s[j]  compute of the cycled unit itself
    fetch_s[j]    transfer that starts when it has run: the next unit of its slot
    slot[j]       its slot, 0 <= slot < slots
    tail_s        compute after the last cycled unit to the step's end
    """

    gap_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    fetch_s: tuple[float, ...]
    slot: tuple[int, ...]
    tail_s: float
    slots: int

    @property
    def transfer_s(self) -> float:
        """Seconds a step that the link is busy: the traffic that §5.4 wants least."""
        return sum(self.fetch_s)

    @property
    def step_bound_s(self) -> float:
        """A step is never shorter than its compute, its link time, or any slot's own round.

        With even units these are the closed forms (``closed_form_step_s``).
        """
        rounds_s = [0.0] * self.slots
        for slot, compute_s, fetch_s in zip(self.slot, self.compute_s, self.fetch_s, strict=True):
            rounds_s[slot] += compute_s + fetch_s
        busy_s = sum(self.gap_s) + sum(self.compute_s) + self.tail_s
        return max(busy_s, self.transfer_s, *rounds_s)

    def after_step(self, time_s: float, link_s: float, ready_s: list[float]) -> tuple[float, float]:
        """One step of the recurrence: new time and link time; ``ready_s`` is updated in place."""
        for gap_s, compute_s, fetch_s, slot in zip(
            self.gap_s, self.compute_s, self.fetch_s, self.slot, strict=True
        ):
            time_s += gap_s
            if time_s < ready_s[slot]:
                time_s = ready_s[slot]
            time_s += compute_s
            link_s = (time_s if time_s > link_s else link_s) + fetch_s
            ready_s[slot] = link_s
        return time_s + self.tail_s, link_s

    def steady_step_s(self) -> float:
        """Greatest cycle mean of the step map, by Karp (1978), exact.

        With N parts of state and D_k their times after k steps from "time 0, nothing awaited":
        max over parts of min over k < N of (D_N - D_k) / (N - k).
        """
        ready_s = [_NEVER] * self.slots
        time_s, link_s = 0.0, _NEVER
        history = [(time_s, link_s, *ready_s)]
        parts = self.slots + 2
        for _ in range(parts):
            time_s, link_s = self.after_step(time_s, link_s, ready_s)
            history.append((time_s, link_s, *ready_s))
        last = history.pop()
        return max(
            min(
                (last[part] - state[part]) / (parts - step)
                for step, state in enumerate(history)
                if state[part] != _NEVER
            )
            for part in range(parts)
        )


def cycle_of(members: Sequence[Sequence[UnitId]], cost: StepCost) -> Cycle:
    """The cycle of the plan whose slot ``s`` holds ``members[s]`` (as in ``RemapPlan.slots``)."""
    follower = {
        unit: units[(place + 1) % len(units)]
        for units in members
        for place, unit in enumerate(units)
    }
    slot_of = {unit: slot for slot, units in enumerate(members) for unit in units}
    cycled = sorted(slot_of)
    if cycled and cycled[-1] >= cost.units:
        raise MisuseError(f"plan names unit {cycled[-1]}, the model has {cost.units}")
    until_s = (0.0, *accumulate(cost.compute_s))
    resumes = (0, *(unit + 1 for unit in cycled))
    return Cycle(
        gap_s=tuple(
            until_s[unit] - until_s[resume]
            for resume, unit in zip(resumes[:-1], cycled, strict=True)
        ),
        compute_s=tuple(cost.compute_s[unit] for unit in cycled),
        fetch_s=tuple(cost.transfer_s[follower[unit]] for unit in cycled),
        slot=tuple(slot_of[unit] for unit in cycled),
        tail_s=until_s[-1] - until_s[resumes[-1]] + cost.rest_s,
        slots=len(members),
    )


def steady_step_s(plan: RemapPlan, cost: StepCost) -> float:
    """Step time of circular execution under ``plan`` once it has settled (§5.4)."""
    if not plan.slots:
        return cost.resident_step_s
    return cycle_of(plan.slots, cost).steady_step_s()


def added_time_s(plan: RemapPlan, cost: StepCost) -> float:
    """Seconds a step that ``plan`` adds to the resident step: 0.0 where all transfers hide."""
    return added_beyond(steady_step_s(plan, cost), cost.resident_step_s)


def added_beyond(step_s: float, resident_step_s: float) -> float:
    """``step_s - resident_step_s``, with rounding (``TOLERANCE``) counted as none."""
    added_s = step_s - resident_step_s
    return added_s if added_s > TOLERANCE * resident_step_s else 0.0


def closed_form_step_s(
    units: int, freed_units: int, slots: int, compute_s: float, transfer_s: float
) -> float:
    """Step time of equal units with ideal (fractional) gaps, for one or two slots.

    One slot, m = alpha + 1:   max(n T_c, (alpha + 1)(T_T + T_c))   (Equation 4, rearranged)
    Two slots, m = alpha + 2:  max(n T_c, (alpha + 2) T_T)          (Equation 5)

    A lower bound of the exact time: whole-numbered gaps can only add to it.
    """
    cycled = freed_units + slots
    if slots == 1:
        return max(units * compute_s, cycled * (transfer_s + compute_s))
    if slots == 2:
        return max(units * compute_s, cycled * transfer_s)
    raise MisuseError(f"closed forms cover one or two slots, got {slots}")
