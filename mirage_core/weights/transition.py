"""Plan the way from one placement of a model's units to another remap plan.  Pure.

A unit's bytes exist on the device once at most, and in the new plan the unit is either resident or
in one slot.  So two new owners never compete for the same bytes, and every new owner that finds
bytes it can use takes over the pages they lie in:

1. a unit that becomes or stays resident, and is present, keeps the pages its bytes lie in;
2. a slot is founded on the pages of a member that is present, the first in order of execution,
   since that one is used first;
3. an owner that finds no bytes keeps pages of its own, where nobody else needs them, only so that
   less is unmapped and mapped.

Pages that nobody keeps are released, what is missing comes from them and from the reserve, and
all unmapping goes before all mapping.  Hence no more pages are ever needed than the larger of the
two placements has, a transition is possible if and only if

    pages of the new plan <= pages of the old placement + pages of the reserve,

and exactly the resident units that were present nowhere are fetched.  A slot that finds no bytes
starts empty: its first fetch is the fetcher's, in the background, as are all later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_core.errors import MisuseError
from mirage_core.memory.outcome import Refused
from mirage_core.memory.runs import PageRuns
from mirage_core.memory.table import Owner, slot_owner, unit_owner
from mirage_core.model import PageId, RemapPlan, UnitId
from mirage_core.weights.placement import Placement


@dataclass(frozen=True, slots=True)
class Unmap:
    """Unmap the pages at places ``index, index+1, ...`` of the unit's span."""

    unit: UnitId
    index: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Map:
    """Map the pages at places ``index, index+1, ...`` of the unit's span."""

    unit: UnitId
    index: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """The unit's bytes are to come from the host copy to its span, once the rest is done."""

    unit: UnitId


Step = Unmap | Map | Fetch


@dataclass(frozen=True, slots=True)
class Transition:
    """Steps in order, and the placements before and after them."""

    before: Placement
    after: Placement
    steps: tuple[Step, ...]

    @property
    def freed_pages(self) -> int:
        """Pages that the reserve gains; negative for pages that it gives."""
        return self.before.pages - self.after.pages

    @property
    def fetched(self) -> tuple[UnitId, ...]:
        """Units that the steps fetch, in order of execution."""
        return tuple(step.unit for step in self.steps if isinstance(step, Fetch))

    @property
    def changed_pages(self) -> tuple[PageId, ...]:
        """Pages of either placement whose old bytes are of no use to an owner after it."""
        kept = {
            page
            for unit in self.after.present & self.before.present
            for page in self.after.span(unit)
        }
        return tuple(sorted((self.before.owners().keys() | self.after.owners().keys()) - kept))


def plan_transition(
    before: Placement, plan: RemapPlan, reserve: Sequence[PageId]
) -> Transition | Refused:
    """Plan the way from ``before`` to ``plan`` with the help of the pages of ``reserve``.

    Refused if the pages do not suffice; MisuseError if the plan is not one of this model.
    """
    missing = missing_pages(before, plan, len(reserve))
    if missing > 0:
        return Refused(f"the plan needs {missing} pages more than model and reserve have")
    needs = _needs(plan, before.sizes_pages)
    kept = {owner: pages[: needs[owner]] for owner, pages in _heirs(before, plan).items()}
    free = PageRuns(sorted({*before.owners(), *reserve}.difference(*kept.values())))
    pages: dict[Owner, tuple[PageId, ...]] = {}
    for owner, need in needs.items():
        mine = kept.get(owner, ())
        more = free.choose(need - len(mine))
        free.remove(more)
        pages[owner] = mine + more
    after = Placement(
        plan,
        before.sizes_pages,
        tuple(pages.get(unit_owner(UnitId(u)), ()) for u in range(len(before.sizes_pages))),
        tuple(pages[slot_owner(slot)] for slot in range(len(plan.slots))),
        _present_after(before, plan),
    )
    return Transition(before, after, tuple(_steps(before, after)))


def plan_release(before: Placement) -> Transition:
    """Plan to take the model off the device; all its pages are freed."""
    after = Placement.nowhere(before.sizes_pages)
    return Transition(before, after, tuple(_steps(before, after)))


def missing_pages(before: Placement, plan: RemapPlan, reserve_pages: int) -> int:
    """Pages that the transition lacks; zero or less if it is possible."""
    try:
        needed = plan.pages(before.sizes_pages)
    except ValueError as error:
        raise MisuseError(str(error)) from error
    return needed - before.pages - reserve_pages


def _needs(plan: RemapPlan, sizes_pages: Sequence[int]) -> dict[Owner, int]:
    """Pages that each owner has under the plan, in order of its first unit's execution."""
    needs: dict[Owner, int] = {}
    for index, size in enumerate(sizes_pages):
        owner = _owner_of(plan, UnitId(index))
        needs[owner] = max(needs.get(owner, 0), size)
    return needs


def _heirs(before: Placement, plan: RemapPlan) -> Mapping[Owner, tuple[PageId, ...]]:
    """Owners under the plan that take over an old owner's pages, and these pages, all of them."""
    left = {
        **{unit_owner(UnitId(u)): pages for u, pages in enumerate(before.unit_pages) if pages},
        **{slot_owner(slot): pages for slot, pages in enumerate(before.slot_pages)},
    }
    units = [UnitId(unit) for unit in range(len(before.sizes_pages))]
    with_bytes_first = sorted(units, key=lambda unit: unit not in before.present)
    heirs: dict[Owner, tuple[PageId, ...]] = {}
    for unit in with_bytes_first:
        source, owner = _owner_of(before.plan, unit), _owner_of(plan, unit)
        if owner not in heirs and source in left:
            heirs[owner] = left.pop(source)
    return heirs


def _owner_of(plan: RemapPlan, unit: UnitId) -> Owner:
    slot = plan.slot_of(unit)
    return unit_owner(unit) if slot is None else slot_owner(slot)


def _present_after(before: Placement, plan: RemapPlan) -> frozenset[UnitId]:
    resident = {UnitId(unit) for unit in range(len(before.sizes_pages))} - plan.cycled
    founders = replace(before, plan=plan).contents
    return frozenset(resident.union(unit for unit in founders if unit is not None))


def _steps(before: Placement, after: Placement) -> Iterator[Step]:
    """All unmapping, then unit by unit what its span lacks and the bytes that are missing."""
    units = [UnitId(unit) for unit in range(len(before.sizes_pages))]
    same = {unit: _common_prefix(before.span(unit), after.span(unit)) for unit in units}
    for unit in units:
        if gone := before.span(unit)[same[unit] :]:
            yield Unmap(unit, same[unit], gone)
    for unit in units:
        if new := after.span(unit)[same[unit] :]:
            yield Map(unit, same[unit], new)
        if unit in after.present - before.present:
            yield Fetch(unit)


def _common_prefix(left: Sequence[PageId], right: Sequence[PageId]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
