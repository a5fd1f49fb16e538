"""What the reconciler knows: one record a device, one a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mirage_core.cluster_model import (
    AgentHello,
    DeviceObservation,
    DeviceWish,
    Directive,
    DirectiveBody,
    DirectiveKey,
    ModelWish,
    NodeName,
    Outcome,
)
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.fit import need_bytes
from mirage_core.policy.cluster.view import ClusterDevice, HeldModel, Standing

_CAPABILITIES = {
    "model": "model",
    "lend": "lending",
    "device": "device",
    "placement": "placement",
}
"""What an agent calls the directives of a key."""


@dataclass(slots=True)
class Issued:
    """A directive that is in the store, and what came of it.

    outcome  None: not answered since it was last sent
    tries    how often the agent refused it and may be asked again
    """

    directive: Directive
    sent_s: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    retryable: bool = False
    answered_s: float | None = None
    tries: int = 0

    @property
    def body(self) -> DirectiveBody:
        return self.directive.body

    @property
    def applied(self) -> bool:
        return self.outcome is Outcome.APPLIED


@dataclass(frozen=True, slots=True)
class Running:
    """A model that an agent sees: ``active`` None: not reported."""

    active: bool | None
    idle_since_s: float | None


@dataclass(slots=True)
class DeviceRecord:
    """One device.

    wish_revision    0: nobody wished anything of it
    silent_since_s   None: its agent is connected
    synced           the connected agent was sent all that is directed to it
    issued           what is in the store, by key
    open             keys that are to be compared with what is desired, or are being stored
    withheld         keys whose setting waits because this device, or another of the replica,
                     cannot take it
    placed           models that belong here
    running          models with an engine here, as last reported
    waiting          the model that waits for pages, and since when without a pause
    relieved_s       when something was last done about that
    """

    device: DeviceId
    silent_since_s: float | None
    wish: DeviceWish
    wish_revision: int = 0
    hello: AgentHello | None = None
    synced: bool = False
    observation: DeviceObservation | None = None
    observed_s: float = 0.0
    issued: dict[DirectiveKey, Issued] = field(default_factory=dict)
    open: set[DirectiveKey] = field(default_factory=set)
    withheld: set[DirectiveKey] = field(default_factory=set)
    placed: set[ModelName] = field(default_factory=set)
    running: dict[ModelName, Running] = field(default_factory=dict)
    waiting: ModelName | None = None
    waiting_since_s: float = 0.0
    relieved_s: float | None = None

    @property
    def connected(self) -> bool:
        return self.silent_since_s is None

    def understands(self, key: DirectiveKey) -> bool:
        """Whether its agent says that it knows this kind of directive; one that says nothing
        knows all."""
        known = self.hello.capabilities if self.hello is not None else ()
        return not known or _CAPABILITIES.get(key.partition("/")[0]) in known

    @property
    def node(self) -> NodeName:
        return self.hello.node if self.hello is not None else NodeName("")

    def view(self, standing: Standing, models: Iterable[ModelRecord]) -> ClusterDevice:
        """For the policy; ``models`` are those placed or running here."""
        hello = self.hello
        held = []
        for model in models:
            running = self.running.get(model.wish.name)
            held.append(
                HeldModel(
                    model.wish.name,
                    model.wish.priority,
                    need_bytes(model.wish.spec),
                    placed=self.device in model.placed,
                    running=running is not None,
                    active=running.active if running is not None else None,
                    idle_since_s=running.idle_since_s if running is not None else None,
                    movable=not model.wish.pinned and not model.wish.placement.devices,
                )
            )
        return ClusterDevice(
            self.device,
            self.node,
            hello.page_bytes * hello.pages if hello is not None else 0,
            standing,
            tuple(held),
            self.waiting,
        )


@dataclass(slots=True)
class ModelRecord:
    """One registered model.

    observed_revision  the last revision of its wish that all its devices had applied
    placed, running    devices where it belongs, and where an engine of it was last seen
    missing            replicas without a place, and why
    purging            its record is being deleted
    """

    wish: ModelWish
    revision: int
    observed_revision: int | None = None
    placed: frozenset[DeviceId] = frozenset()
    running: set[DeviceId] = field(default_factory=set)
    missing: int = 0
    why_missing: str = ""
    purging: bool = False

    @property
    def devices(self) -> set[DeviceId]:
        return self.running.union(self.placed)

    def is_on(self, device: DeviceId) -> bool:
        return device in self.placed or device in self.running


def observe_running(
    before: dict[ModelName, Running], observation: DeviceObservation, now_s: float
) -> dict[ModelName, Running]:
    """The models of ``observation``; one is active if any of its engines is, and unknown if none
    is known to be and one did not say."""
    states: dict[ModelName, bool | None] = {}
    for engine in observation.engines:
        seen = states.get(engine.model, False)
        states[engine.model] = (
            True
            if True in (seen, engine.active)
            else (None if None in (seen, engine.active) else False)
        )
    running = {}
    for model, active in states.items():
        old = before.get(model)
        idle_since_s = None
        if active is False:
            known = old is not None and old.idle_since_s is not None
            idle_since_s = old.idle_since_s if old is not None and known else now_s
        running[model] = Running(active, idle_since_s)
    return running
