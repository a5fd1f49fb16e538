"""Simulated agents: the product's uplink and arbiter, over an engine that has no memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    DirectiveBody,
    NodeName,
)
from mirage_core.control.arbiter import Arbiter
from mirage_core.control.arbiter_events import Directed, Linked, Received, Send
from mirage_core.control.directed import directions_of
from mirage_core.model import DeviceId, EngineId, ModelName, PageId
from mirage_core.policy.settings import Policy
from mirage_core.ports import Clock
from mirage_core.wire import messages as m
from node_agent.directives import Held
from node_agent.directives_file import DirectivesInMemory
from node_agent.uplink import Uplink
from node_agent.uplink_reports import DeviceReport, report_of
from node_agent.uplink_settings import UplinkSettings

PAGE_BYTES = 2 << 20
PAGES = 4096
_DESCRIPTION = m.Describe(
    priority=0,
    unit_pages=(40,) * 32,
    static_pages=64,
    granule_pages=64,
    pool_max_granules=40,
    pool_min_granules=2,
)


class FakeEngine:
    """Takes its pages, does what the arbiter asks, and has other requests at each report."""

    def __init__(self, model: ModelName, arbiter: Arbiter, clock: Clock, seed: int) -> None:
        self.name = EngineId(f"{model}-engine")
        self._arbiter = arbiter
        self._clock = clock
        self._rng = random.Random(seed)
        self._pages: list[PageId] = []
        self._plan = _DESCRIPTION.plan
        self._sequence = 0
        d = _DESCRIPTION
        start = d.static_pages + sum(d.unit_pages) + d.pool_min_granules * d.granule_pages
        self._handle(Linked(self.name, model, m.Role.WORKER))
        self._handle(Received(self.name, m.Take(1, start)))
        self._handle(Linked(self.name, model, m.Role.SCHEDULER))
        self._handle(Received(self.name, d))

    def report(self) -> m.Report:
        self._sequence += 1
        running = self._rng.randrange(8)
        said = m.Report(
            sequence=self._sequence,
            active=running > 0,
            running_requests=running,
            pool_granules=_DESCRIPTION.pool_min_granules,
            needed_granules=_DESCRIPTION.pool_min_granules,
            plan=self._plan,
            free_kv_tokens=self._rng.randrange(4096),
        )
        self._handle(Received(self.name, said))
        return said

    def _handle(self, event: Linked | Received) -> None:
        for action in self._arbiter.handle(event, self._clock.monotonic_s()):
            if isinstance(action, Send) and action.engine == self.name:
                self._take(action.message)

    def _take(self, message: m.AgentMessage) -> None:
        match message:
            case m.Granted():
                self._pages.extend(message.pages)
            case m.Shrink():
                refused = m.Refused(message.operation, "no granule is spare")
                self._handle(Received(self.name, refused))
            case m.ApplyPlan():
                units = _DESCRIPTION.unit_pages
                surplus = self._plan.pages(units) - message.plan.pages(units) + len(message.pages)
                self._plan = message.plan
                freed = tuple(self._pages[len(self._pages) - surplus :]) if surplus > 0 else ()
                del self._pages[len(self._pages) - len(freed) :]
                done = m.Done(message.operation, freed, self._plan, _DESCRIPTION.pool_min_granules)
                self._handle(Received(self.name, done))


class Watched:
    """What all agents together have heard: nobody may obey a leader that was deposed before."""

    def __init__(self) -> None:
        self.epoch = 0
        """highest that any agent has heard"""
        self.epochs: set[int] = set()
        """all that were heard: each is an election"""
        self.obeyed_deposed = 0
        """directives of a lower epoch that an agent took after another had heard a higher one"""

    def see(self, before: Held, after: Held) -> None:
        if after.latest is not None:
            self.epoch = max(self.epoch, after.latest.epoch)
            self.epochs.add(after.latest.epoch)
        known = {(each.key, each.authority) for each in before.directives}
        self.obeyed_deposed += sum(
            each.authority.epoch < self.epoch and (each.key, each.authority) not in known
            for each in after.directives
        )


class WatchedStore(DirectivesInMemory):
    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self._watched = watched

    def save(self, held: Held) -> None:
        self._watched.see(self.load(), held)
        super().save(held)


class SimulatedAgent:
    """``UplinkDevice`` of its uplink."""

    def __init__(
        self,
        number: int,
        controllers: Sequence[str],
        certificates: Path | None,
        clock: Clock,
        watched: Watched,
    ) -> None:
        """``certificates`` None: plain text."""
        self.node = node_of(number)
        self.device = device_of(number)
        self._clock = clock
        self._arbiter = Arbiter(PAGES, Policy())
        self._engine = FakeEngine(model_of(number), self._arbiter, clock, number)
        files: dict[str, Path] = {}
        if certificates is not None:
            files["ca"] = certificates / "ca.pem"
            files["certificate"] = certificates / f"{self.node}.pem"
            files["key"] = certificates / f"{self.node}.key"
        settings = UplinkSettings(controllers=tuple(controllers), node=self.node, **files)
        hello = AgentHello(
            NodeName(self.node),
            self.device,
            AgentIncarnation(f"{self.device}-1"),
            PAGE_BYTES,
            PAGES,
            self.node,
            ("model", "lending", "device", "placement"),
        )
        rng = random.Random(number)
        self.uplink = Uplink(hello, settings, self, WatchedStore(watched), clock, rng)

    async def apply(self, bodies: tuple[DirectiveBody, ...]) -> None:
        directions = directions_of(bodies, PAGE_BYTES)
        self._arbiter.handle(Directed(directions), self._clock.monotonic_s())

    def report(self) -> DeviceReport:
        said = self._engine.report()
        summary = self._arbiter.summary(self._clock.monotonic_s())
        return report_of(summary, {self._engine.name: said})

    @property
    def epoch(self) -> int:
        """Of the leader that it acknowledged last."""
        latest = self.uplink.keeper.held.latest
        return latest.epoch if latest is not None else 0


class Fleet:
    """Agents 0 to n - 1, each a task of this event loop."""

    def __init__(self, controllers: Sequence[str], certificates: Path | None, clock: Clock) -> None:
        self._controllers = controllers
        self._certificates = certificates
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self.agents: list[SimulatedAgent] = []
        self.watched = Watched()

    def grow(self, count: int) -> None:
        for number in range(len(self.agents), count):
            agent = SimulatedAgent(
                number, self._controllers, self._certificates, self._clock, self.watched
            )
            self.agents.append(agent)
            self._tasks.append(asyncio.create_task(agent.uplink.run()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connected(self) -> int:
        return sum(agent.uplink.counters.connected for agent in self.agents)

    def sessions(self) -> int:
        """Sessions begun since the start; more than agents means that some were lost."""
        return sum(agent.uplink.counters.sessions for agent in self.agents)

    def acknowledged(self, epoch: int) -> int:
        """Agents that follow the leader of ``epoch`` or a later one, in a session with it."""
        return sum(
            agent.epoch >= epoch and agent.uplink.counters.connected for agent in self.agents
        )


def node_of(number: int) -> str:
    return f"node-{number}"


def device_of(number: int) -> DeviceId:
    return DeviceId(f"HOST-{number:06d}")


def model_of(number: int) -> ModelName:
    return ModelName(f"model-{number}")
