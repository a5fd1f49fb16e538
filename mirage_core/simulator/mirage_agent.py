"""A simulated node agent: the product's Arbiter, messages that take a while, and a clock's ticks.

Engines and arbiter exchange the product's messages as values.  A message arrives ``latency_s``
after it was sent, and the engine takes it in at its next step boundary.

The real agent ticks ten times a second; here ticks come only while they can change something:
while an engine lends or waits for pages.  Engines' reports settle the arbiter in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Event, Linked, Received, Send, Tick
from mirage_core.errors import ConfigError
from mirage_core.model import EngineId, ModelName, PageId
from mirage_core.policy.settings import Policy
from mirage_core.simulator.memory_port import Site
from mirage_core.simulator.mirage_engine import SimulatedEngineMemory
from mirage_core.simulator.units import PS_PER_S, to_ps
from mirage_core.wire import messages as wire


class SimulatedAgent:
    """The agent of one device; an ``AgentSide`` of its engines."""

    def __init__(
        self, pages: int, policy: Policy, site: Site, *, latency_s: float, tick_s: float
    ) -> None:
        self.arbiter = Arbiter(pages, policy)
        self.engines: dict[EngineId, SimulatedEngineMemory] = {}
        self._site = site
        self._latency_ps = to_ps(latency_s)
        self._tick_ps = to_ps(tick_s)
        self._ticking = False
        self._waiting: set[EngineId] = set()
        """Engines whose last ask has not ended."""
        self._missing: dict[EngineId, int] = {}

    # ---- start

    def admit(self, engine: EngineId, model: str, pages: int) -> tuple[PageId, ...]:
        """An engine starts with ``pages``; ConfigError if the device has not so many free."""
        name = ModelName(model)
        self._start(Linked(engine, name, wire.Role.WORKER))
        for send in self._start(Received(engine, wire.Take(1, pages))):
            if isinstance(send.message, wire.Granted) and send.engine == engine:
                return send.message.pages
            if isinstance(send.message, wire.Denied) and send.engine == engine:
                raise ConfigError(f"{model} does not fit on the device: {send.message.reason}")
        raise ConfigError(f"{model}: the device has not {pages} pages free at the start")

    def join(self, memory: SimulatedEngineMemory, model: str) -> None:
        """An admitted engine's scheduler links; all engines hear what they may have now."""
        engine = memory.name
        self.engines[engine] = memory
        self._start(Linked(engine, ModelName(model), wire.Role.SCHEDULER))
        for send in self._start(Received(engine, memory.describe())):
            if isinstance(send.message, wire.Limits):
                self.engines[send.engine].hear_limits(send.message)

    def _start(self, event: Event) -> list[Send]:
        return [action for action in self.arbiter.handle(event, 0.0) if isinstance(action, Send)]

    # ---- messages

    def send(self, engine: EngineId, message: wire.EngineMessage) -> None:
        self._later(lambda: self._receive(engine, message))

    def _receive(self, engine: EngineId, message: wire.EngineMessage) -> None:
        if isinstance(message, wire.Ask):
            self._missing[engine] = message.pages
        assert not isinstance(message, wire.Hello | wire.OpenHostCopy | wire.HostCopyFilled), (
            "of a worker that starts"
        )
        self._handle(Received(engine, message))

    def _handle(self, event: Event) -> None:
        sends = [
            action
            for action in self.arbiter.handle(event, self._site.now_ps / PS_PER_S)
            if isinstance(action, Send)
        ]
        for send in sends:
            match send.message:
                case wire.Granted(_, pages):
                    self._missing[send.engine] -= len(pages)
                case wire.Denied():
                    self._missing[send.engine] = 0
        if sends:
            self._later(lambda: self._deliver(sends))
        self._plan_tick()

    def _deliver(self, sends: Sequence[Send]) -> None:
        for send in sends:
            self.engines[send.engine].hear(send.message)

    def _later(self, call: object) -> None:
        assert callable(call)
        self._site.call_at(self._site.now_ps + self._latency_ps, call)

    # ---- ticks

    def _plan_tick(self) -> None:
        restless = any(missing > 0 for missing in self._missing.values()) or any(
            memory.lends for memory in self.engines.values()
        )
        if restless and not self._ticking:
            self._ticking = True
            next_tick = self._site.now_ps // self._tick_ps + 1
            self._site.call_at(next_tick * self._tick_ps, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._handle(Tick())
