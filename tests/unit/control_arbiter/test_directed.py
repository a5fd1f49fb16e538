"""What the cluster controller directs changes what the arbiter decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated_engine import SimulatedDevice, SimulatedEngine

from mirage_core.cluster_model import (
    DirectDevice,
    DirectiveBody,
    DirectLending,
    DirectModel,
    DirectPlacement,
    Effect,
    Sharing,
    Turn,
)
from mirage_core.control.arbiter_events import Action, Directed, Event, Explain, Received, Send
from mirage_core.control.directed import Directions, ModelDirection, directions_of
from mirage_core.model import RESIDENT, EngineId, ModelName, RemapPlan, UnitId
from mirage_core.policy.decision import ApplyPlan
from mirage_core.wire import messages as m

PAGE_BYTES = 1000


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    device = SimulatedDevice(100)
    yield device
    device.check()


def engine(name: str, priority: int = 0, pinned: bool = False) -> SimulatedEngine:
    """2 static pages, 10 units of 3 pages, granules of 2, pool of 1 granule at first."""
    description = m.Describe(
        priority=priority,
        unit_pages=(3,) * 10,
        static_pages=2,
        granule_pages=2,
        pool_max_granules=40,
        pool_min_granules=1,
        pinned=pinned,
    )
    return SimulatedEngine(EngineId(name), description)


def model(one: SimulatedEngine) -> ModelName:
    return ModelName(f"model-{one.name}")


def direct(device: SimulatedDevice, *bodies: DirectiveBody) -> list[Explain]:
    actions = device.handle(Directed(directions_of(bodies, PAGE_BYTES)))
    return [action for action in actions if isinstance(action, Explain)]


def three(
    device: SimulatedDevice, *, priorities: tuple[int, int] = (1, 2)
) -> list[SimulatedEngine]:
    """``a`` is busy and its pool full; ``b`` and ``c`` are idle; the free list is empty."""
    a, b, c = engine("a", 5), engine("b", priorities[0]), engine("c", priorities[1])
    device.arbiter = type(device.arbiter)(3 * a.start_pages, device.policy)
    device.pages = 3 * a.start_pages
    for one in (a, b, c):
        assert device.start(one)
    device.settle()
    return [a, b, c]


def want(device: SimulatedDevice, asker: SimulatedEngine, granules: int) -> list[Explain]:
    asker.active = True
    asker.live_granules = asker.pool_granules
    device.say(asker, asker.report())
    actions = device.handle(Received(asker.name, asker.ask(granules)))
    device.settle()
    return [action for action in actions if isinstance(action, Explain)]


def test_directed_priority_changes_who_lends(device: SimulatedDevice) -> None:
    a, b, c = three(device)
    direct(device, DirectModel(model(b), priority=9))
    explained = want(device, a, 3)
    assert (b.plan, c.plan != RESIDENT) == (RESIDENT, True)
    seen = {each.engine: each.priority for each in explained[0].inputs}
    assert seen == {a.name: 5, b.name: 9, c.name: 2}


def test_directive_that_is_gone_holds_no_longer(device: SimulatedDevice) -> None:
    a, b, c = three(device)
    direct(device, DirectModel(model(b), priority=9))
    direct(device)
    want(device, a, 3)
    assert (b.plan != RESIDENT, c.plan) == (True, RESIDENT)


def test_pinned_model_lends_nothing_and_gets_back_what_it_lent(device: SimulatedDevice) -> None:
    a, b, c = three(device)
    want(device, a, 3)
    assert b.plan != RESIDENT
    a.active, a.live_granules = False, 0
    device.say(a, a.report())
    direct(device, DirectModel(model(b), pinned=True), DirectModel(model(c), pinned=True))
    for _ in range(3):
        device.settle()
        device.tick(0.1)
    assert b.plan == RESIDENT, "another's spare pool is taken for it"


def test_floor_bounds_what_a_model_lends(device: SimulatedDevice) -> None:
    a, b, c = three(device)
    floors = (DirectModel(model(x), floor_bytes=24 * PAGE_BYTES) for x in (a, b, c))
    direct(device, *floors)
    want(device, a, 15)
    for one in (a, b, c):
        assert one.plan.pages(one.description.unit_pages) >= 24
        assert one.limits is not None
        assert one.limits.lend_most_pages == 6, "nor may it lend more to its own pool"
    assert a.denied or a.granted > a.start_pages


def test_freeze_moves_nothing_says_so_and_grants_what_is_free(device: SimulatedDevice) -> None:
    a, b = engine("a", 5), engine("b")
    for one in (a, b):
        assert device.start(one)
    direct(device, DirectDevice(freeze=True))
    device.settle()
    assert a.limits is not None
    assert a.limits.plan_held
    free = device.arbiter.free_pages
    explained = want(device, a, free // 2 + 6)
    assert b.plan == RESIDENT
    assert a.granted == a.start_pages + free, "requests go on with what is free"
    assert "frozen" in a.denied[-1].reason
    assert [each.effect for each in explained] == [Effect.FROZEN]
    direct(device)
    want(device, a, 6)
    assert b.plan != RESIDENT
    assert not a.limits.plan_held


def test_shadow_mode_decides_logs_and_does_nothing(device: SimulatedDevice) -> None:
    a, b, c = three(device)
    direct(device, DirectDevice(shadow=True))
    explained = want(device, a, 3)
    assert [each.effect for each in explained] == [Effect.SHADOWED]
    moves = [x for x in explained[0].decision.actions if isinstance(x, ApplyPlan)]
    assert [move.engine for move in moves] == [b.name]
    assert (b.plan, c.plan) == (RESIDENT, RESIDENT)
    direct(device, DirectDevice(shadow=True), DirectLending(model(c), at_least_bytes=PAGE_BYTES))
    explained = want(device, a, 3)
    assert len(explained) == 1, "what two rules would do is logged once each"
    for _ in range(3):
        device.tick(0.1)
        assert want(device, a, 3) == [], "and not again"


def test_draining_device_starts_no_engine_and_serves_those_that_run(
    device: SimulatedDevice,
) -> None:
    a, late = engine("a"), engine("late")
    assert device.start(a)
    direct(device, DirectDevice(drain=True))
    assert not device.start(late)
    assert "drains" in late.denied[0].reason
    want(device, a, 3)
    assert a.granted > a.start_pages


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (DirectPlacement((ModelName("other"),)), "not placed"),
        (DirectModel(ModelName("model-late"), turn=Turn.DRAINING), "drains"),
    ],
)
def test_model_that_does_not_belong_here_starts_no_engine(
    device: SimulatedDevice, body: DirectiveBody, word: str
) -> None:
    late = engine("late")
    direct(device, body)
    assert not device.start(late)
    assert word in late.denied[0].reason
    direct(device, DirectPlacement((ModelName("model-late"),)))
    again = engine("late")
    assert device.start(again)


def test_bounds_on_lending_remap_and_restore_though_nobody_asks(device: SimulatedDevice) -> None:
    b = engine("b")
    assert device.start(b)
    device.settle()
    explained = direct(device, DirectLending(model(b), at_least_bytes=9 * PAGE_BYTES))
    device.settle()
    unit_pages = b.description.unit_pages
    assert b.plan.freed_pages(unit_pages) >= 9
    (reason,) = explained[0].decision.reasons
    assert reason.rule == "lending"
    assert "an operator wants 9 pages lent" in reason.why
    for _ in range(3):
        device.tick(10.0)
        device.settle()
    assert b.plan.freed_pages(unit_pages) >= 9, "it is not given back while it is to be lent"
    explained = direct(device, DirectLending(model(b), at_most_bytes=3 * PAGE_BYTES))
    device.settle()
    assert b.plan.freed_pages(unit_pages) <= 3
    assert "an operator lets it lend 3 pages at most" in explained[0].decision.reasons[0].why


def test_model_whose_turn_comes_gets_its_units_back_before_it_has_a_request(
    device: SimulatedDevice,
) -> None:
    a, b, _ = three(device)
    want(device, a, 3)
    assert b.plan != RESIDENT
    a.live_granules = 1
    device.say(a, a.report())
    direct(device, DirectModel(model(b), turn=Turn.ACTIVE))
    for _ in range(3):
        device.settle()
        device.tick(0.1)
    assert b.plan == RESIDENT


def test_under_temporal_sharing_an_active_model_lends_to_nobody_else(
    device: SimulatedDevice,
) -> None:
    a, b, c = three(device)
    for one in (b, c):
        one.active, one.compute_s = True, 0.004
        device.say(one, one.report())
    direct(device, DirectDevice(sharing=Sharing.TEMPORAL))
    want(device, a, 2)
    assert (b.plan, c.plan) == (RESIDENT, RESIDENT)
    direct(device, DirectDevice(sharing=Sharing.SPATIAL))
    want(device, a, 2)
    assert b.plan != RESIDENT


def test_engine_that_remaps_its_own_layers_is_explained(device: SimulatedDevice) -> None:
    a = engine("a")
    assert device.start(a)
    device.settle()
    a.plan = RemapPlan(((UnitId(0), UnitId(5)),))
    actions = device.handle(Received(a.name, a.report()))
    explained = [action for action in actions if isinstance(action, Explain)]
    assert [each.decision.reasons[0].rule for each in explained][:1] == ["own layers"]
    assert explained[0].decision.reasons[0].given_pages == 3
    a.plan = RESIDENT


# ---- traces

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traces_of_moves(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each move that an engine is asked for: its kind, and its trace behind a space."""
    seen: list[str] = []
    handle = device.arbiter.handle

    def watching(event: Event, now_s: float) -> tuple[Action, ...]:
        actions = handle(event, now_s)
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, m.Shrink | m.ApplyPlan):
                message = action.message
                seen.append(f"{type(message).__name__} {message.traceparent}".rstrip())
        return actions

    monkeypatch.setattr(device.arbiter, "handle", watching)
    return seen


def direct_traced(device: SimulatedDevice, *bodies: DirectiveBody) -> None:
    device.handle(Directed(directions_of(bodies, PAGE_BYTES), TRACE))
    device.settle()


def test_moves_that_a_directive_orders_carry_its_trace(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = engine("b")
    assert device.start(b)
    device.settle()
    seen = traces_of_moves(device, monkeypatch)
    direct_traced(device, DirectLending(model(b), at_least_bytes=9 * PAGE_BYTES))
    assert seen == [f"ApplyPlan {TRACE}"]
    direct(device, DirectLending(model(b), at_most_bytes=3 * PAGE_BYTES))
    device.settle()
    assert seen[1:] == ["ApplyPlan"], "a directive without a trace has none of an earlier one's"


def test_plan_that_waits_for_a_directed_shrink_carries_the_trace_on(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three(device)
    want(device, a, 3)
    assert b.plan != RESIDENT
    a.active, a.live_granules = False, 0
    device.say(a, a.report())
    seen = traces_of_moves(device, monkeypatch)
    direct_traced(device, DirectModel(model(b), pinned=True), DirectModel(model(c), pinned=True))
    assert b.plan == RESIDENT
    assert set(seen) == {f"Shrink {TRACE}", f"ApplyPlan {TRACE}"}


def test_shortage_that_merely_finds_another_priority_carries_no_trace(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = three(device)
    direct_traced(device, DirectModel(model(b), priority=9))
    seen = traces_of_moves(device, monkeypatch)
    want(device, a, 3)
    assert c.plan != RESIDENT, "the directive has changed who lends"
    assert seen
    assert set(seen) <= {"ApplyPlan", "Shrink"}


def test_bytes_become_pages_on_the_safe_side() -> None:
    chat = ModelName("chat")
    directions = directions_of(
        (
            DirectModel(chat, priority=3, floor_bytes=1001),
            DirectLending(chat, at_least_bytes=1001, at_most_bytes=2999),
        ),
        page_bytes=1000,
    )
    assert directions == Directions(
        (
            ModelDirection(
                chat, priority=3, floor_pages=2, lend_at_least_pages=2, lend_at_most_pages=2
            ),
        )
    )
