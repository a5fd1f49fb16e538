"""Which units are cycled, and through which slot (§5.4).

Execution is circular: after the last unit comes the first.  Evenly spaced units maximise the
least gap, hence the time that the tightest fetch has (Equation 3).  Moving from one even set to a
larger one, though, makes most of the former resident again, and each of those costs a fetch;
``extend_spaced`` grows a set without that, and the plan table prefers it wherever its step is no
longer than the even one's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mirage_core.errors import MisuseError
from mirage_core.model import RemapPlan, UnitId


def choose_even_units(candidates: Sequence[UnitId], count: int) -> tuple[UnitId, ...]:
    """``count`` of ``candidates``, evenly spaced on the circle (§5.4): every n/m-th of them.

    Gaps differ by one at most, so their least is floor(n/m), the greatest that any choice has.
    """
    total = len(candidates)
    if not 0 <= count <= total:
        raise MisuseError(f"{count} of {total} units")
    return tuple(candidates[j * total // count] for j in range(count))


def extend_spaced(
    candidates: Sequence[UnitId], chosen: Collection[UnitId], count: int
) -> tuple[UnitId, ...]:
    """``chosen`` and more of ``candidates`` up to ``count``, each put into the widest gap.

    Ascending.  ``chosen`` must be among ``candidates``, and no more than ``count``.
    """
    total = len(candidates)
    places = [place for place, unit in enumerate(candidates) if unit in chosen]
    if len(places) != len(chosen) or not len(places) <= count <= total:
        raise MisuseError(f"cannot extend {len(chosen)} units to {count} of {total}")
    if not places:
        return choose_even_units(candidates, count)
    while len(places) < count:
        # A gap runs from one place to the next, from the last round to the first.
        ends = [*places[1:], places[0] + total]
        start, end = max(zip(places, ends, strict=True), key=lambda gap: (gap[1] - gap[0], -gap[0]))
        places.append((start + end) // 2 % total)
        places.sort()
    return tuple(candidates[place] for place in places)


def assign_slots(cycled: Sequence[UnitId], slots: int) -> tuple[tuple[UnitId, ...], ...]:
    """The k-th cycled unit goes to slot k mod ``slots`` (§5.4): neighbours never share a slot.

    Slots are buffers used in turn, so while one unit runs the next one's fetch has its own place.
    """
    return tuple(tuple(cycled[slot::slots]) for slot in range(slots))


def units_made_resident(before: RemapPlan, after: RemapPlan) -> frozenset[UnitId]:
    """Units that a change of plan fetches for good: cycled ``before``, resident ``after``.

    The other direction is free of traffic: a unit's pages are given up, its host copy stays.
    """
    return before.cycled - after.cycled
