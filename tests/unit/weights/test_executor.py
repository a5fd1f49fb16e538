"""The weight store on a real host device: pages move, bytes are right, failures change nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of, plans

from mirage_core.errors import DeviceError, MisuseError, TransferError
from mirage_core.memory.host import HostDevice, HostRange
from mirage_core.memory.outcome import Refused
from mirage_core.memory.table import RESERVE, STATIC, PageTable
from mirage_core.model import RESIDENT, DeviceGeometry, DeviceId, PageId, RemapPlan, UnitId
from mirage_core.weights.executor import WeightStore
from mirage_core.weights.host_copy import HostCopy, HostCopyWriter
from mirage_core.weights.layout import Tensor, lay_out
from mirage_core.weights.transition import Transition

PAGE_BYTES = 4096
SIZES_BYTES = (5000, 3000, 9000, 5000, 4096)
"""2, 1, 3, 2 and 1 pages"""
STATIC_BYTES = 4097
DEVICE_PAGES = 14

LAYOUT = lay_out(
    PAGE_BYTES,
    [(f"{u}", [Tensor(f"{u}.w", "uint8", (n,), n)]) for u, n in enumerate(SIZES_BYTES)],
    [Tensor("embedding", "uint8", (STATIC_BYTES,), STATIC_BYTES)],
)
UNITS = [UnitId(unit) for unit in range(len(SIZES_BYTES))]


class FenceOf:
    def __init__(self, passed: bool) -> None:
        self._passed = passed

    def passed(self) -> bool:
        return self._passed


class CopyingFetcher:
    """A fetcher without threads; ``run_step`` plays a step of the model."""

    def __init__(self, copy: HostCopy) -> None:
        self.copy = copy
        self.store: WeightStore | None = None
        self.plan = RESIDENT
        self.landed: set[UnitId] = set()
        self.running = False
        self.fence_passed = True
        self.fetched: list[UnitId] = []
        self.link_is_up = True

    def drain(self) -> FenceOf:
        self.running = False
        return FenceOf(self.fence_passed)

    def present(self) -> frozenset[UnitId]:
        assert not self.running
        return frozenset(self.landed)

    def configure(self, plan: RemapPlan, present: Set[UnitId]) -> None:
        assert not self.running
        self.plan, self.landed, self.running = plan, set(present), True
        for unit in UNITS:
            if unit not in plan.cycled and unit not in present and self.link_is_up:
                self.bring(unit)

    def bring(self, unit: UnitId) -> None:
        assert self.store is not None
        target, source = self.store.unit_buffer(unit), self.copy.buffer(unit)
        ctypes.memmove(target, source, len(source))
        self.fetched.append(unit)
        slot = self.plan.slot_of(unit)
        if slot is not None:
            self.landed.difference_update(self.plan.slots[slot])
        self.landed.add(unit)

    def run_step(self) -> None:
        """Each unit's bytes are there, and right, when it runs."""
        assert self.store is not None
        assert self.running
        for unit in UNITS:
            if unit not in self.landed:
                assert unit in self.plan.cycled
                self.bring(unit)
            assert bytes(self.store.unit_buffer(unit)) == bytes(self.copy.buffer(unit))


class Engine:
    """A store with its device, table and fetcher; ``close`` checks that nothing is left."""

    def __init__(self, copy: HostCopy) -> None:
        geometry = DeviceGeometry(DeviceId("HOST-test"), PAGE_BYTES, DEVICE_PAGES)
        self.device = HostDevice.create(geometry)
        self.table = PageTable()
        self.table.receive([PageId(page) for page in range(DEVICE_PAGES)])
        self.fetcher = CopyingFetcher(copy)
        self.store = WeightStore(self.device, LAYOUT, self.table, poison=True)
        self.fetcher.store = self.store

    def start(self, plan: RemapPlan = RESIDENT) -> None:
        assert isinstance(self.store.start(plan, self.fetcher), Transition)
        static = self.store.static_buffer()
        static[:] = b"\x77" * STATIC_BYTES
        self.check()

    def check(self) -> None:
        self.store.check()
        pages = self.table.holdings().all()
        assert sorted(pages) == list(range(DEVICE_PAGES))

    def close(self) -> None:
        assert self.store.close() is None
        self.table.check()
        assert self.table.reserve_pages == DEVICE_PAGES
        self.device.close()


@pytest.fixture(scope="module")
def copy() -> Iterator[HostCopy]:
    writer = HostCopyWriter(LAYOUT)
    for unit in UNITS:
        view = writer.buffer(unit)
        view[:] = bytes((unit * 37 + place) % 251 for place in range(len(view)))
    copy = writer.seal()
    yield copy
    copy.close()


@pytest.fixture
def engine(copy: HostCopy) -> Iterator[Engine]:
    engine = Engine(copy)
    yield engine
    engine.close()


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


def test_started_model_has_its_bytes_and_its_pages(engine: Engine) -> None:
    engine.start()
    assert engine.table.reserve_pages == DEVICE_PAGES - 9 - 2
    assert len(engine.table.pages(STATIC)) == 2
    engine.fetcher.run_step()
    engine.store.verify(engine.fetcher.copy.checksums)
    engine.check()


def test_model_may_start_with_lent_units(engine: Engine) -> None:
    engine.start(plan_of((0, 2, 3)))
    engine.fetcher.run_step()
    engine.fetcher.run_step()
    engine.check()


def test_lending_frees_pages_and_reverting_takes_them_back(engine: Engine) -> None:
    engine.start()
    engine.fetcher.run_step()
    engine.fetcher.fetched.clear()
    lent = engine.store.apply(plan_of((0, 3), (1, 4)))
    assert isinstance(lent, Transition)
    assert lent.freed_pages == 3
    assert engine.fetcher.fetched == []
    engine.check()
    engine.fetcher.run_step()
    engine.fetcher.run_step()
    engine.store.verify(engine.fetcher.copy.checksums)
    back = engine.store.apply(RESIDENT)
    assert isinstance(back, Transition)
    assert len(back.fetched) == 2
    engine.fetcher.run_step()
    engine.check()


def test_addresses_never_change(engine: Engine) -> None:
    engine.start()
    before = [ctypes.addressof(engine.store.unit_buffer(unit)) for unit in UNITS]
    engine.store.apply(plan_of((0, 1, 2, 3, 4)))
    assert [ctypes.addressof(engine.store.unit_buffer(unit)) for unit in UNITS] == before
    engine.check()


def test_static_part_is_untouched_by_any_plan(engine: Engine) -> None:
    engine.start()
    static_pages = engine.table.pages(STATIC)
    engine.store.apply(plan_of((0, 1, 2, 3, 4)))
    engine.store.apply(RESIDENT)
    assert bytes(engine.store.static_buffer()) == b"\x77" * STATIC_BYTES
    assert engine.table.pages(STATIC) == static_pages
    engine.check()


def test_freed_pages_are_poisoned_in_debug_mode(engine: Engine) -> None:
    engine.start()
    lent = engine.store.apply(plan_of((0, 3)))
    assert isinstance(lent, Transition)
    freed = lent.before.owners().keys() - lent.after.owners().keys()
    view = engine.device.reserve(len(freed))
    view.map(0, sorted(freed))
    view.set_access(0, len(freed))
    assert set(view.buffer(0, len(freed) * PAGE_BYTES)) == {0xFF}
    view.unmap(0, len(freed), FenceOf(True))
    view.close()
    engine.check()


def test_start_without_enough_pages_is_refused_and_takes_none(engine: Engine) -> None:
    engine.table.give_back([PageId(page) for page in range(4)])
    refused = engine.store.start(RESIDENT, engine.fetcher)
    assert isinstance(refused, Refused)
    assert "1 pages more" in refused.reason
    assert engine.table.reserve_pages == DEVICE_PAGES - 4
    engine.store.check()
    engine.table.receive([PageId(page) for page in range(4)])
    engine.start()


def test_reverting_without_enough_pages_is_refused_and_the_model_runs_on(engine: Engine) -> None:
    engine.start(plan_of((0, 3)))
    gone = engine.table.pages(RESERVE)[:-1]
    engine.table.give_back(gone)
    before = engine.store.placement
    assert isinstance(engine.store.apply(RESIDENT), Refused)
    assert engine.store.placement == before
    engine.fetcher.run_step()
    engine.table.receive(gone)
    engine.check()


def test_work_in_flight_refuses_a_change(engine: Engine) -> None:
    engine.start()
    engine.fetcher.fence_passed = False
    assert isinstance(engine.store.apply(plan_of((0, 3))), Refused)
    assert isinstance(engine.store.close(), Refused)
    assert engine.store.plan == RESIDENT
    engine.fetcher.run_step()
    engine.fetcher.fence_passed = True
    engine.check()


@pytest.mark.parametrize("call", ["unmap", "map", "set_access"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_refusal_of_the_kernel_is_undone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    engine.start(plan_of((0, 1), (2, 3)))
    engine.fetcher.run_step()
    before = engine.store.placement
    fail_nth(monkeypatch, call, nth)
    outcome = engine.store.apply(plan_of((1, 3), (2, 4)))
    monkeypatch.undo()
    assert isinstance(outcome, Refused)
    assert engine.store.placement == before
    engine.fetcher.run_step()
    engine.store.verify(engine.fetcher.copy.checksums)
    engine.check()
    assert isinstance(engine.store.apply(plan_of((1, 3), (2, 4))), Transition)
    engine.fetcher.run_step()
    engine.check()


@pytest.mark.parametrize("call", ["map", "set_access"])
@pytest.mark.parametrize("nth", [1, 2])
def test_refusal_of_the_kernel_at_start_leaves_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    fail_nth(monkeypatch, call, nth)
    assert isinstance(engine.store.start(RESIDENT, engine.fetcher), Refused)
    monkeypatch.undo()
    assert engine.table.reserve_pages == DEVICE_PAGES
    engine.check()
    engine.start()


def test_unit_that_never_came_is_fetched_by_the_next_change(engine: Engine) -> None:
    engine.start(plan_of((0, 3)))
    engine.fetcher.run_step()
    engine.fetcher.link_is_up = False
    back = engine.store.apply(RESIDENT)
    assert isinstance(back, Transition)
    assert back.fetched == (0,)
    engine.fetcher.link_is_up = True
    again = engine.store.apply(RESIDENT)
    assert isinstance(again, Transition)
    assert again.steps == back.steps[-1:]
    engine.fetcher.run_step()
    engine.check()


def test_wrong_bytes_are_found_on_demand(engine: Engine) -> None:
    engine.start()
    engine.store.unit_buffer(UNITS[2])[8] ^= 1
    with pytest.raises(TransferError, match="unit 2"):
        engine.store.verify(engine.fetcher.copy.checksums)
    engine.check()


def test_store_is_started_before_it_changes_and_only_once(copy: HostCopy) -> None:
    engine = Engine(copy)
    with pytest.raises(MisuseError):
        engine.store.apply(RESIDENT)
    engine.start()
    with pytest.raises(MisuseError):
        engine.store.start(RESIDENT, engine.fetcher)
    engine.close()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_chain_of_plans_runs_on_the_right_bytes(copy: HostCopy, data: st.DataObject) -> None:
    engine = Engine(copy)
    engine.start(data.draw(plans(len(UNITS))))
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, 2))):
            engine.fetcher.run_step()
        assert isinstance(engine.store.apply(data.draw(plans(len(UNITS)))), Transition)
        engine.check()
        engine.store.verify(engine.fetcher.copy.checksums)
    engine.fetcher.run_step()
    engine.close()
