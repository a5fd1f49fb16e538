"""The weight store: one model's units and static part on a device, under a changing remap plan.

    places   | span of unit 0 | span of unit 1 | ... | static part |
             one range, reserved once: addresses never change, only pages and contents do

Life: ``start`` puts the model on the device, ``apply`` changes the plan, ``close`` takes it off.
All of them run at a step boundary, on the one thread that maps.  Each first plans (``transition``),
then unmaps and maps; the page table and the placement follow only after the device has done it
all, and the fetcher after them.  When the kernel refuses halfway, the steps done are undone and the
answer is Refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

from mirage_core.errors import DeviceError, MisuseError, OwnershipError, TransferError
from mirage_core.memory.outcome import Refused
from mirage_core.memory.raw import UNSHARED, RawDevice, poison
from mirage_core.memory.table import RESERVE, STATIC, PageTable
from mirage_core.model import PageId, RemapPlan, UnitId
from mirage_core.ports import Fence
from mirage_core.weights.fetcher import Fetcher
from mirage_core.weights.host_copy import checksum
from mirage_core.weights.layout import WeightLayout
from mirage_core.weights.placement import Placement
from mirage_core.weights.transition import (
    Fetch,
    Map,
    Step,
    Transition,
    Unmap,
    missing_pages,
    plan_release,
    plan_transition,
)


class WeightStore:
    """Owner of a model's weight pages in one engine.

    ``poison`` (debug mode) fills pages that change hands, so that whoever reads them shows.
    """

    def __init__(
        self,
        device: RawDevice,
        layout: WeightLayout,
        table: PageTable,
        *,
        poison: bool = False,
    ) -> None:
        if layout.page_bytes != device.geometry.page_bytes:
            raise MisuseError(
                f"layout for pages of {layout.page_bytes} bytes on a device with pages of "
                f"{device.geometry.page_bytes} bytes"
            )
        self._device = device
        self._layout = layout
        self._table = table
        self._poison = poison
        self._range = device.reserve(layout.places + layout.static.pages)
        self._placement = Placement.nowhere(layout.unit_pages)
        self._fetcher: Fetcher | None = None

    @property
    def layout(self) -> WeightLayout:
        return self._layout

    @property
    def placement(self) -> Placement:
        """Where the units are, and which were present when the plan last changed."""
        return self._placement

    @property
    def plan(self) -> RemapPlan:
        return self._placement.plan

    def unit_buffer(self, unit: UnitId) -> ctypes.Array[ctypes.c_ubyte]:
        """The addresses of a unit, constant for the store's life (see ``RawRange.buffer``)."""
        first = self._layout.first_places[unit] * self._layout.page_bytes
        return self._range.buffer(first, self._layout.parts[unit].size_bytes)

    def static_buffer(self) -> ctypes.Array[ctypes.c_ubyte]:
        """The addresses of the static part."""
        first = self._layout.places * self._layout.page_bytes
        return self._range.buffer(first, self._layout.static.size_bytes)

    def start(self, plan: RemapPlan, fetcher: Fetcher) -> Transition | Refused:
        """Put the model on the device under ``plan`` and let ``fetcher``, idle so far, fetch it.

        The static part gets pages too; its bytes are the caller's to write.  Refused, with nothing
        changed, if the pages do not suffice or the kernel refuses.
        """
        if self._fetcher is not None:
            raise MisuseError("the store has started")
        static_pages = self._layout.static.pages
        missing = missing_pages(self._placement, plan, self._table.reserve_pages - static_pages)
        if missing > 0:
            return Refused(f"the model needs {missing} pages more than the reserve has")
        static = self._table.choose(static_pages)
        try:
            self._map(self._layout.places, static)
        except DeviceError as error:
            return Refused(str(error))
        self._table.move(static, RESERVE, STATIC)
        outcome = self._perform(self._plan(self._placement, plan), UNSHARED)
        if isinstance(outcome, Refused):
            self._take_off_static(UNSHARED)
            return outcome
        self._fetcher = fetcher
        self._set_going(outcome, fetcher)
        return outcome

    def apply(self, plan: RemapPlan) -> Transition | Refused:
        """Change to ``plan``; pages that are freed go to the table's reserve, others come from it.

        The units that the transition fetches are under way when it returns.  Refused, with nothing
        changed, if the pages do not suffice, work is in flight or the kernel refuses.  DeviceError
        if the kernel refuses to undo, too: then the engine must not run.
        """
        fetcher = self._started()
        fence = fetcher.drain()
        before = self._observed(fetcher)
        outcome = self._perform(self._plan(before, plan), fence)
        if isinstance(outcome, Refused):
            fetcher.configure(before.plan, before.present)
            return outcome
        self._set_going(outcome, fetcher)
        return outcome

    def verify(self, checksums: Sequence[bytes]) -> None:
        """Raise TransferError unless each unit that is present has its checksum (DESIGN §8.3).

        ``checksums``, by UnitId, are the host copy's.  Reads all bytes: about 1 s a GB.
        """
        fetcher = self._started()
        fetcher.drain()
        present = self._observed(fetcher).present
        for unit in sorted(present):
            if checksum(self.unit_buffer(unit)) != checksums[unit]:
                name = self._layout.parts[unit].name
                raise TransferError(f"the bytes of unit {name} differ from its host copy")
        fetcher.configure(self.plan, present)

    def close(self) -> Refused | None:
        """Take the model off the device; its pages go to the reserve and its addresses back."""
        if self._fetcher is not None:
            fence = self._fetcher.drain()
            before = self._observed(self._fetcher)
            outcome = self._perform(plan_release(before), fence)
            if isinstance(outcome, Refused):
                self._fetcher.configure(before.plan, before.present)
                return outcome
            self._take_off_static(fence)
            self._fetcher = None
        self._range.close()
        return None

    def check(self) -> None:
        """Raise OwnershipError unless device, table and placement agree (DESIGN §8.1)."""
        self._table.check()
        self._placement.check()
        for page, owner in self._placement.owners().items():
            if self._table.owner(page) != owner:
                raise OwnershipError(f"page {page}: {owner} here, {self._table.owner(page)} there")
        for unit, first in enumerate(self._layout.first_places):
            size = self._layout.unit_pages[unit]
            mapped = [self._range.mapped(first + place) for place in range(size)]
            expected: list[PageId | None] = [*self._placement.span(UnitId(unit))]
            if mapped != (expected or [None] * size):
                raise OwnershipError(f"unit {unit} maps {mapped}")

    def _started(self) -> Fetcher:
        if self._fetcher is None:
            raise MisuseError("the store has not started")
        return self._fetcher

    def _observed(self, fetcher: Fetcher) -> Placement:
        """The placement with what the drained fetcher says is present."""
        return replace(self._placement, present=frozenset(fetcher.present()))

    def _plan(self, before: Placement, plan: RemapPlan) -> Transition | Refused:
        return plan_transition(before, plan, self._table.pages(RESERVE))

    def _perform(self, transition: Transition | Refused, fence: Fence) -> Transition | Refused:
        """Do the unmapping and mapping, then the books; undo all if the kernel refuses a step."""
        if isinstance(transition, Refused):
            return transition
        if not fence.passed():
            return Refused("work in flight touches the units")
        done: list[Step] = []
        try:
            for step in transition.steps:
                self._do(step, fence)
                done.append(step)
        except DeviceError as error:
            for step in reversed(done):
                self._do(_inverse(step), fence)
            return Refused(str(error))
        before, after = transition.before.owners(), transition.after.owners()
        self._table.reassign(
            {
                page: (before.get(page, RESERVE), after.get(page, RESERVE))
                for page in before.keys() | after.keys()
            }
        )
        still_present = transition.after.present & transition.before.present
        self._placement = replace(transition.after, present=still_present)
        return transition

    def _set_going(self, transition: Transition, fetcher: Fetcher) -> None:
        if self._poison:
            poison(self._device, transition.changed_pages)
        fetcher.configure(self.plan, self._placement.present)

    def _do(self, step: Step, fence: Fence) -> None:
        match step:
            case Unmap(unit, index, pages):
                self._range.unmap(self._layout.first_places[unit] + index, len(pages), fence)
            case Map(unit, index, pages):
                self._map(self._layout.first_places[unit] + index, pages)
            case Fetch():
                pass  # the fetcher's, after the books: fetching cannot be undone

    def _map(self, place: int, pages: Sequence[PageId]) -> None:
        """Map pages with access, or nothing."""
        if not pages:
            return
        self._range.map(place, pages)
        try:
            self._range.set_access(place, len(pages))
        except DeviceError:
            self._range.unmap(place, len(pages), UNSHARED)
            raise

    def _take_off_static(self, fence: Fence) -> None:
        pages = self._table.pages(STATIC)
        if pages:
            self._range.unmap(self._layout.places, len(pages), fence)
            self._table.move(pages, STATIC, RESERVE)


def _inverse(step: Step) -> Step:
    match step:
        case Unmap(unit, index, pages):
            return Map(unit, index, pages)
        case Map(unit, index, pages):
            return Unmap(unit, index, pages)
        case Fetch():
            return step
