"""What every device must do, whatever its memory is made of (DESIGN §4).

An implementation subclasses ``DeviceContract`` and provides the fixtures ``device`` (a RawDevice
of ``PAGES`` pages) and ``other_view`` (a function: a second view of the same device, opened the
way another process opens it).  Touching memory that is not accessible kills a process, so those
tests look at how a forked child ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from mirage_core.errors import MisuseError
from mirage_core.memory.raw import RawDevice, RawRange
from mirage_core.model import PageId

PAGES = 8


class FenceOf:
    """A fence that says what the test wants."""

    def __init__(self, passed: bool) -> None:
        self._passed = passed

    def passed(self) -> bool:
        return self._passed


PASSED = FenceOf(True)
NOT_PASSED = FenceOf(False)


def pages(*numbers: int) -> list[PageId]:
    return [PageId(number) for number in numbers]


def clear(mapped: RawRange) -> None:
    """Unmap all that is mapped, so that range and device can be closed."""
    for index in range(mapped.pages):
        if mapped.mapped(index) is not None:
            mapped.unmap(index, 1, PASSED)


def first_byte(mapped: RawRange, page_bytes: int, index: int) -> int:
    return mapped.buffer(index * page_bytes, 1)[0]


def signal_that_ends(act: Callable[[], object]) -> int:
    """Run ``act`` in a forked child; the signal that killed it, or 0."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


class DeviceContract:
    machine: type[DeviceMachine]
    """DeviceMachine, or a subclass that checks more."""

    def test_range_starts_at_a_whole_page_and_is_unmapped(self, device: RawDevice) -> None:
        reserved = device.reserve(3)
        assert reserved.base % device.geometry.page_bytes == 0
        assert reserved.pages == 3
        assert [reserved.mapped(index) for index in range(3)] == [None, None, None]
        reserved.close()

    def test_fresh_memory_is_zero(self, device: RawDevice) -> None:
        mapped = device.reserve(PAGES)
        mapped.map(0, pages(*range(PAGES)))
        mapped.set_access(0, PAGES)
        assert mapped.is_zero(0, PAGES)
        clear(mapped)
        mapped.close()

    def test_touching_a_place_that_is_not_mapped_faults(self, device: RawDevice) -> None:
        reserved = device.reserve(1)
        view = reserved.buffer(0, 1)
        assert signal_that_ends(lambda: view[0]) == signal.SIGSEGV
        reserved.close()

    def test_touching_a_mapped_page_before_set_access_faults(self, device: RawDevice) -> None:
        mapped = device.reserve(1)
        mapped.map(0, pages(0))
        view = mapped.buffer(0, 1)
        assert signal_that_ends(lambda: view[0]) == signal.SIGSEGV
        mapped.set_access(0, 1)
        assert signal_that_ends(lambda: view[0]) == 0
        clear(mapped)
        mapped.close()

    def test_touching_a_place_after_unmap_faults(self, device: RawDevice) -> None:
        mapped = device.reserve(1)
        mapped.map(0, pages(0))
        mapped.set_access(0, 1)
        view = mapped.buffer(0, 1)
        mapped.unmap(0, 1, PASSED)
        assert signal_that_ends(lambda: view[0]) == signal.SIGSEGV
        mapped.close()

    def test_caller_cannot_write_or_look_before_set_access(self, device: RawDevice) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(0, 1))
        mapped.set_access(0, 1)
        for act in (
            lambda: mapped.fill(0, 2, 7),
            lambda: mapped.zero(1, 1),
            lambda: mapped.is_zero(0, 2),
        ):
            with pytest.raises(MisuseError):
                act()
        assert mapped.is_zero(0, 1)
        clear(mapped)
        mapped.close()

    def test_places_that_alias_a_page_see_the_same_bytes(self, device: RawDevice) -> None:
        left, right = device.reserve(2), device.reserve(1)
        left.map(0, pages(5, 5))
        left.set_access(0, 2)
        right.map(0, pages(5))
        right.set_access(0, 1)
        left.fill(1, 1, 0xA5)
        page_bytes = device.geometry.page_bytes
        assert first_byte(left, page_bytes, 0) == 0xA5
        assert first_byte(right, page_bytes, 0) == 0xA5
        left.unmap(0, 2, PASSED)
        assert first_byte(right, page_bytes, 0) == 0xA5
        clear(right)
        left.close()
        right.close()

    def test_page_keeps_its_bytes_while_nothing_maps_it(self, device: RawDevice) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(3))
        mapped.set_access(0, 1)
        mapped.fill(0, 1, 0x5A)
        assert mapped.unmap(0, 1, PASSED) == (3,)
        mapped.map(1, pages(3))
        mapped.set_access(1, 1)
        assert first_byte(mapped, device.geometry.page_bytes, 1) == 0x5A
        clear(mapped)
        mapped.close()

    def test_filling_a_place_leaves_its_neighbours_alone(self, device: RawDevice) -> None:
        mapped = device.reserve(3)
        mapped.map(0, pages(2, 1, 0))
        mapped.set_access(0, 3)
        mapped.fill(1, 1, 0xFF)
        assert mapped.is_zero(0, 1)
        assert not mapped.is_zero(1, 1)
        assert mapped.is_zero(2, 1)
        last = mapped.buffer(2 * device.geometry.page_bytes - 1, 1)
        assert last[0] == 0xFF
        mapped.zero(1, 1)
        assert mapped.is_zero(0, 3)
        clear(mapped)
        mapped.close()

    def test_mapped_place_is_not_mapped_again(self, device: RawDevice) -> None:
        mapped = device.reserve(3)
        mapped.map(1, pages(1))
        with pytest.raises(MisuseError):
            mapped.map(0, pages(2, 3))
        assert [mapped.mapped(index) for index in range(3)] == [None, 1, None]
        clear(mapped)
        mapped.close()

    def test_unmapped_place_is_not_unmapped(self, device: RawDevice) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(1))
        with pytest.raises(MisuseError):
            mapped.unmap(0, 2, PASSED)
        assert mapped.mapped(0) == 1
        clear(mapped)
        mapped.close()

    def test_access_to_an_unmapped_place_is_refused(self, device: RawDevice) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(1))
        with pytest.raises(MisuseError):
            mapped.set_access(0, 2)
        clear(mapped)
        mapped.close()

    def test_unmap_waits_for_its_fence(self, device: RawDevice) -> None:
        mapped = device.reserve(1)
        mapped.map(0, pages(4))
        mapped.set_access(0, 1)
        mapped.fill(0, 1, 1)
        with pytest.raises(MisuseError):
            mapped.unmap(0, 1, NOT_PASSED)
        assert mapped.mapped(0) == 4
        assert first_byte(mapped, device.geometry.page_bytes, 0) == 1
        clear(mapped)
        mapped.close()

    @pytest.mark.parametrize(("index", "count"), [(-1, 1), (0, 0), (0, 4), (3, 1), (2, 2)])
    def test_places_outside_the_range_are_refused(
        self, device: RawDevice, index: int, count: int
    ) -> None:
        mapped = device.reserve(3)
        mapped.map(0, pages(0, 1, 2))
        for act in (
            lambda: mapped.map(index, pages(*range(count))),
            lambda: mapped.set_access(index, count),
            lambda: mapped.unmap(index, count, PASSED),
            lambda: mapped.zero(index, count),
        ):
            with pytest.raises(MisuseError):
                act()
        assert [mapped.mapped(place) for place in range(3)] == [0, 1, 2]
        clear(mapped)
        mapped.close()

    @pytest.mark.parametrize("page", [-1, PAGES])
    def test_page_outside_the_device_is_refused(self, device: RawDevice, page: int) -> None:
        mapped = device.reserve(2)
        with pytest.raises(MisuseError):
            mapped.map(0, pages(0, page))
        assert mapped.mapped(0) is None
        mapped.close()

    def test_range_with_a_mapped_place_is_not_closed(self, device: RawDevice) -> None:
        mapped = device.reserve(2)
        mapped.map(1, pages(0))
        with pytest.raises(MisuseError):
            mapped.close()
        clear(mapped)
        mapped.close()
        with pytest.raises(MisuseError):
            mapped.map(0, pages(0))

    def test_device_with_an_open_range_is_not_closed(self, device: RawDevice) -> None:
        reserved = device.reserve(1)
        with pytest.raises(MisuseError):
            device.close()
        reserved.close()
        device.close()
        with pytest.raises(MisuseError):
            device.reserve(1)

    def test_buffer_outside_the_range_is_refused(self, device: RawDevice) -> None:
        reserved = device.reserve(1)
        page_bytes = device.geometry.page_bytes
        assert len(reserved.buffer(0, page_bytes)) == page_bytes
        assert ctypes.addressof(reserved.buffer(8, 1)) == reserved.base + 8
        for offset_bytes, size_bytes in ((-1, 1), (0, page_bytes + 1), (page_bytes, 1), (0, -1)):
            with pytest.raises(MisuseError):
                reserved.buffer(offset_bytes, size_bytes)
        reserved.close()

    def test_second_view_has_the_same_geometry_and_bytes(
        self, device: RawDevice, other_view: Callable[[], RawDevice]
    ) -> None:
        mine, other = device.reserve(1), other_view()
        assert other.geometry == device.geometry
        theirs = other.reserve(1)
        for mapped in (mine, theirs):
            mapped.map(0, pages(6))
            mapped.set_access(0, 1)
        theirs.fill(0, 1, 0x11)
        assert first_byte(mine, device.geometry.page_bytes, 0) == 0x11
        for mapped in (mine, theirs):
            clear(mapped)
            mapped.close()
        other.close()

    def test_another_process_writes_into_a_page(
        self, device: RawDevice, other_view: Callable[[], RawDevice]
    ) -> None:
        def write() -> None:
            theirs = other_view().reserve(1)
            theirs.map(0, pages(7))
            theirs.set_access(0, 1)
            theirs.fill(0, 1, 0x42)

        assert signal_that_ends(write) == 0
        mine = device.reserve(1)
        mine.map(0, pages(7))
        mine.set_access(0, 1)
        assert first_byte(mine, device.geometry.page_bytes, 0) == 0x42
        clear(mine)
        mine.close()

    def test_any_order_of_operations_agrees_with_a_model(
        self, make_device: Callable[[], RawDevice]
    ) -> None:
        run_machine(
            lambda: self.machine(make_device()),
            settings=settings(
                max_examples=10,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


class DeviceMachine(RuleBasedStateMachine):
    """Two ranges over one device against plain lists; bytes are checked through every place."""

    places = 6

    def __init__(self, device: RawDevice) -> None:
        super().__init__()
        self.device = device
        self.ranges = [self.device.reserve(self.places) for _ in range(2)]
        self.mapped: list[list[int | None]] = [[None] * self.places for _ in self.ranges]
        self.access = [[False] * self.places for _ in self.ranges]
        self.bytes = [0] * PAGES

    spans = st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, 6))

    @rule(span=spans, first=st.integers(0, PAGES - 1), stride=st.integers(0, 2))
    def map(self, span: tuple[int, int, int], first: int, stride: int) -> None:
        which, index, count = span
        wanted = [(first + stride * step) % PAGES for step in range(count)]
        end = index + count
        if end > self.places or any(p is not None for p in self.mapped[which][index:end]):
            with pytest.raises(MisuseError):
                self.ranges[which].map(index, pages(*wanted))
            return
        self.ranges[which].map(index, pages(*wanted))
        self.mapped[which][index:end] = wanted
        self.access[which][index:end] = [False] * count

    @rule(span=spans)
    def set_access(self, span: tuple[int, int, int]) -> None:
        which, index, count = span
        end = index + count
        if end > self.places or None in self.mapped[which][index:end]:
            with pytest.raises(MisuseError):
                self.ranges[which].set_access(index, count)
            return
        self.ranges[which].set_access(index, count)
        self.access[which][index:end] = [True] * count

    @rule(span=spans)
    def unmap(self, span: tuple[int, int, int]) -> None:
        which, index, count = span
        end = index + count
        if end > self.places or None in self.mapped[which][index:end]:
            with pytest.raises(MisuseError):
                self.ranges[which].unmap(index, count, PASSED)
            return
        expected = tuple(self.mapped[which][index:end])
        assert self.ranges[which].unmap(index, count, PASSED) == expected
        self.mapped[which][index:end] = [None] * count
        self.access[which][index:end] = [False] * count

    @precondition(lambda self: any(True in access for access in self.access))
    @rule(byte=st.integers(0, 255), data=st.data())
    def fill(self, byte: int, data: st.DataObject) -> None:
        open_places = [
            (which, index)
            for which, access in enumerate(self.access)
            for index in range(self.places)
            if access[index]
        ]
        which, index = data.draw(st.sampled_from(open_places))
        self.ranges[which].fill(index, 1, byte)
        page = self.mapped[which][index]
        assert page is not None
        self.bytes[page] = byte

    @invariant()
    def every_place_shows_its_page(self) -> None:
        page_bytes = self.device.geometry.page_bytes
        for mapped, expected, access in zip(self.ranges, self.mapped, self.access, strict=True):
            for index, page in enumerate(expected):
                assert mapped.mapped(index) == page
                if page is not None and access[index]:
                    assert first_byte(mapped, page_bytes, index) == self.bytes[page]

    def teardown(self) -> None:
        for mapped in self.ranges:
            clear(mapped)
            mapped.close()
        self.device.close()
