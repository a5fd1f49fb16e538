"""The cluster's controller in the loop: the product's own Reconciler over a simulated network.

Every device has an agent that joins, obeys directives and reports; a message takes ``latency_s``,
a write of the store ``store_s``.  A model's engine on a device serves once the controller has
placed the model there and the engine has started; taken away, it serves to the end what it has.

Scaling is Ray Serve's rule, since Ray Serve would do it: so many replicas that each has
``target_requests`` under way, after the load has called for more, or fewer, for a while.

Left out: elections (one leader's term), admin calls, streams that break while both ends live, and
what the arbiter does with directives (priorities, turns and floors are its settings here).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from mirage_core.cluster_model import (
    Acknowledgement,
    AgentHello,
    AgentIncarnation,
    DeviceObservation,
    Directive,
    DirectPlacement,
    EngineObservation,
    ModelSpec,
    ModelUid,
    ModelWish,
    NodeName,
    Outcome,
    Placement,
    StoreIncarnation,
)
from mirage_core.control.reconciler import Reconciler, ReconcilerSettings
from mirage_core.control.reconciler_events import (
    Answered,
    Commit,
    Committed,
    Event,
    Joined,
    Left,
    Reported,
    Send,
    SendAll,
    Tick,
    Wished,
)
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.simulator.config import ControllerSpec, Scaling
from mirage_core.simulator.device import Device
from mirage_core.simulator.engine import Engine
from mirage_core.simulator.router import Router
from mirage_core.simulator.units import PS_PER_S, to_ps

STORE = StoreIncarnation("simulated")
JOIN_SPACING_PS = to_ps(100e-6)
"""At the start agents join one after the other; wishes come after the last."""


class Loop(Protocol):
    """What the controller needs of the event loop."""

    @property
    def now_ps(self) -> int: ...

    def call_at(self, time_ps: int, call: Callable[[], None]) -> None: ...

    def in_service(self, engine: Engine) -> None:
        """Requests that no replica was there for may go to this one."""
        ...


@dataclass(slots=True)
class _Scaled:
    """One model's scaling: replicas that there are to be, and since when load says otherwise."""

    rule: Scaling
    replicas: int
    above_since_s: float | None = None
    below_since_s: float | None = None

    def decide(self, requests: int, now_s: float) -> int:
        """Replicas for ``requests`` under way, as Ray Serve's autoscaler decides."""
        rule = self.rule
        wanted = min(rule.most, max(rule.least, math.ceil(requests / rule.target_requests)))
        if wanted <= self.replicas:
            self.above_since_s = None
        elif self.above_since_s is None:
            self.above_since_s = now_s
        if wanted >= self.replicas:
            self.below_since_s = None
        elif self.below_since_s is None:
            self.below_since_s = now_s
        up, down = self.above_since_s, self.below_since_s
        if (up is not None and now_s - up >= rule.up_after_s) or (
            down is not None and now_s - down >= rule.down_after_s
        ):
            self.replicas = wanted
            self.above_since_s = self.below_since_s = None
        return self.replicas


class Controller:
    """One leader and all agents of a run."""

    def __init__(
        self,
        spec: ControllerSpec,
        loop: Loop,
        devices: list[Device],
        routers: Mapping[str, Router],
    ) -> None:
        self.spec = spec
        self.commits = self.directives = self.reports = 0
        self._loop = loop
        self._routers = routers
        self._latency_ps = to_ps(spec.latency_s)
        settings = spec.settings or ReconcilerSettings()
        self._reconciler = Reconciler(STORE, 1, (), settings, 0.0)
        self._agents = {
            DeviceId(device.spec.name): _Agent(self, device, place)
            for place, device in enumerate(devices)
        }
        self._scaled = {rule.model: _Scaled(rule, rule.least) for rule in spec.scaling}
        self._wishes: dict[str, ModelWish] = {}
        for place, agent in enumerate(self._agents.values()):
            self.call_in(place * JOIN_SPACING_PS, agent.join)
        self.call_in(len(devices) * JOIN_SPACING_PS + self._latency_ps, self._wish_all)
        self.call_in(PS_PER_S, self._tick)

    def lost(self, device: Device) -> None:
        """The device and its agent are gone."""
        self._agents[DeviceId(device.spec.name)].leave()

    def back(self, device: Device) -> None:
        self._agents[DeviceId(device.spec.name)].join()

    # ---- wishes

    def _wish_all(self) -> None:
        for model in self._routers:
            places = [
                (agent, engine)
                for agent in self._agents.values()
                for engine in agent.engines
                if engine.spec.model == model
            ]
            spec = places[0][1].spec
            scaled = self._scaled.get(model)
            # Without a rule an operator names the devices; with one the controller chooses.
            placement = (
                Placement(replicas=scaled.replicas)
                if scaled is not None
                else Placement(tuple(agent.id for agent, _ in places), len(places))
            )
            self._wishes[model] = ModelWish(
                ModelName(model),
                ModelUid(model),
                model,
                ModelSpec(sum(spec.unit_bytes) + spec.static_bytes),
                priority=spec.priority,
                placement=placement,
            )
        last = list(self._wishes)[-1]
        for model, wish in self._wishes.items():
            self._handle(Wished(wish, self._reconciler.revision + 1, more=model != last))

    def _scale(self, now_s: float) -> None:
        for model, scaled in self._scaled.items():
            before = scaled.replicas
            if scaled.decide(self._routers[model].requests, now_s) != before:
                wish = self._wishes[model]
                wish = replace(wish, placement=Placement(replicas=scaled.replicas))
                self._wishes[model] = wish
                self._handle(Wished(wish, self._reconciler.revision + 1))

    # ---- the reconciler

    def _tick(self) -> None:
        self._scale(self._loop.now_ps / PS_PER_S)
        self._handle(Tick())
        self.call_in(PS_PER_S, self._tick)

    def tell(self, event: Event) -> None:
        """An agent's message; it arrives after the network's latency."""
        self.call_in(self._latency_ps, lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        self.reports += isinstance(event, Reported)
        for action in self._reconciler.handle(event, self._loop.now_ps / PS_PER_S):
            match action:
                case Commit():
                    self.commits += 1
                    revision = self._reconciler.revision + 1
                    self.call_in(to_ps(self.spec.store_s), self._committed(revision))
                case Send(device, directive):
                    self._send(device, (directive,))
                case SendAll(device, snapshot):
                    self._send(device, snapshot.directives)

    def _committed(self, revision: int) -> Callable[[], None]:
        return lambda: self._handle(Committed(revision))

    def _send(self, device: DeviceId, directives: tuple[Directive, ...]) -> None:
        self.directives += len(directives)
        agent = self._agents[device]
        self.call_in(self._latency_ps, lambda: agent.obey(directives))

    def call_in(self, delay_ps: int, call: Callable[[], None]) -> None:
        self._loop.call_at(self._loop.now_ps + delay_ps, call)

    # ---- engines in service

    def started(self, engine: Engine) -> None:
        self._routers[engine.spec.model].add(engine)
        self._loop.in_service(engine)

    def stopping(self, engine: Engine) -> None:
        self._routers[engine.spec.model].remove(engine)

    def load(self, engine: Engine) -> int:
        return self._routers[engine.spec.model].load(engine)


class _Agent:
    """One device's agent: starts and stops engines as it is told, and reports."""

    def __init__(self, controller: Controller, device: Device, place: int) -> None:
        self.id = DeviceId(device.spec.name)
        self.engines = device.engines
        self._controller = controller
        self._device = device
        self._place = place
        self._incarnation = 0
        self._sequence = 0
        self._wanted: frozenset[str] = frozenset()
        self._running: dict[str, Engine] = {}

    def join(self) -> None:
        self._incarnation += 1
        spec = self._device.spec
        hello = AgentHello(
            NodeName(spec.node or spec.name),
            self.id,
            AgentIncarnation(f"{self.id}/{self._incarnation}"),
            spec.page_bytes,
            max(1, spec.memory_bytes // spec.page_bytes),
            spec.link,
        )
        self._controller.tell(Joined(hello))
        interval_ps = to_ps(self._controller.spec.report_interval_s)
        # Agents of one cluster do not report at one moment.
        self._next(interval_ps * (self._place % 1000 + 1) // 1000, self._incarnation)

    def leave(self) -> None:
        self._controller.tell(Left(self.id, AgentIncarnation(f"{self.id}/{self._incarnation}")))
        self._incarnation += 1
        self._wanted = frozenset()
        self._running.clear()

    def obey(self, directives: tuple[Directive, ...]) -> None:
        if not self._device.up:
            return
        for directive in directives:
            if isinstance(directive.body, DirectPlacement):
                self._place_models(frozenset(directive.body.models))
            answer = Acknowledgement(
                directive.operation, directive.key, directive.authority, Outcome.APPLIED
            )
            self._controller.tell(Answered(self.id, answer))

    def _place_models(self, models: frozenset[str]) -> None:
        new, self._wanted = models - self._wanted, models
        start_ps = to_ps(self._controller.spec.start_s)
        incarnation = self._incarnation
        for engine in self.engines:
            model = engine.spec.model
            if model in new and model in self._running:
                self._controller.started(engine)  # it was to end, and is kept
            elif model in new:
                self._later(start_ps, partial(self._started, engine, incarnation))
            elif model in self._running and model not in models:
                self._controller.stopping(engine)

    def _started(self, engine: Engine, incarnation: int) -> None:
        model = engine.spec.model
        if incarnation == self._incarnation and model in self._wanted:
            self._running[model] = engine
            self._controller.started(engine)

    # ---- reports

    def _next(self, delay_ps: int, incarnation: int) -> None:
        self._later(delay_ps, lambda: self._report(incarnation))

    def _report(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            return
        for model, engine in list(self._running.items()):
            if model not in self._wanted and self._controller.load(engine) == 0:
                del self._running[model]
        self._sequence += 1
        observation = DeviceObservation(
            self._sequence, 0, 0, tuple(map(self._observe, self._running.values()))
        )
        self._controller.tell(Reported(self.id, observation))
        self._next(to_ps(self._controller.spec.report_interval_s), incarnation)

    def _observe(self, engine: Engine) -> EngineObservation:
        spec, page_bytes = engine.spec, self._device.spec.page_bytes
        return EngineObservation(
            EngineId(f"{self.id}/{spec.model}"),
            ModelName(spec.model),
            resident_pages=(sum(spec.unit_bytes) + spec.static_bytes) // page_bytes,
            slot_pages=0,
            pool_pages=spec.pool_blocks * spec.block_bytes // page_bytes,
            spare_pages=0,
            in_flight_pages=0,
            active=engine.active,
            running_requests=engine.running,
            waiting_requests=engine.waiting,
        )

    def _later(self, delay_ps: int, call: Callable[[], None]) -> None:
        self._controller.call_in(delay_ps, call)
