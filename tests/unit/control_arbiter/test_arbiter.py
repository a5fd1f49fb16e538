"""The arbiter's decisions, one situation at a time, with engines that obey."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from simulated_engine import SimulatedDevice, SimulatedEngine

from mirage_core.control.arbiter import MIN_RETRY_S, TAKE_PATIENCE_S
from mirage_core.control.arbiter_events import Explain, Linked, Received, Send, Tick
from mirage_core.control.device_books import ANSWER_PATIENCE_S
from mirage_core.errors import OwnershipError, ProtocolError
from mirage_core.model import RESIDENT, EngineId, ModelName, OperationId, PageId, RemapPlan, UnitId
from mirage_core.policy.settings import Policy
from mirage_core.wire import messages as m

Make = Callable[..., SimulatedEngine]


@pytest.fixture
def devices() -> Iterator[list[SimulatedDevice]]:
    made: list[SimulatedDevice] = []
    yield made
    for device in made:
        device.check()


@pytest.fixture
def device(devices: list[SimulatedDevice]) -> SimulatedDevice:
    devices.append(SimulatedDevice(100))
    return devices[0]


def engine(name: str, priority: int = 0, units: int = 10, **changes: object) -> SimulatedEngine:
    """2 static pages, units of 3 pages, granules of 2, pool of 1 granule at first."""
    obstinate = bool(changes.pop("obstinate", False))
    fields: dict[str, object] = {
        "priority": priority,
        "unit_pages": (3,) * units,
        "static_pages": 2,
        "granule_pages": 2,
        "pool_max_granules": 40,
        "pool_min_granules": 1,
        **changes,
    }
    description = m.Describe(**fields)  # type: ignore[arg-type]
    return SimulatedEngine(EngineId(name), description, obstinate=obstinate)


def started(device: SimulatedDevice, *engines: SimulatedEngine) -> None:
    for one in engines:
        assert device.start(one), one.denied
    device.settle()


def busy_ask(device: SimulatedDevice, asker: SimulatedEngine, granules: int) -> None:
    """The engine's pool is full of live blocks, and it asks."""
    asker.active = True
    asker.live_granules = asker.pool_granules
    device.say(asker, asker.report())
    device.say(asker, asker.ask(granules))


# ---- asks


def test_free_pages_are_granted_at_once(device: SimulatedDevice) -> None:
    a = engine("a")
    started(device, a)
    busy_ask(device, a, 5)
    device.settle()
    assert a.pool_granules == 6


def test_idle_model_lends_its_units_and_the_borrower_maps_them(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    free = device.arbiter.free_pages
    busy_ask(device, a, free // 2 + 6)
    device.settle()
    assert a.granted == a.start_pages + free + 12
    assert b.plan != RESIDENT
    assert not a.denied
    assert device.arbiter.counters.remaps == 1


def test_spare_pool_pages_go_before_units(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, b, device.arbiter.free_pages // 2)
    device.settle()
    b.active, b.live_granules = False, 0
    device.say(b, b.report())
    assert device.arbiter.free_pages == 0
    busy_ask(device, a, 4)
    device.settle()
    assert a.pool_granules == 5
    assert b.plan == RESIDENT
    assert device.arbiter.counters.shrinks >= 1


def test_elastic_pools_never_move_weights(devices: list[SimulatedDevice]) -> None:
    device = SimulatedDevice(100, Policy(weights_move=False))
    devices.append(device)
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, 40)
    device.settle()
    assert a.denied
    assert b.plan == a.plan == RESIDENT
    assert device.arbiter.free_pages == 0, "what there was, it got"
    assert a.limits.lend_most_pages == 0, "nor does it move its own when it starves"


def test_ask_that_cannot_be_met_ends_in_denied_with_a_reason(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b", pinned=True)
    started(device, a, b)
    busy_ask(device, a, 40)
    device.settle()
    assert "pinned" in a.denied[-1].reason
    assert device.arbiter.summary(device.now_s).engines[0].waiting_pages == 0


def test_pages_on_their_way_are_not_asked_for_twice(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    free = device.arbiter.free_pages
    busy_ask(device, a, free // 2 + 3)
    for _ in range(5):
        device.tick(0.1)
        device.say(a, a.report())
    asked = [x for x in b.arrived if isinstance(x, m.Shrink | m.ApplyPlan)]
    assert len(asked) == 1
    device.settle()


def test_later_ask_replaces_the_earlier(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    free = device.arbiter.free_pages
    busy_ask(device, a, free // 2 + 3)
    device.say(a, a.ask(3))
    device.settle()
    assert not a.denied
    assert a.granted == a.start_pages + free + 6


def test_more_important_ask_is_served_first(device: SimulatedDevice) -> None:
    low, high = engine("low", units=8), engine("high", priority=5, units=8)
    donor = engine("donor", units=6)
    started(device, low, high, donor)
    busy_ask(device, low, device.arbiter.free_pages // 2 + 3)
    busy_ask(device, high, 3)
    had = high.granted
    # The donor's answer brings no more than six pages.
    device.read(donor)
    device.settle()
    assert high.granted == had + 6


def test_borrower_that_dies_leaves_the_pages_free_for_lenders(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 6)
    device.settle()
    assert b.plan != RESIDENT
    device.die(a)
    device.settle()
    assert b.plan == RESIDENT
    assert device.arbiter.counters.reversions >= 1


def test_donor_that_dies_leaves_its_pages_with_the_borrower(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    free = device.arbiter.free_pages
    busy_ask(device, a, free // 2 + 6)
    device.settle()
    device.die(b)
    device.settle()
    assert len(a.pages) == a.start_pages + free + 12
    assert len(a.pages) + device.arbiter.free_pages == 100


def test_borrower_that_dies_while_pages_come_takes_nothing_with_it(
    device: SimulatedDevice,
) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 6)
    device.die(a)
    device.settle()
    assert len(b.pages) + device.arbiter.free_pages == 100
    assert b.plan == RESIDENT


def test_lender_that_becomes_active_is_restored_before_asks_are_served(
    device: SimulatedDevice,
) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 9)
    device.settle()
    lent = b.plan
    assert lent != RESIDENT
    # a's load ends, b's begins; a's pages are spare now.
    a.active, a.live_granules = False, 0
    b.active, b.compute_s = True, 0.0001
    device.say(a, a.report())
    device.say(b, b.report())
    device.settle()
    assert b.plan == RESIDENT


def test_nothing_is_reverted_while_the_borrower_uses_it(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 6)
    device.settle()
    lent = b.plan
    a.live_granules = a.pool_granules
    for _ in range(10):
        device.tick(1.0)
        device.say(a, a.report())
        device.say(b, b.report())
        device.settle()
    assert b.plan == lent


def test_idle_borrower_that_says_nothing_more_gives_back_after_the_hold(
    device: SimulatedDevice,
) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 6)
    device.settle()
    a.active, a.live_granules = False, 0
    device.say(a, a.report())
    device.settle()
    assert b.plan != RESIDENT
    for _ in range(30):
        device.tick(0.1)
        device.settle()
    assert b.plan == RESIDENT


def test_silent_engine_without_a_link_is_asked_for_nothing(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    device.lose_link(b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 3)
    device.settle()
    assert a.denied
    device.rejoin(b)
    device.settle()


def test_without_reversion_lent_pages_stay_lent(devices: list[SimulatedDevice]) -> None:
    device = SimulatedDevice(100, Policy(reversion=None))
    devices.append(device)
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 6)
    device.settle()
    lent = b.plan
    device.die(a)
    for _ in range(5):
        device.tick(10.0)
        device.settle()
    assert b.plan == lent


def test_refused_operation_is_retried_later_not_at_once(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b", obstinate=True)
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 3)
    device.settle()
    assert a.denied
    assert device.arbiter.counters.refusals == 1
    busy_ask(device, a, 3)
    device.settle()
    assert device.arbiter.counters.refusals == 1
    b.obstinate = False
    device.tick(MIN_RETRY_S)
    busy_ask(device, a, 3)
    device.settle()
    assert b.plan != RESIDENT


def test_silent_donor_does_not_keep_an_ask_waiting_for_ever(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 3)
    while a.arrived:
        device.read(a)
    assert not a.denied
    device.tick(ANSWER_PATIENCE_S + 1)
    device.read(a)
    assert a.denied
    device.settle()


def test_decisions_are_explained(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    a.active = True
    device.say(a, a.report())
    actions = device.handle(Received(a.name, a.ask(device.arbiter.free_pages // 2 + 3)))
    explained = [x for x in actions if isinstance(x, Explain)]
    assert [x.engine for x in explained] == [a.name]
    assert any(reason.rule == "units" for reason in explained[0].decision.reasons)
    device.settle()


# ---- starting


def test_engine_too_large_for_the_device_is_denied_with_the_missing_pages(
    device: SimulatedDevice,
) -> None:
    a, big = engine("a"), engine("big", units=40)
    started(device, a)
    assert not device.start(big)
    assert "too small" in big.denied[0].reason
    assert " more than its 100 pages leave" in big.denied[0].reason


def test_starting_engine_takes_from_idle_ones(device: SimulatedDevice) -> None:
    a, b, c = engine("a"), engine("b"), engine("c")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2)
    device.settle()
    a.active, a.live_granules = False, 0
    device.say(a, a.report())
    started(device, c)
    assert len(c.pages) == c.start_pages


def test_starting_engine_is_denied_when_pools_are_in_use(device: SimulatedDevice) -> None:
    a, b, c = engine("a"), engine("b"), engine("c")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2)
    busy_ask(device, b, 1)
    device.settle()
    assert not device.start(c)
    assert "missing" in c.denied[0].reason


def test_take_is_all_or_nothing(device: SimulatedDevice) -> None:
    a = engine("a")
    device.engines[a.name] = a
    device.handle(Linked(a.name, ModelName("model-a"), m.Role.WORKER))
    device.say(a, m.Take(7, 101))
    device.settle()
    assert a.denied
    assert device.arbiter.free_pages == 100


def test_late_take_is_denied_rather_than_waited_for(device: SimulatedDevice) -> None:
    a, c = engine("a", units=25), engine("c", units=6)
    started(device, a)
    device.engines[c.name] = c
    device.handle(Linked(c.name, ModelName("model-c"), m.Role.WORKER))
    device.say(c, m.Take(1, c.start_pages + 2))
    assert not c.arrived, "waits for a's units"
    device.tick(TAKE_PATIENCE_S + 1)
    assert isinstance(c.arrived[-1], m.Denied)
    device.settle()


# ---- limits


def test_limits_say_what_an_engine_could_ever_get(device: SimulatedDevice) -> None:
    a = engine("a", pool_max_granules=1000)
    started(device, a)
    assert a.limits is not None
    alone = a.limits.pool_limit_pages
    # Less the static part and one slot, for its times are not measured yet; whole granules of 2.
    assert alone == 100 - 2 - 3 - 1
    b = engine("b", pinned=True)
    started(device, b)
    assert a.limits.pool_limit_pages == alone - b.start_pages
    device.die(b)
    device.settle()
    assert a.limits.pool_limit_pages == alone


def test_allowance_follows_measured_times(device: SimulatedDevice) -> None:
    a = engine("a")
    started(device, a)
    assert a.limits is not None
    assert a.limits.allowance_pages == 0, "what was not measured is not taken as free"
    half_measured = replace(a.report(), unit_compute_s=(0.1,) * 10, unit_transfer_s=(0.0,) * 10)
    device.say(a, half_measured)
    device.settle()
    assert a.limits.allowance_pages == 0
    a.compute_s = 0.1
    device.say(a, a.report())
    device.settle()
    assert a.limits.allowance_pages > 0


# ---- restarts and lost links


def test_restarted_agent_grants_nothing_until_all_have_rejoined(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    device.restart_agent()
    device.rejoin(a)
    device.say(a, a.ask(1))
    device.settle()
    assert "waits for b" in a.denied[-1].reason
    device.rejoin(b)
    device.say(a, a.ask(1))
    device.settle()
    assert a.pool_granules == 2


def test_restarted_agent_goes_on_once_the_missing_engine_is_dead(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    device.restart_agent()
    device.rejoin(a)
    device.die(b)
    assert device.arbiter.free_pages == 100 - len(a.pages)


def test_overlapping_holdings_are_refused_and_change_nothing(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    device.restart_agent()
    device.rejoin(a)
    honest = list(b.pages)
    b.pages[0] = a.pages[0]
    free = device.arbiter.free_pages
    with pytest.raises(OwnershipError):
        device.rejoin(b)
    assert device.arbiter.free_pages == free
    assert device.arbiter.awaited == {b.name}
    b.pages = honest
    device.rejoin(b)
    assert not device.arbiter.awaited


def test_grant_lost_with_the_link_is_free_again_after_rejoin(device: SimulatedDevice) -> None:
    a = engine("a")
    started(device, a)
    busy_ask(device, a, 5)
    free = device.arbiter.free_pages
    device.lose_link(a)
    device.rejoin(a)
    assert device.arbiter.free_pages == free + 10


def test_answer_to_an_operation_from_before_a_lost_link_returns_its_pages(
    device: SimulatedDevice,
) -> None:
    a = engine("a")
    started(device, a)
    device.lose_link(a)
    device.rejoin(a)
    free = device.arbiter.free_pages
    device.say(a, m.Done(OperationId(999), (a.pages.pop(),), RESIDENT, 1))
    assert device.arbiter.free_pages == free + 1


# ---- engines at fault


def test_engine_that_must_rejoin_may_say_nothing_else(device: SimulatedDevice) -> None:
    a = engine("a")
    started(device, a)
    device.lose_link(a)
    with pytest.raises(ProtocolError, match="rejoin"):
        device.say(a, m.Ask(9, 1))
    device.rejoin(a)
    with pytest.raises(ProtocolError, match="out of place"):
        device.say(a, m.Rejoin(None, a.holdings()))  # type: ignore[arg-type]


def test_pages_of_another_engine_cannot_be_given_back(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    with pytest.raises(OwnershipError):
        device.say(a, m.GiveBack((b.pages[0],)))
    with pytest.raises(OwnershipError):
        device.say(a, m.Done(OperationId(1), (b.pages[0],), RESIDENT, 1))
    with pytest.raises(OwnershipError):
        device.say(a, m.Refused(OperationId(1), "no", (PageId(99),)))


def test_operation_of_another_engine_cannot_be_answered(device: SimulatedDevice) -> None:
    a, b = engine("a"), engine("b")
    started(device, a, b)
    busy_ask(device, a, device.arbiter.free_pages // 2 + 3)
    operation = next(x for x in b.arrived if isinstance(x, m.ApplyPlan)).operation
    with pytest.raises(ProtocolError, match="another's"):
        device.say(a, m.Refused(operation, "no"))
    device.settle()


def test_plan_over_units_that_do_not_exist_is_refused(device: SimulatedDevice) -> None:
    a = engine("a")
    started(device, a)
    plan = RemapPlan(((UnitId(8), UnitId(10)),))
    with pytest.raises(ProtocolError, match="names unit 10"):
        device.say(a, m.Report(1, active=False, pool_granules=1, plan=plan))
    with pytest.raises(ProtocolError, match="3 times for 10 units"):
        device.say(a, m.Report(1, active=False, pool_granules=1, unit_compute_s=(1.0,) * 3))


def test_ask_or_report_before_describe_is_refused(device: SimulatedDevice) -> None:
    a = engine("a")
    device.engines[a.name] = a
    device.handle(Linked(a.name, ModelName("model-a"), m.Role.WORKER))
    device.handle(Linked(a.name, ModelName("model-a"), m.Role.SCHEDULER))
    for message in (m.Ask(1, 1), m.Report(1, active=True, pool_granules=0)):
        with pytest.raises(ProtocolError, match="described"):
            device.say(a, message)


def test_same_events_give_the_same_actions() -> None:
    def run() -> list[object]:
        device = SimulatedDevice(100)
        a, b = engine("a"), engine("b")
        started(device, a, b)
        heard: list[object] = []
        a.active = True
        heard.extend(device.handle(Received(a.name, a.report())))
        heard.extend(device.handle(Received(a.name, a.ask(30))))
        heard.extend(device.handle(Tick()))
        return [x for x in heard if isinstance(x, Send)]

    assert run() == run()
