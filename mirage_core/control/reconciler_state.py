"""What a leader knows of its cluster; the parts of the reconciler share it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_core.cluster_model import (
    ClusterWish,
    DeviceWish,
    DirectiveKey,
    NodeName,
    NodeWish,
    Severity,
    StoreIncarnation,
)
from mirage_core.control.reconciler_events import Action, Changed, Emit
from mirage_core.control.reconciler_records import DeviceRecord, ModelRecord
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.relief import AskForNode
from mirage_core.policy.cluster.silence import may_move_models, standing_of
from mirage_core.policy.cluster.view import Standing

DEVICE_KEY = DirectiveKey("device")
PLACEMENT_KEY = DirectiveKey("placement")


def model_key(model: ModelName) -> DirectiveKey:
    return DirectiveKey(f"model/{model}")


def lend_key(model: ModelName) -> DirectiveKey:
    return DirectiveKey(f"lend/{model}")


def model_named(key: DirectiveKey) -> ModelName | None:
    """The model that a key is about; None: it is about its device."""
    kind, _, name = key.partition("/")
    return ModelName(name) if kind in ("model", "lend") else None


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """max_writes      directives of one commit
    retry_s, retry_max_s  first and longest pause before a refused directive is sent again
    lost_after_s       a device silent for so long is lost: its models belong elsewhere
    forget_after_s     one silent for so long is no longer counted among the agents
    short_after_s      a model that waits for pages so long has nothing left to remap for it
    relief_pause_s     least time between two reliefs of one device
    retire_after_s     a surplus replica idle for so long is given up
    """

    max_writes: int = 1000
    retry_s: float = 1.0
    retry_max_s: float = 60.0
    lost_after_s: float = 60.0
    forget_after_s: float = 86_400.0
    short_after_s: float = 5.0
    relief_pause_s: float = 60.0
    retire_after_s: float = 300.0


class ClusterState:
    """Records, what is asked of them often, and the actions of the event at hand.

    revision   highest of the store that was reconciled
    unapplied  devices that have not applied what holds under a key now
    wanted     nodes asked for, by the model that needs one
    connected  agents
    now_s      of the event at hand
    """

    def __init__(
        self, store: StoreIncarnation, epoch: int, settings: ReconcilerSettings, now_s: float
    ) -> None:
        self.store = store
        self.epoch = epoch
        self.settings = settings
        self.now_s = now_s
        self.revision = 0
        self.devices: dict[DeviceId, DeviceRecord] = {}
        self.models: dict[ModelName, ModelRecord] = {}
        self.nodes: dict[NodeName, tuple[NodeWish, int]] = {}
        self.cluster: tuple[ClusterWish, int] = (ClusterWish(), 0)
        self.unapplied: dict[DirectiveKey, set[DeviceId]] = {}
        self.wanted: Mapping[ModelName, AskForNode] = {}
        self.connected = 0
        self.out: list[Action] = []

    # ---- records

    def device(self, device: DeviceId) -> DeviceRecord:
        """Its record, made if it was not known; silent until its agent joins."""
        record = self.devices.get(device)
        if record is None:
            record = self.devices[device] = DeviceRecord(device, self.now_s, DeviceWish(device))
        return record

    def devices_of(self, node: NodeName) -> list[DeviceRecord]:
        return [record for record in self.devices.values() if record.node == node]

    def models_of(self, record: DeviceRecord) -> list[ModelName]:
        """Registered models that belong on a device or run there."""
        return sorted(name for name in record.placed.union(record.running) if name in self.models)

    def model_of(self, key: DirectiveKey) -> ModelRecord | None:
        """The registered model that a key is about."""
        name = model_named(key)
        return self.models.get(name) if name is not None else None

    # ---- devices and agents

    def drained(self, record: DeviceRecord) -> bool:
        node = self.nodes.get(record.node)
        return record.wish.drain or (node is not None and node[0].drain)

    def standing(self, record: DeviceRecord) -> Standing:
        since_s = record.silent_since_s
        return standing_of(
            drained=self.drained(record),
            silent_s=None if since_s is None else self.now_s - since_s,
            lost_after_s=self.settings.lost_after_s,
        )

    def is_short(self, record: DeviceRecord) -> bool:
        """Whether a model has waited for pages here for so long that none can be found."""
        waited_s = self.now_s - record.waiting_since_s
        return record.waiting is not None and waited_s >= self.settings.short_after_s

    def silent_agents(self) -> int:
        """Agents that are missed: silent, not drained, and not for so long that they are gone."""
        forgotten_s = self.now_s - self.settings.forget_after_s
        return sum(
            record.silent_since_s is not None
            and record.silent_since_s > forgotten_s
            and not self.drained(record)
            for record in self.devices.values()
        )

    def moves_stopped(self) -> bool:
        silent = self.silent_agents()
        return not may_move_models(self.connected + silent, silent)

    # ---- output

    def emit(
        self,
        kind: str,
        subject: str,
        message: str,
        severity: Severity = Severity.INFO,
        **attributes: str,
    ) -> None:
        """Something for people to know."""
        self.out.append(Emit(kind, subject, message, severity, attributes))

    def changed(self, *subjects: str) -> None:
        """What readers see of these may have changed."""
        self.out.extend(map(Changed, subjects))
