"""The host device against the contract, and what is its own: seals, limits, mappings, errors."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from device_contract import PAGES, PASSED, DeviceContract, DeviceMachine, clear, pages
from hypothesis.stateful import invariant

from mirage_core.errors import ConfigError, DeviceError, ProtocolError
from mirage_core.memory import host, libc
from mirage_core.memory.host import HostDevice, HostRange
from mirage_core.memory.limits import observe_max_mappings
from mirage_core.model import DeviceGeometry, DeviceId

DEVICE = DeviceId("HOST-of-a-test")
PAGE_BYTES = 16 << 10


def create(page_bytes: int = PAGE_BYTES, count: int = PAGES) -> HostDevice:
    return HostDevice.create(DeviceGeometry(DEVICE, page_bytes, count))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kernel_mappings(mapped: HostRange) -> int:
    """Mappings of this process that lie in the range, from the kernel."""
    start, end = mapped.base, mapped.base + mapped.pages * PAGE_BYTES
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
            if low < end and high > start:
                found.append((max(low, start), min(high, end)))
    assert all(left[1] == right[0] for left, right in pairwise([(0, start), *found, (end, 0)]))
    return len(found)


class HostMachine(DeviceMachine):
    @invariant()
    def kernel_agrees_on_the_mappings(self) -> None:
        for mapped in self.ranges:
            assert isinstance(mapped, HostRange)
            assert mapped.mappings == kernel_mappings(mapped)


class TestHostDevice(DeviceContract):
    machine = HostMachine

    @pytest.fixture
    def make_device(self) -> Callable[[], HostDevice]:
        return create

    @pytest.fixture
    def device(self) -> Iterator[HostDevice]:
        device = create()
        yield device
        device.close()

    @pytest.fixture
    def other_view(self, device: HostDevice) -> Callable[[], HostDevice]:
        return lambda: HostDevice.open(device.fd, DEVICE, PAGE_BYTES)

    def test_kernel_refusing_the_second_run_leaves_the_range_unmapped(
        self, device: HostDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mapped = device.reserve(4)
        mapped.map(0, pages(0))
        refuse_call(monkeypatch, "map_file_at", 2)
        with pytest.raises(DeviceError, match="Cannot allocate memory"):
            mapped.map(1, pages(5, 3, 4))
        monkeypatch.undo()
        assert [mapped.mapped(index) for index in range(4)] == [0, None, None, None]
        assert mapped.mappings == kernel_mappings(mapped) == 2
        mapped.map(1, pages(5, 3, 4))
        clear(mapped)
        mapped.close()

    @pytest.mark.parametrize("call", ["protect", "populate"])
    def test_kernel_refusing_access_leaves_access_as_it_was(
        self, device: HostDevice, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(0, 1))
        mapped.set_access(0, 1)
        refuse_call(monkeypatch, call, 1)
        with pytest.raises(DeviceError):
            mapped.set_access(0, 2)
        monkeypatch.undo()
        assert mapped.mappings == kernel_mappings(mapped) == 2
        mapped.zero(0, 1)
        clear(mapped)
        mapped.close()

    def test_kernel_refusing_to_unmap_leaves_the_pages_mapped(
        self, device: HostDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mapped = device.reserve(2)
        mapped.map(0, pages(0, 1))
        refuse_call(monkeypatch, "map_nothing_at", 1)
        with pytest.raises(DeviceError):
            mapped.unmap(0, 2, PASSED)
        monkeypatch.undo()
        assert [mapped.mapped(index) for index in range(2)] == [0, 1]
        clear(mapped)
        mapped.close()

    def test_mapping_stops_short_of_the_kernels_limit_and_unmapping_does_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host, "observe_max_mappings", lambda: 8)
        device = create()
        mapped = device.reserve(PAGES)
        mapped.map(0, pages(0, 1, 2, 3))
        mapped.map(4, pages(7, 6, 5))
        mapped.set_access(0, 1)
        assert device.mappings == 6
        with pytest.raises(DeviceError, match="max_map_count"):
            mapped.set_access(2, 1)
        with pytest.raises(DeviceError, match="max_map_count"):
            device.reserve(1)
        assert device.mappings == 6
        mapped.unmap(2, 1, PASSED)
        assert device.mappings == kernel_mappings(mapped) == 8
        clear(mapped)
        mapped.close()
        device.close()


def refuse_call(monkeypatch: pytest.MonkeyPatch, name: str, nth: int) -> None:
    """Make the nth call of a function of ``libc`` fail as the kernel does without memory."""
    real = getattr(libc, name)
    calls = 0

    def call(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(*arguments)

    monkeypatch.setattr(libc, name, call)


def test_consecutive_pages_at_consecutive_places_are_one_mapping() -> None:
    device = create(count=64)
    mapped = device.reserve(64)
    mapped.map(0, pages(*range(64)))
    mapped.set_access(0, 64)
    assert mapped.mappings == kernel_mappings(mapped) == 1
    clear(mapped)
    mapped.close()
    device.close()


def test_range_gives_all_its_addresses_back() -> None:
    device = create()
    with open("/proc/self/maps") as lines:
        before = len(lines.readlines())
    for _ in range(50):
        device.reserve(5).close()
    with open("/proc/self/maps") as lines:
        assert len(lines.readlines()) <= before + 2
    device.close()


def test_closing_views_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    device = create()
    view = HostDevice.open(device.fd, DEVICE, PAGE_BYTES)
    view.close()
    view.close()
    device.close()
    assert open_descriptors() == before


@pytest.mark.parametrize("page_bytes", [0, 1024, 3 * 4096, -4096])
def test_page_size_that_is_no_power_of_two_is_the_operators_error(page_bytes: int) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        create(page_bytes=page_bytes)


def test_device_without_pages_is_the_operators_error() -> None:
    with pytest.raises(ConfigError):
        create(count=0)


def test_device_larger_than_the_machine_is_refused_before_it_is_made() -> None:
    before = open_descriptors()
    with pytest.raises(ConfigError, match="configure at most"):
        create(page_bytes=2 << 20, count=1 << 30)
    assert open_descriptors() == before


@pytest.mark.parametrize("call", ["map_file", "allocate"])
def test_kernel_giving_out_while_allocating_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = open_descriptors()
    refuse_call(monkeypatch, call, 1)
    with pytest.raises(DeviceError, match="configure a smaller one"):
        create()
    assert open_descriptors() == before


def test_memory_file_cannot_be_resized_by_anyone() -> None:
    device = create()
    for size_bytes in (0, PAGE_BYTES * PAGES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(device.fd, size_bytes)
    device.close()


def test_device_is_allocated_when_it_is_made() -> None:
    device = create(count=64)
    assert os.fstat(device.fd).st_blocks * 512 >= PAGE_BYTES * 64
    device.close()


def test_descriptor_of_another_kind_is_a_protocol_error() -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(ProtocolError, match="no memory file"):
        HostDevice.open(read_end, DEVICE, PAGE_BYTES)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(
    ("seals", "size_bytes"),
    [
        (0, PAGE_BYTES),
        (libc.F_SEAL_SHRINK | libc.F_SEAL_SEAL, PAGE_BYTES),
        (libc.F_SEAL_SHRINK | libc.F_SEAL_GROW, PAGE_BYTES),
        (0xF, PAGE_BYTES),
        (0x7, PAGE_BYTES + 4096),
        (0x7, 0),
    ],
)
def test_memory_file_that_breaks_the_protocol_is_refused(seals: int, size_bytes: int) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ProtocolError):
        HostDevice.open(fd, DEVICE, PAGE_BYTES)
    os.close(fd)


def test_kernel_that_cannot_populate_is_served_by_touching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for advice in ("_MADV_POPULATE_READ", "_MADV_POPULATE_WRITE"):
        monkeypatch.setattr(libc, advice, 0x7FFF)
    device = create()
    mapped = device.reserve(PAGES)
    mapped.map(0, pages(*range(PAGES)))
    mapped.set_access(0, PAGES)
    assert mapped.is_zero(0, PAGES)
    clear(mapped)
    mapped.close()
    device.close()


def test_limit_on_mappings_is_read_from_the_kernel() -> None:
    with open("/proc/sys/vm/max_map_count") as file:
        assert observe_max_mappings() == int(file.read())
