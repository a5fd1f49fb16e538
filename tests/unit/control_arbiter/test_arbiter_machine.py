"""Random lives of engines on one device: the arbiter's books always agree, and nobody starves."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from simulated_engine import SimulatedDevice, SimulatedEngine

from mirage_core.cluster_model import DirectDevice, Turn
from mirage_core.control.arbiter import MAX_RETRY_S, TAKE_PATIENCE_S
from mirage_core.control.arbiter_events import Directed
from mirage_core.control.device_books import ANSWER_PATIENCE_S
from mirage_core.control.directed import Directions, ModelDirection
from mirage_core.model import EngineId, ModelName
from mirage_core.policy.settings import Policy
from mirage_core.policy.which_model import DonorOrder
from mirage_core.wire.messages import Describe

DEVICE_PAGES = 96


numbers = st.integers(0, 9)


class DeviceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.device = SimulatedDevice(DEVICE_PAGES)
        self.started = 0

    @initialize(
        order=st.sampled_from(DonorOrder),
        weights_move=st.sampled_from([True, True, True, False]),
        sizes=st.lists(st.integers(2, 4), min_size=3, max_size=3),
        granule_pages=st.integers(1, 4),
    )
    def open_the_device(
        self, order: DonorOrder, weights_move: bool, sizes: list[int], granule_pages: int
    ) -> None:
        """Three engines run from the start, so that most of the device is in use."""
        self.device = SimulatedDevice(DEVICE_PAGES, Policy(order=order, weights_move=weights_move))
        for size in sizes:
            self.start_one(0, [size] * 7, granule_pages, False, False)

    @rule(
        who=numbers,
        model=st.builds(
            ModelDirection,
            model=st.just(ModelName("")),
            priority=st.none() | st.integers(0, 2),
            floor_pages=st.integers(0, 30),
            pinned=st.none() | st.booleans(),
            turn=st.none() | st.sampled_from(Turn),
            lend_at_least_pages=st.integers(0, 9),
            lend_at_most_pages=st.none() | st.integers(0, 9),
        ),
        device=st.builds(DirectDevice),
    )
    def direct(self, who: int, model: ModelDirection, device: DirectDevice) -> None:
        """The cluster controller changes its mind."""
        names = [f"model-{name}" for name in self.device.engines]
        models = (replace(model, model=ModelName(names[who % len(names)])),) if names else ()
        self.device.handle(Directed(Directions(models, device)))

    @rule(
        priority=st.integers(0, 2),
        unit_pages=st.lists(st.integers(1, 4), min_size=2, max_size=8),
        granule_pages=st.integers(1, 4),
        pinned=st.booleans(),
        obstinate=st.booleans(),
    )
    def start(
        self,
        priority: int,
        unit_pages: list[int],
        granule_pages: int,
        pinned: bool,
        obstinate: bool,
    ) -> None:
        self.start_one(priority, unit_pages, granule_pages, pinned, obstinate)

    def start_one(
        self,
        priority: int,
        unit_pages: list[int],
        granule_pages: int,
        pinned: bool,
        obstinate: bool,
    ) -> None:
        self.started += 1
        engine = SimulatedEngine(
            EngineId(f"e{self.started}"),
            Describe(
                priority=priority,
                unit_pages=tuple(unit_pages),
                static_pages=2,
                granule_pages=granule_pages,
                pool_max_granules=40,
                pool_min_granules=1,
                pinned=pinned,
            ),
            obstinate=obstinate,
        )
        self.device.start(engine)

    def speakers(self) -> list[SimulatedEngine]:
        return [e for e in self.device.engines.values() if e.described and not e.rejoining]

    def speaker(self, which: int) -> SimulatedEngine:
        speakers = self.speakers()
        return speakers[which % len(speakers)]

    @precondition(speakers)
    @rule(which=numbers, granules=st.integers(1, 20))
    def ask(self, which: int, granules: int) -> None:
        engine = self.speaker(which)
        engine.active = True
        engine.live_granules = engine.pool_granules
        self.device.say(engine, engine.report())
        self.device.say(engine, engine.ask(granules))

    @precondition(speakers)
    @rule(which=numbers, active=st.booleans(), live=st.integers(0, 40), fast=st.booleans())
    def report(self, which: int, active: bool, live: int, fast: bool) -> None:
        engine = self.speaker(which)
        engine.active = active
        engine.live_granules = min(live, engine.pool_granules) if active else 0
        engine.compute_s = 0.001 if fast else 0.01
        self.device.say(engine, engine.report())

    @precondition(speakers)
    @rule(which=numbers)
    def read_one(self, which: int) -> None:
        engine = self.speaker(which)
        if engine.arrived:
            self.device.read(engine)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.device.settle()
        self.device.tick(seconds)

    @precondition(speakers)
    @rule(which=numbers, trouble=st.sampled_from(["die", "lose link", "restart"]))
    def trouble(self, which: int, trouble: str) -> None:
        engine = self.speaker(which)
        if trouble == "die":
            self.device.die(engine)
        elif trouble == "lose link":
            self.device.lose_link(engine)
        elif all(each.described for each in self.device.engines.values()):
            self.device.restart_agent()

    @precondition(lambda self: any(e.rejoining for e in self.device.engines.values()))
    @rule(which=numbers, everyone=st.sampled_from([True, True, False]))
    def rejoin(self, which: int, everyone: bool) -> None:
        away = [engine for engine in self.device.engines.values() if engine.rejoining]
        for engine in away if everyone else [away[which % len(away)]]:
            self.device.rejoin(engine)

    @invariant()
    def books_agree(self) -> None:
        self.device.check()

    @invariant()
    def nobody_waits_beside_a_free_granule(self) -> None:
        arbiter = self.device.arbiter
        if arbiter.awaited:
            return
        waiting = {
            summary.engine: summary.waiting_pages
            for summary in arbiter.summary(self.device.now_s).engines
            if summary.waiting_pages
        }
        if not all(self.device.engines[name].described for name in waiting):
            return  # an engine that starts has what is free kept for it
        least = min(
            (
                min(pages, self.device.engines[name].description.granule_pages)
                for name, pages in waiting.items()
            ),
            default=0,
        )
        # Free pages may be promised to a more important ask with a larger granule.
        if len(waiting) == 1:
            assert arbiter.free_pages < least

    def teardown(self) -> None:
        """In the end all is answered."""
        for engine in list(self.device.engines.values()):
            if engine.rejoining:
                self.device.rejoin(engine)
        for seconds in (0.0, 1.0, MAX_RETRY_S, ANSWER_PATIENCE_S, TAKE_PATIENCE_S, 1.0):
            self.device.tick(seconds)
            self.device.settle()
            self.device.check()
        summary = self.device.arbiter.summary(self.device.now_s)
        assert all(engine.waiting_pages == 0 for engine in summary.engines)
        for engine in list(self.device.engines.values()):
            self.device.die(engine)
        assert self.device.arbiter.free_pages == DEVICE_PAGES


DeviceMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDevice = DeviceMachine.TestCase
