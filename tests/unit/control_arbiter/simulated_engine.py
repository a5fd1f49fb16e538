"""An engine that obeys the arbiter, message by message, with no memory behind it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import (
    Action,
    EngineDied,
    Event,
    Linked,
    Received,
    Send,
    Tick,
    Unlinked,
)
from mirage_core.model import (
    RESIDENT,
    DeviceGeometry,
    DeviceId,
    EngineId,
    Holdings,
    ModelName,
    PageId,
    RemapPlan,
)
from mirage_core.policy.settings import Policy
from mirage_core.wire import messages as m


@dataclass
class SimulatedEngine:
    """``arrived`` are messages on their way to it; it answers when told to read one."""

    name: EngineId
    description: m.Describe
    pages: list[PageId] = field(default_factory=list)
    plan: RemapPlan = RESIDENT
    live_granules: int = 0
    active: bool = False
    compute_s: float = 0.0
    arrived: deque[m.AgentMessage] = field(default_factory=deque)
    described: bool = False
    rejoining: bool = False
    denied: list[m.Denied] = field(default_factory=list)
    granted: int = 0
    limits: m.Limits | None = None
    obstinate: bool = False
    """refuses every operation"""
    sequence: int = 0
    request_id: int = 0

    @property
    def start_pages(self) -> int:
        d = self.description
        return d.static_pages + sum(d.unit_pages) + d.pool_min_granules * d.granule_pages

    @property
    def weights_pages(self) -> int:
        return self.description.static_pages + self.plan.pages(self.description.unit_pages)

    @property
    def pool_granules(self) -> int:
        return (len(self.pages) - self.weights_pages) // self.description.granule_pages

    @property
    def spare_granules(self) -> int:
        used = max(self.live_granules, self.description.pool_min_granules)
        return max(0, self.pool_granules - used)

    def report(self) -> m.Report:
        self.sequence += 1
        units = len(self.description.unit_pages)
        return m.Report(
            sequence=self.sequence,
            active=self.active,
            pool_granules=self.pool_granules,
            spare_granules=self.spare_granules,
            needed_granules=self.live_granules,
            plan=self.plan,
            unit_compute_s=(self.compute_s,) * units if self.compute_s else (),
            unit_transfer_s=(0.002,) * units if self.compute_s else (),
        )

    def ask(self, granules: int) -> m.Ask:
        self.request_id += 1
        return m.Ask(self.request_id, granules * self.description.granule_pages)

    def holdings(self) -> Holdings:
        return Holdings(pool=tuple(self.pages))

    def read(self) -> m.EngineMessage | None:
        """Act on the oldest message; the answer, if it wants one."""
        message = self.arrived.popleft()
        match message:
            case m.Granted():
                assert not set(message.pages) & set(self.pages)
                self.pages.extend(message.pages)
                self.granted += len(message.pages)
            case m.Denied():
                self.denied.append(message)
            case m.Limits():
                self.limits = message
            case m.Shrink():
                return self._shrink(message)
            case m.ApplyPlan():
                return self._apply(message)
            case _:
                raise AssertionError(f"unexpected {message}")
        return None

    def _shrink(self, shrink: m.Shrink) -> m.EngineMessage:
        granule_pages = self.description.granule_pages
        assert shrink.pages % granule_pages == 0
        granules = min(shrink.pages // granule_pages, self.spare_granules)
        if self.obstinate or not granules:
            return m.Refused(shrink.operation, "no granule is spare")
        pages = self._release(granules * granule_pages)
        return m.Done(shrink.operation, pages, self.plan, self.pool_granules)

    def _apply(self, apply: m.ApplyPlan) -> m.EngineMessage:
        unit_pages = self.description.unit_pages
        surplus = len(apply.pages) + self.plan.pages(unit_pages) - apply.plan.pages(unit_pages)
        if self.obstinate or surplus < 0:
            return m.Refused(apply.operation, "cannot now", apply.pages)
        self.pages.extend(apply.pages)
        self.plan = apply.plan
        pages = self._release(surplus)
        return m.Done(apply.operation, pages, self.plan, self.pool_granules)

    def _release(self, count: int) -> tuple[PageId, ...]:
        cut = len(self.pages) - count
        pages = tuple(self.pages[cut:])
        del self.pages[cut:]
        return pages


class SimulatedDevice:
    """An arbiter, engines, and the messages between them; time moves only when told."""

    def __init__(self, pages: int, policy: Policy | None = None) -> None:
        self.pages = pages
        self.policy = policy or Policy()
        self.arbiter = Arbiter(pages, self.policy)
        self.engines: dict[EngineId, SimulatedEngine] = {}
        self.now_s = 100.0
        self.restarts = 0

    # ---- what the agent's loop does

    def handle(self, event: Event) -> tuple[Action, ...]:
        actions = self.arbiter.handle(event, self.now_s)
        for action in actions:
            if isinstance(action, Send) and action.engine in self.engines:
                self.engines[action.engine].arrived.append(action.message)
        return actions

    def say(self, engine: SimulatedEngine, message: object) -> None:
        self.handle(Received(engine.name, message))  # type: ignore[arg-type]

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.handle(Tick())

    def read(self, engine: SimulatedEngine) -> None:
        answer = engine.read()
        if answer is not None:
            self.say(engine, answer)

    def settle(self) -> None:
        """Let every message be read and answered."""
        for _ in range(10_000):
            waiting = [e for e in self.engines.values() if e.arrived and not e.rejoining]
            if not waiting:
                return
            self.read(waiting[0])
        raise AssertionError("messages go round in circles")

    # ---- what engines do

    def start(self, engine: SimulatedEngine) -> bool:
        """Worker's start-up: take and, if it got the pages, describe."""
        self.engines[engine.name] = engine
        self.handle(Linked(engine.name, ModelName(f"model-{engine.name}"), m.Role.WORKER))
        self.say(engine, m.Take(1, engine.start_pages))
        self.settle()
        if engine.denied:
            self.die(engine)
            return False
        if engine.pages:
            self.describe(engine)
        return bool(engine.pages)

    def describe(self, engine: SimulatedEngine) -> None:
        model = ModelName(f"model-{engine.name}")
        self.handle(Linked(engine.name, model, m.Role.SCHEDULER))
        self.say(engine, engine.description)
        self.say(engine, engine.report())
        engine.described = True

    def die(self, engine: SimulatedEngine) -> None:
        del self.engines[engine.name]
        self.handle(EngineDied(engine.name))

    def lose_link(self, engine: SimulatedEngine) -> None:
        """Messages both ways are lost."""
        engine.arrived.clear()
        engine.rejoining = True
        self.handle(Unlinked(engine.name, m.Role.SCHEDULER))

    def rejoin(self, engine: SimulatedEngine) -> None:
        model = ModelName(f"model-{engine.name}")
        assert self.arbiter.must_rejoin(engine.name)
        self.handle(Linked(engine.name, model, m.Role.SCHEDULER))
        geometry = DeviceGeometry(DeviceId("d"), 4096, self.pages)
        self.say(engine, m.Rejoin(geometry, engine.holdings()))
        engine.rejoining = False
        self.say(engine, replace(engine.description, plan=engine.plan))
        self.say(engine, engine.report())

    def restart_agent(self) -> None:
        """Every link is lost; the new arbiter knows only who held pages."""
        self.restarts += 1
        for engine in list(self.engines.values()):
            engine.arrived.clear()
            engine.rejoining = True
        self.arbiter = Arbiter(
            self.pages,
            self.policy,
            awaited={e: ModelName(f"model-{e}") for e in self.engines},
            first_operation=1_000_000 * self.restarts,
        )

    # ---- what must hold

    def check(self) -> None:
        self.arbiter.check()
        held: list[PageId] = []
        for engine in self.engines.values():
            held.extend(engine.pages)
            for message in engine.arrived:
                if isinstance(message, m.Granted | m.ApplyPlan):
                    held.extend(message.pages)
        assert len(set(held)) == len(held), "a page has two owners"
        if not self.arbiter.awaited and not any(e.rejoining for e in self.engines.values()):
            assert len(held) + self.arbiter.free_pages == self.pages, "a page is lost"
