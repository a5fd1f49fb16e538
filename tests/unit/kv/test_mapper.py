"""The worker's side of a pool on a real host device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import DeviceError, MisuseError
from mirage_core.kv.geometry import PoolGeometry
from mirage_core.kv.mapper import Mapped, PoolMapper, Unmapped
from mirage_core.memory.host import HostDevice, HostRange
from mirage_core.memory.outcome import Refused
from mirage_core.memory.raw import poison
from mirage_core.memory.table import PageTable, granule_owner
from mirage_core.model import DeviceGeometry, DeviceId, GranuleId, PageId

PAGE_BYTES = 4096
GEOMETRY = PoolGeometry.compact(layers=3, block_bytes=2048, page_bytes=PAGE_BYTES, blocks=10)
"""five granules of two blocks, a page in each of three layers"""
DEVICE_PAGES = 12


class FenceOf:
    def __init__(self, passed: bool) -> None:
        self._passed = passed

    def passed(self) -> bool:
        return self._passed


PASSED = FenceOf(True)


@dataclass
class Worker:
    device: HostDevice
    pool: HostRange
    table: PageTable
    mapper: PoolMapper

    @classmethod
    def new(cls) -> Worker:
        """All pages are in the reserve, poisoned by whoever had them."""
        device = HostDevice.create(DeviceGeometry(DeviceId("HOST-test"), PAGE_BYTES, DEVICE_PAGES))
        everything = [PageId(page) for page in range(DEVICE_PAGES)]
        poison(device, everything)
        table = PageTable()
        table.receive(everything)
        pool = device.reserve(GEOMETRY.places)
        return cls(device, pool, table, PoolMapper(pool, GEOMETRY, table, poison=True))

    def mapped(self) -> list[GranuleId]:
        every = [GranuleId(granule) for granule in range(GEOMETRY.granules)]
        return [granule for granule in every if self.table.pages(granule_owner(granule))]

    def is_zero(self, granule: int) -> bool:
        runs = GEOMETRY.places_of(GranuleId(granule))
        return all(self.pool.is_zero(run.index, run.count) for run in runs)

    def check(self) -> None:
        self.table.check()
        self.mapper.check()
        assert sorted(self.table.holdings().all()) == list(range(DEVICE_PAGES))

    def close(self) -> None:
        self.check()
        if self.mapped():
            assert isinstance(self.mapper.unmap(self.mapped(), PASSED), Unmapped)
        self.pool.close()
        self.device.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker.new()
    yield worker
    worker.close()


def granules(*numbers: int) -> tuple[GranuleId, ...]:
    return tuple(GranuleId(number) for number in numbers)


def fail_nth(monkeypatch: pytest.MonkeyPatch, name: str, *nths: int) -> None:
    """Let the device refuse the nth calls of a range's method, from here on."""
    real: Callable[..., object] = getattr(HostRange, name)
    calls = 0

    def call(mapped: HostRange, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls in nths:
            raise DeviceError("the kernel refuses")
        return real(mapped, *arguments)

    monkeypatch.setattr(HostRange, name, call)


def test_granule_that_enters_the_pool_is_zero(worker: Worker) -> None:
    assert worker.mapper.map(granules(0, 2)) == Mapped(granules(0, 2))
    assert worker.is_zero(0)
    assert worker.is_zero(2)
    assert worker.table.reserve_pages == DEVICE_PAGES - 6


def test_granule_that_comes_back_is_zero_again(worker: Worker) -> None:
    worker.mapper.map(granules(1))
    for run in GEOMETRY.places_of(GranuleId(1)):
        worker.pool.fill(run.index, run.count, 0x33)
    outcome = worker.mapper.unmap(granules(1), PASSED)
    assert isinstance(outcome, Unmapped)
    assert len(outcome.pages) == GEOMETRY.granule_pages
    worker.mapper.map(granules(4, 3, 1))
    assert all(worker.is_zero(granule) for granule in (1, 3, 4))


def test_neighbours_are_untouched(worker: Worker) -> None:
    worker.mapper.map(granules(1))
    for run in GEOMETRY.places_of(GranuleId(1)):
        worker.pool.fill(run.index, run.count, 0x33)
    worker.mapper.map(granules(0, 2))
    worker.mapper.unmap(granules(0), PASSED)
    for run in GEOMETRY.places_of(GranuleId(1)):
        assert set(worker.pool.buffer(run.index * PAGE_BYTES, PAGE_BYTES)) == {0x33}


def test_reserve_that_is_too_small_refuses_all_granules(worker: Worker) -> None:
    outcome = worker.mapper.map(granules(0, 1, 2, 3, 4))
    assert isinstance(outcome, Refused)
    assert "15 pages needed" in outcome.reason
    assert worker.table.reserve_pages == DEVICE_PAGES


def test_work_in_flight_refuses_to_unmap(worker: Worker) -> None:
    worker.mapper.map(granules(0))
    assert isinstance(worker.mapper.unmap(granules(0), FenceOf(False)), Refused)
    assert worker.mapped() == [0]
    assert worker.is_zero(0)


@pytest.mark.parametrize("call", ["map", "set_access", "zero"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_refusal_of_the_kernel_while_mapping_is_undone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    worker.mapper.map(granules(1))
    fail_nth(monkeypatch, call, nth)
    assert isinstance(worker.mapper.map(granules(0, 3)), Refused)
    monkeypatch.undo()
    assert worker.mapped() == [1]
    worker.check()
    assert isinstance(worker.mapper.map(granules(0, 3)), Mapped)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_refusal_of_the_kernel_while_unmapping_is_undone_and_leaves_no_poison(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    worker.mapper.map(granules(0, 2))
    fail_nth(monkeypatch, "unmap", nth)
    assert isinstance(worker.mapper.unmap(granules(2), PASSED), Refused)
    monkeypatch.undo()
    assert worker.mapped() == [0, 2]
    assert worker.is_zero(2)


def test_kernel_that_refuses_to_undo_is_an_error(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.mapper.map(granules(0))
    with monkeypatch.context() as broken:
        fail_nth(broken, "unmap", 2)
        fail_nth(broken, "map", 1)
        with pytest.raises(DeviceError, match="again failed"):
            worker.mapper.unmap(granules(0), PASSED)
    place = GEOMETRY.places_of(GranuleId(0))[0].index
    left = {worker.pool.mapped(run.index) for run in GEOMETRY.places_of(GranuleId(0))}
    gone = set(worker.table.pages(granule_owner(GranuleId(0)))) - left
    worker.pool.map(place, sorted(gone))
    worker.pool.set_access(place, 1)


@pytest.mark.parametrize("wrong", [(), (0, 0), (1,), (0, 1), (5,), (-1,)])
def test_unmapping_what_is_not_mapped_is_misuse(worker: Worker, wrong: tuple[int, ...]) -> None:
    worker.mapper.map(granules(0))
    with pytest.raises(MisuseError):
        worker.mapper.unmap(granules(*wrong), PASSED)
    assert worker.mapped() == [0]


@pytest.mark.parametrize("wrong", [(), (1, 1), (0,), (1, 0), (5,), (-1,)])
def test_mapping_what_is_mapped_is_misuse(worker: Worker, wrong: tuple[int, ...]) -> None:
    worker.mapper.map(granules(0))
    with pytest.raises(MisuseError):
        worker.mapper.map(granules(*wrong))
    assert worker.mapped() == [0]


def test_range_smaller_than_the_pool_is_misuse(worker: Worker) -> None:
    small = worker.device.reserve(GEOMETRY.places - 1)
    with pytest.raises(MisuseError):
        PoolMapper(small, GEOMETRY, worker.table)
    small.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 4), min_size=1)), max_size=8))
def test_any_order_of_granules_keeps_every_page(changes: list[tuple[bool, set[int]]]) -> None:
    worker = Worker.new()
    for growing, numbers in changes:
        mapped = set(worker.mapped())
        wanted = granules(*sorted(numbers - mapped if growing else numbers & mapped))
        if not wanted:
            continue
        fits = len(wanted) * GEOMETRY.granule_pages <= worker.table.reserve_pages
        outcome = worker.mapper.map(wanted) if growing else worker.mapper.unmap(wanted, PASSED)
        assert isinstance(outcome, Refused) == (growing and not fits)
        if isinstance(outcome, Mapped):
            assert all(worker.is_zero(granule) for granule in wanted)
        worker.check()
    worker.close()
