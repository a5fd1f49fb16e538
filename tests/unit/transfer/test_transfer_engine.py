"""The transfer engine over real aliased pages: a unit never runs with bytes other than its own."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core import native
from mirage_core.errors import MisuseError, TransferError
from mirage_core.memory.host import HostDevice
from mirage_core.model import DeviceGeometry, DeviceId, PageId, UnitId
from mirage_core.transfer import TransferEngine, UnitSpan

PAGE_BYTES = 4096
native.load()


class NothingInFlight:
    def passed(self) -> bool:
        return True


class Model:
    """Units of patterned host copies, each with its own span of places in one range.

    ``adopt`` maps the pages of a plan: a resident unit has its own, a slot's units share.
    """

    def __init__(self, engine: TransferEngine, unit_pages: Sequence[int]) -> None:
        self.engine = engine
        self.unit_pages = unit_pages
        total = sum(unit_pages)
        self.device = HostDevice.create(
            DeviceGeometry(DeviceId("HOST-test"), PAGE_BYTES, pages=total)
        )
        self.range = self.device.reserve(total)
        self.places = [sum(unit_pages[:unit]) for unit in range(len(unit_pages))]
        # Sizes that are no multiple of anything, so that a copy's tail is checked too.
        self.host = [
            ctypes.create_string_buffer(bytes([unit + 1]) * (pages * PAGE_BYTES - 3), size)
            for unit, pages in enumerate(unit_pages)
            if (size := pages * PAGE_BYTES - 3)
        ]
        self.slots: list[list[UnitId]] = []
        self._map()
        self.engine.register_units(
            [
                UnitSpan(self.address(unit), ctypes.addressof(copy), len(copy))
                for unit, copy in enumerate(self.host)
            ]
        )
        self.adopt([])

    def address(self, unit: int) -> int:
        return self.range.base + self.places[unit] * PAGE_BYTES

    def device_bytes(self, unit: int) -> bytes:
        return ctypes.string_at(self.address(unit), len(self.host[unit]))

    def host_bytes(self, unit: int) -> bytes:
        return self.host[unit].raw

    def adopt(self, slots: list[list[UnitId]]) -> None:
        """Change plans at a step boundary: nothing is taken to have stayed where it was."""
        self.engine.drain()
        self._unmap()
        self.slots = slots
        self._map()
        self.range.fill(0, self.range.pages, 0xFF)
        self.engine.set_slots(slots, landed=())

    def run_step(self, broken_off_at: int | None = None) -> None:
        x = torch.empty(1)
        for unit in range(len(self.unit_pages)):
            if unit == broken_off_at:
                return
            torch.ops.mirage.unit_wait(x, unit)
            assert self.device_bytes(unit) == self.host_bytes(unit)
            torch.ops.mirage.unit_done(x, unit)

    def check_invariants(self) -> None:
        self.engine.drain()
        assert self.engine.mismatched_units() == ()
        landed = self.engine.landed_units()
        for unit in landed:
            assert self.device_bytes(unit) == self.host_bytes(unit)
        for members in self.slots:
            assert len(landed.intersection(members)) <= 1

    def close(self) -> None:
        self.engine.drain()
        self._unmap()
        self.range.close()
        self.device.close()

    def _map(self) -> None:
        first_page = 0
        units = {UnitId(unit) for unit in range(len(self.unit_pages))}
        groups = self.slots + [[unit] for unit in units.difference(*self.slots)]
        for members in groups:
            for unit in members:
                pages = [PageId(first_page + i) for i in range(self.unit_pages[unit])]
                self.range.map(self.places[unit], pages)
            first_page += max(self.unit_pages[unit] for unit in members)
        self.range.set_access(0, self.range.pages)

    def _unmap(self) -> None:
        self.range.unmap(0, self.range.pages, NothingInFlight())


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(verify=True) as engine:
        yield engine


@pytest.fixture
def model(engine: TransferEngine) -> Iterator[Model]:
    model = Model(engine, unit_pages=[3, 1, 2, 1, 3, 2])
    yield model
    model.check_invariants()
    model.close()


def slots_of(units: int) -> st.SearchStrategy[list[list[UnitId]]]:
    """Any plan: each unit is resident (None) or in one of three slots."""

    def grouped(choice: list[int | None]) -> list[list[UnitId]]:
        groups = [[UnitId(u) for u, s in enumerate(choice) if s == slot] for slot in range(3)]
        return [members for members in groups if len(members) >= 2]

    slot = st.sampled_from([None, 0, 1, 2])
    return st.lists(slot, min_size=units, max_size=units).map(grouped)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_unit_never_runs_with_bytes_other_than_its_host_copy(data: st.DataObject) -> None:
    unit_pages = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=8))
    with TransferEngine() as engine:
        model = Model(engine, unit_pages)
        for _ in range(data.draw(st.integers(1, 3))):
            model.adopt(data.draw(slots_of(len(unit_pages))))
            for _ in range(data.draw(st.integers(1, 3))):
                model.run_step()
            if data.draw(st.booleans()):
                model.run_step(broken_off_at=data.draw(st.integers(0, len(unit_pages))))
                model.run_step()
            model.check_invariants()
        model.close()


def test_resident_units_are_not_fetched_again_by_running(model: Model) -> None:
    model.engine.drain()
    before = model.engine.stats().fetches
    model.run_step()
    assert model.engine.stats().fetches == before


def test_unit_that_has_landed_is_not_fetched_by_a_new_plan(model: Model) -> None:
    model.engine.drain()
    before = model.engine.stats().fetches
    everything = [UnitId(unit) for unit in range(6)]
    model.engine.set_slots([], landed=everything)
    model.engine.drain()
    assert model.engine.stats().fetches == before


def test_each_step_fetches_every_cycled_unit_once(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(2), UnitId(5)], [UnitId(1), UnitId(3)]])
    model.engine.drain()
    before = model.engine.stats()
    for _ in range(4):
        model.run_step()
    model.engine.drain()
    after = model.engine.stats()
    cycled = (0, 2, 5, 1, 3)
    assert after.fetches - before.fetches == 4 * len(cycled)
    assert after.fetched_bytes - before.fetched_bytes == 4 * sum(
        len(model.host[unit]) for unit in cycled
    )
    assert all(after.units[unit].transfer_mean_s > 0 for unit in cycled)
    assert after.units[4].compute_mean_s > 0
    assert after.step_compute_mean_s > 0


def test_after_a_step_each_slot_holds_its_first_unit(model: Model) -> None:
    model.adopt([[UnitId(1), UnitId(2), UnitId(4)]])
    model.run_step()
    model.engine.drain()
    assert model.engine.landed_units() == {0, 1, 3, 5}


def test_step_that_was_broken_off_is_followed_by_right_bytes(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(2), UnitId(4)], [UnitId(3), UnitId(5)]])
    model.run_step(broken_off_at=3)
    model.run_step()


def test_wait_counts_a_stall_only_when_the_unit_has_not_landed(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(2)]])
    model.engine.drain()
    before = model.engine.stats().stalls
    x = torch.empty(1)
    torch.ops.mirage.unit_wait(x, 0)
    assert model.engine.stats().stalls == before
    model.engine.set_bandwidth_limit(1e6)
    torch.ops.mirage.unit_done(x, 0)
    torch.ops.mirage.unit_wait(x, 2)
    after = model.engine.stats()
    assert after.stalls == before + 1
    assert after.stall_s > 0


def test_limited_link_is_never_faster_than_its_limit(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(2), UnitId(5)], [UnitId(1), UnitId(3)]])
    model.engine.drain()
    limit = 4e6
    model.engine.set_bandwidth_limit(limit)
    before = model.engine.stats()
    began = time.monotonic()
    for _ in range(2):
        model.run_step()
    model.engine.drain()
    elapsed_s = time.monotonic() - began
    after = model.engine.stats()
    least_s = (after.fetched_bytes - before.fetched_bytes) / limit
    assert elapsed_s >= least_s
    assert after.busy_s - before.busy_s >= least_s * (1 - 1e-6)
    for unit in (0, 1, 2, 3, 5):
        size_bytes = len(model.host[unit])
        assert after.units[unit].transfer_last_s >= size_bytes / limit * (1 - 1e-6)


@pytest.mark.parametrize("break_copies", ["debug_fail_copies", "debug_corrupt_copies"])
def test_copy_that_fails_is_made_again(model: Model, break_copies: str) -> None:
    getattr(model.engine, break_copies)(2)
    model.adopt([[UnitId(0), UnitId(3)]])
    model.run_step()
    stats = model.engine.stats()
    assert stats.retries == 2
    assert stats.failures == 0


def test_unit_whose_copies_all_fail_raises_and_can_be_fetched_later(model: Model) -> None:
    model.adopt([[UnitId(1), UnitId(4)]])
    model.engine.drain()
    x = torch.empty(1)
    torch.ops.mirage.unit_wait(x, 1)
    model.engine.debug_corrupt_copies(3)
    torch.ops.mirage.unit_done(x, 1)
    for _ in range(2):  # a failure stays one until the unit is asked for again
        with pytest.raises(TransferError, match="unit 4 cannot be fetched: none of 3 copies"):
            torch.ops.mirage.unit_wait(x, 4)
    assert model.engine.stats().failures == 1
    assert 4 not in model.engine.landed_units()
    model.engine.fetch_now(UnitId(4))
    torch.ops.mirage.unit_wait(x, 4)
    assert model.device_bytes(4) == model.host_bytes(4)
    torch.ops.mirage.unit_done(x, 4)


def test_corrupt_unit_is_named_by_the_audit() -> None:
    with TransferEngine(verify=False) as engine:
        model = Model(engine, [2, 1, 1])
        engine.drain()
        engine.debug_corrupt_copies(1)
        engine.fetch_now(UnitId(1))
        engine.drain()
        assert engine.mismatched_units() == (1,)
        model.close()


def test_fetch_takes_the_slot_from_the_unit_that_had_it(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(3), UnitId(5)]])
    model.engine.fetch_now(UnitId(3))
    model.engine.fetch_now(UnitId(5))
    model.engine.fetch_now(UnitId(3))
    model.engine.drain()
    assert model.engine.landed_units() == {1, 2, 3, 4}
    model.run_step()


def test_fetch_into_the_slot_of_a_running_unit_is_refused(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(3)]])
    x = torch.empty(1)
    torch.ops.mirage.unit_wait(x, 0)
    with pytest.raises(MisuseError, match="unit 0 still runs"):
        model.engine.fetch_now(UnitId(3))
    with pytest.raises(MisuseError, match="unit 0 still runs"):
        torch.ops.mirage.unit_wait(x, 3)
    torch.ops.mirage.unit_done(x, 0)


def test_unit_that_is_done_before_it_began_is_refused(model: Model) -> None:
    model.adopt([[UnitId(0), UnitId(3)]])
    with pytest.raises(MisuseError, match="unit 0 is done, but it had not begun"):
        torch.ops.mirage.unit_done(torch.empty(1), 0)


@pytest.mark.parametrize(
    ("slots", "landed", "message"),
    [
        ([[0]], [], "two or more units"),
        ([[2, 1]], [], "must ascend"),
        ([[0, 1], [1, 2]], [], "in two slots"),
        ([[0, 6]], [], "unit 6 is not registered"),
        ([[0, 1]], [0, 1], "cannot both have landed"),
        ([], [-1], "unit -1 is not registered"),
    ],
)
def test_slots_that_contradict_themselves_are_refused(
    model: Model, slots: list[list[UnitId]], landed: list[UnitId], message: str
) -> None:
    model.engine.drain()
    before = model.engine.landed_units()
    with pytest.raises(MisuseError, match=message):
        model.engine.set_slots(slots, landed)
    assert model.engine.landed_units() == before


def test_slots_cannot_change_while_a_fetch_is_under_way(model: Model) -> None:
    model.engine.drain()
    model.engine.set_bandwidth_limit(1e5)
    model.engine.fetch_now(UnitId(0))
    with pytest.raises(MisuseError, match="drain first"):
        model.engine.set_slots([], landed=[])


def test_process_has_one_engine_at_a_time(engine: TransferEngine) -> None:
    with pytest.raises(MisuseError, match="close it first"):
        TransferEngine()
    engine.close()
    TransferEngine().close()


def test_units_are_resident_without_an_engine() -> None:
    x = torch.empty(1)
    torch.ops.mirage.unit_wait(x, 3)
    torch.ops.mirage.unit_done(x, 3)


def test_closing_ends_a_wait_with_an_error() -> None:
    engine = TransferEngine()
    model = Model(engine, [1, 1])
    engine.drain()
    engine.set_bandwidth_limit(1.0)  # an hour for a page
    engine.fetch_now(UnitId(0))
    engine.fetch_now(UnitId(1))
    closer = threading.Thread(target=engine.close)
    closer.start()
    with pytest.raises(TransferError, match=r"unit 1 cannot be fetched: .* closed"):
        torch.ops.mirage.unit_wait(torch.empty(1), 1)
    closer.join()
    model.close()


def test_refused_placement_leaves_no_engine_behind() -> None:
    with pytest.raises(MisuseError, match="CPUs were refused"):
        TransferEngine(cpus=[1023])
    TransferEngine(cpus=[0], nice=1).close()
