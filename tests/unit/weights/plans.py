"""Strategies and a symbolic machine for placements and transitions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from mirage_core.model import PageId, RemapPlan, UnitId
from mirage_core.weights.placement import Placement
from mirage_core.weights.transition import Fetch, Map, Transition, Unmap


def plan_of(*slots: tuple[int, ...]) -> RemapPlan:
    return RemapPlan(tuple(tuple(UnitId(unit) for unit in members) for members in slots))


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(number) for number in numbers)


@st.composite
def plans(draw: st.DrawFn, count: int) -> RemapPlan:
    """Any plan of a model of ``count`` units, in any order of slots."""
    slots = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    groups = [tuple(u for u, slot in enumerate(slots) if slot == s) for s in (1, 2, 3)]
    return plan_of(*draw(st.permutations([members for members in groups if len(members) > 1])))


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """A consistent placement on shuffled pages, with any contents that can be."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=7)))
    plan = draw(plans(len(sizes)))
    numbers = iter(draw(st.permutations(range(plan.pages(sizes)))))

    def take(count: int) -> tuple[PageId, ...]:
        return tuple(PageId(next(numbers)) for _ in range(count))

    cycled = plan.cycled
    present = {UnitId(u) for u in range(len(sizes)) if u not in cycled and draw(st.booleans())}
    for members in plan:
        present.update(draw(st.lists(st.sampled_from(members), max_size=1)))
    return Placement(
        plan,
        sizes,
        tuple(() if u in cycled else take(size) for u, size in enumerate(sizes)),
        tuple(take(max(sizes[u] for u in members)) for members in plan),
        frozenset(present),
    )


def with_contents(placement: Placement, wanted: list[int]) -> Placement:
    """The placement after its slots have run on: slot ``s`` holds its member ``wanted[s]``."""
    resident = placement.present - placement.plan.cycled
    current = {
        members[wanted[slot % len(wanted)] % len(members)]
        for slot, members in enumerate(placement.plan)
    }
    return replace(placement, present=resident | current)


class SymbolicMachine:
    """Pages with contents and spans with mappings; refuses every step that a device would."""

    def __init__(self, placement: Placement) -> None:
        self.spans: dict[UnitId, list[PageId | None]] = {}
        self.bytes: dict[PageId, tuple[UnitId, int] | None] = {}
        """page -> (unit, place in its span) whose bytes it holds"""
        for index, size in enumerate(placement.sizes_pages):
            unit = UnitId(index)
            self.spans[unit] = [*placement.span(unit)] or [None] * size
        for unit in placement.present:
            self._write(unit)

    def run(self, transition: Transition, reserve: list[PageId]) -> None:
        available = {*transition.before.owners(), *reserve}
        for step in transition.steps:
            match step:
                case Unmap(unit, index, pages):
                    assert self.spans[unit][index : index + len(pages)] == list(pages)
                    self.spans[unit][index : index + len(pages)] = [None] * len(pages)
                case Map(unit, index, pages):
                    assert self.spans[unit][index : index + len(pages)] == [None] * len(pages)
                    assert available.issuperset(pages)
                    self.spans[unit][index : index + len(pages)] = pages
                    self._only_members_of_a_slot_share(transition.after)
                case Fetch(unit):
                    assert None not in self.spans[unit]
                    self._write(unit)

    def agrees_with(self, placement: Placement) -> None:
        for index, size in enumerate(placement.sizes_pages):
            unit = UnitId(index)
            expected = [*placement.span(unit)] or [None] * size
            assert self.spans[unit] == expected
            if unit in placement.present:
                assert [self.bytes.get(page) for page in placement.span(unit)] == [
                    (unit, place) for place in range(size)
                ]

    def _write(self, unit: UnitId) -> None:
        for place, page in enumerate(self.spans[unit]):
            assert page is not None
            self.bytes[page] = (unit, place)

    def _only_members_of_a_slot_share(self, after: Placement) -> None:
        users: dict[PageId, set[int | None]] = {}
        for unit, span in self.spans.items():
            for page in span:
                if page is not None:
                    slot = after.plan.slot_of(unit)
                    users.setdefault(page, set()).add(-1 - unit if slot is None else slot)
        assert all(len(owners) == 1 for owners in users.values())
