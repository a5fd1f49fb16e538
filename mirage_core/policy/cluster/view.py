"""What the cluster's policy sees of a device; what was not reported is None, never idle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mirage_core.cluster_model import NodeName
from mirage_core.model import DeviceId, ModelName


class Standing(Enum):
    """What may become of a device's models."""

    OPEN = "open"
    """heard from, not drained: models may be placed here"""
    SILENT = "silent"
    """not heard from for a moment: keeps what it has, gets nothing"""
    CLOSED = "closed"
    """drained, or silent for so long that it counts as lost: its models belong elsewhere"""


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model that is placed on a device, or that runs there.

    need_bytes    weights and least KV pool of one device's share of a replica
    placed        belongs here; False: runs here and is to leave
    running       an engine of it was reported by the device's agent
    active        whether it has requests; None: not reported
    idle_since_s  when it was first reported inactive, as it has been since; None: it is not, or is
                  not known to be
    movable       may be moved by the controller: not pinned, no devices named by an operator
    """

    model: ModelName
    priority: int
    need_bytes: int
    placed: bool = True
    running: bool = False
    active: bool | None = None
    idle_since_s: float | None = None
    movable: bool = True


@dataclass(frozen=True, slots=True)
class ClusterDevice:
    """One device.

    waiting  the most important model whose engines wait for pages that the device cannot find
    """

    device: DeviceId
    node: NodeName
    size_bytes: int
    standing: Standing
    held: tuple[HeldModel, ...] = ()
    waiting: ModelName | None = None

    def holds(self, model: ModelName) -> bool:
        return any(each.model == model for each in self.held)
