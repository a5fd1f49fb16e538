"""A store and agents, simulated around the real reconciler: what it asks for happens when told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from mirage_core.cluster_model import (
    FREE_LENDING,
    Acknowledgement,
    AgentHello,
    AgentIncarnation,
    Authority,
    ClusterWish,
    DeviceObservation,
    DeviceWish,
    Directive,
    DirectiveKey,
    EngineObservation,
    Lending,
    ModelSpec,
    ModelState,
    ModelUid,
    ModelWish,
    NodeName,
    NodeWish,
    Outcome,
    Placement,
    StoreIncarnation,
    Wish,
)
from mirage_core.control import reconciler_events as ev
from mirage_core.control.reconciler import Reconciler, ReconcilerSettings
from mirage_core.model import DeviceId, EngineId, ModelName

STORE = StoreIncarnation("store-incarnation")
SETTINGS = ReconcilerSettings(
    lost_after_s=60.0, short_after_s=5.0, relief_pause_s=30.0, retire_after_s=100.0
)


def model_wish(
    name: str = "a",
    *,
    priority: int = 0,
    devices: tuple[str, ...] = (),
    replicas: int = 1,
    per_replica: int = 1,
    state: ModelState = ModelState.ACTIVE,
    weights: int = 10,
    pinned: bool = False,
    lending: Lending = FREE_LENDING,
) -> ModelWish:
    return ModelWish(
        ModelName(name),
        ModelUid(f"uid-{name}"),
        "ab",
        ModelSpec(weights, devices_per_replica=per_replica),
        priority=priority,
        pinned=pinned,
        state=state,
        placement=Placement(tuple(map(DeviceId, devices)), replicas),
        lending=lending,
    )


def engine(model: str, *, active: bool | None = False, waiting_pages: int = 0) -> EngineObservation:
    return EngineObservation(
        EngineId(f"{model}-e"),
        ModelName(model),
        10,
        0,
        5,
        1,
        0,
        waiting_pages=waiting_pages,
        active=active,
    )


@dataclass
class SimulatedAgent:
    """Holds what it was told last, and answers when the cluster lets it."""

    hello: AgentHello
    connected: bool = False
    holds: dict[DirectiveKey, Directive] = field(default_factory=dict)
    refuses: set[DirectiveKey] = field(default_factory=set)
    retryable: bool = False
    answers: deque[Acknowledgement] = field(default_factory=deque)
    sequence: int = 0

    def take(self, directive: Directive) -> None:
        before = self.holds.get(directive.key)
        if before is not None:
            old, new = before.authority, directive.authority
            assert (new.epoch, new.revision) >= (old.epoch, old.revision), "authority never falls"
        outcome = Outcome.REFUSED if directive.key in self.refuses else Outcome.APPLIED
        if outcome is Outcome.APPLIED:
            self.holds[directive.key] = directive
        self.answers.append(
            Acknowledgement(
                directive.operation,
                directive.key,
                directive.authority,
                outcome,
                "because" if outcome is Outcome.REFUSED else "",
                self.retryable,
            )
        )


class SimulatedCluster:
    def __init__(self, *, epoch: int = 1, settings: ReconcilerSettings = SETTINGS) -> None:
        self.now_s = 0.0
        self.revision = epoch
        self.records: dict[tuple[DeviceId, DirectiveKey], Directive] = {}
        self.operations: set[str] = set()
        self.wishes: dict[tuple[type, str], tuple[Wish, int]] = {}
        self.agents: dict[DeviceId, SimulatedAgent] = {}
        self.commits: deque[ev.Commit] = deque()
        self.emitted: list[ev.Emit] = []
        self.deposed: list[Authority] = []
        self.purged: list[ModelName] = []
        self.settings = settings
        self.reconciler = self._elect(epoch)

    def _elect(self, epoch: int) -> Reconciler:
        stored = [(device, directive) for (device, _), directive in self.records.items()]
        return Reconciler(STORE, epoch, stored, self.settings, self.now_s)

    def fail_over(self) -> None:
        """Another leader takes over from what is stored; agents have to join again."""
        self.revision += 1
        self.commits.clear()
        for agent in self.agents.values():
            agent.connected = False
            agent.answers.clear()
        self.reconciler = self._elect(self.revision)
        for wish, revision in list(self.wishes.values()):
            self.handle(ev.Wished(wish, revision))

    # ---- events

    def handle(self, event: ev.Event) -> None:
        for action in self.reconciler.handle(event, self.now_s):
            match action:
                case ev.Commit():
                    assert not self.commits, "one commit at a time"
                    self.commits.append(action)
                case ev.Send(device, directive):
                    self._check_stored(device, directive)
                    if self.agents[device].connected:
                        self.agents[device].take(directive)
                case ev.SendAll(device, snapshot):
                    agent = self.agents[device]
                    agent.holds = {
                        d.key: agent.holds[d.key]
                        for d in snapshot.directives
                        if d.key in agent.holds
                    }
                    for directive in snapshot.directives:
                        self._check_stored(device, directive)
                        agent.take(directive)
                case ev.Emit():
                    self.emitted.append(action)
                case ev.Deposed(latest):
                    self.deposed.append(latest)
                case ev.Purge(model, revision):
                    assert self.wishes[ModelWish, model][1] == revision
                    self.purged.append(model)

    def _check_stored(self, device: DeviceId, directive: Directive) -> None:
        stored = self.records.get((device, directive.key))
        assert stored is not None, "no directive leaves before it is stored"
        assert stored.operation == directive.operation
        assert stored.body == directive.body

    def wish(self, wish: Wish, traceparent: str = "") -> int:
        self.revision += 1
        name = {
            ModelWish: lambda w: w.name,
            DeviceWish: lambda w: w.device,
            NodeWish: lambda w: w.node,
            ClusterWish: lambda w: "cluster",
        }[type(wish)](wish)
        self.wishes[type(wish), name] = (wish, self.revision)
        self.handle(ev.Wished(wish, self.revision, traceparent))
        return self.revision

    def join(
        self,
        device: str,
        node: str = "n1",
        pages: int = 100,
        capabilities: tuple[str, ...] = (),
    ) -> SimulatedAgent:
        known = self.agents.get(DeviceId(device))
        lives = int(known.hello.incarnation) + 1 if known is not None else 1
        hello = AgentHello(
            NodeName(node),
            DeviceId(device),
            AgentIncarnation(str(lives)),
            1,
            pages,
            node,
            capabilities,
            held=tuple((k, d.operation) for k, d in known.holds.items()) if known else (),
        )
        agent = SimulatedAgent(hello, True)
        if known is not None:
            agent.holds, agent.refuses = known.holds, known.refuses
        self.agents[DeviceId(device)] = agent
        self.handle(ev.Joined(hello))
        return agent

    def leave(self, device: str) -> None:
        agent = self.agents[DeviceId(device)]
        agent.connected = False
        agent.answers.clear()
        self.handle(ev.Left(agent.hello.device, agent.hello.incarnation))

    def report(self, device: str, *engines: EngineObservation) -> None:
        agent = self.agents[DeviceId(device)]
        agent.sequence += 1
        seen = DeviceObservation(agent.sequence, 50, 0, engines)
        self.handle(ev.Reported(agent.hello.device, seen))

    def commit(self) -> bool:
        """The store does what it was asked last; False if nothing was."""
        if not self.commits:
            return False
        commit = self.commits.popleft()
        self.revision += 1
        for write in commit.writes:
            assert write.operation not in self.operations, "operation ids are never used twice"
            self.operations.add(write.operation)
            if write.body is None:
                self.records.pop((write.device, write.key), None)
            else:
                authority = Authority(STORE, self.reconciler.state.epoch, self.revision)
                self.records[write.device, write.key] = Directive(
                    write.operation, authority, write.body, write.traceparent
                )
        self.handle(ev.Committed(self.revision))
        return True

    def answer(self) -> bool:
        """Every agent sends one answer; False if none has any."""
        agents = [each for each in self.agents.values() if each.connected and each.answers]
        for agent in agents:
            self.handle(ev.Answered(agent.hello.device, agent.answers.popleft()))
        return bool(agents)

    def settle(self) -> None:
        """Until nothing is on its way."""
        for _ in range(1000):
            if not self.commit() and not self.answer():
                return
        raise AssertionError("the cluster does not come to rest")

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.handle(ev.Tick())
            self.settle()

    # ---- looking

    def told(self, kind: str) -> list[str]:
        return [each.subject for each in self.emitted if each.kind == kind]

    def placed(self, model: str) -> set[str]:
        return set(self.reconciler.state.models[ModelName(model)].placed)

    def body(self, device: str, key: str) -> object:
        held = self.agents[DeviceId(device)].holds.get(DirectiveKey(key))
        return held.body if held is not None else None


def changed(wish: ModelWish, **fields: object) -> ModelWish:
    return replace(wish, **fields)  # type: ignore[arg-type]
