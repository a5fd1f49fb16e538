"""The devices of one model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mirage_core.cluster_model import ModelState, ModelWish
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.fit import can_take, need_bytes
from mirage_core.policy.cluster.replicas import Replica, choose_replicas, group_replicas
from mirage_core.policy.cluster.view import ClusterDevice, Standing


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a model belongs.

    missing  replicas for which there is no room
    why      what stands against the missing ones; empty if none is missing
    """

    devices: frozenset[DeviceId]
    missing: int = 0
    why: str = ""


def place_model(
    wish: ModelWish,
    devices: Mapping[DeviceId, ClusterDevice],
    current: Collection[DeviceId],
    *,
    idle_before_s: float,
) -> Placed:
    """Where ``wish``'s replicas belong, given where they are.

    1. absent: nowhere;
    2. devices that an operator named: these and no others;
    3. inactive: where it is, and nowhere new;
    4. else where it is already, if the device may keep it, less surplus replicas that have been
       idle since before ``idle_before_s`` on every device;
    5. and, for each replica that is missing, where it runs already, else the best device with room.
    """
    if wish.state is ModelState.ABSENT:
        return Placed(frozenset())
    if wish.placement.devices:
        return _place_as_named(wish, devices)
    kept = frozenset(d for d in current if d in devices and _may_keep(devices[d]))
    if wish.state is ModelState.INACTIVE:
        return Placed(kept)
    return _fill_up(wish, devices, _retire(wish, devices, kept, idle_before_s))


def _place_as_named(wish: ModelWish, devices: Mapping[DeviceId, ClusterDevice]) -> Placed:
    named = frozenset(wish.placement.devices)
    closed = sorted(d for d in named if d in devices and not _may_keep(devices[d]))
    unknown = sorted(named.difference(devices))
    faults = [f"{d} is drained or lost" for d in closed] + [f"{d} is not known" for d in unknown]
    if not faults:
        return Placed(named)
    size = wish.spec.devices_per_replica
    usable = named.difference(closed, unknown)
    return Placed(usable, -(-len(faults) // size), "; ".join(faults))


def _may_keep(device: ClusterDevice) -> bool:
    return device.standing is not Standing.CLOSED


def _retire(
    wish: ModelWish,
    devices: Mapping[DeviceId, ClusterDevice],
    kept: frozenset[DeviceId],
    idle_before_s: float,
) -> frozenset[DeviceId]:
    nodes = {d: devices[d].node for d in kept}
    replicas, _ = group_replicas(kept, nodes, wish.spec.devices_per_replica)
    surplus = len(replicas) - wish.placement.replicas
    for replica in reversed(replicas):
        if surplus > 0 and all(
            _idle_since_s(devices[d], wish.name) < idle_before_s for d in replica
        ):
            kept = kept.difference(replica)
            surplus -= 1
    return kept


def _idle_since_s(device: ClusterDevice, model: ModelName) -> float:
    """Infinity unless the model is known to be idle there."""
    for each in device.held:
        if each.model == model and each.idle_since_s is not None:
            return each.idle_since_s
    return math.inf


def _fill_up(
    wish: ModelWish, devices: Mapping[DeviceId, ClusterDevice], kept: frozenset[DeviceId]
) -> Placed:
    size, need = wish.spec.devices_per_replica, need_bytes(wish.spec)
    replicas, left = group_replicas(kept, {d: devices[d].node for d in kept}, size)
    placed = kept.difference(left)
    missing = max(0, wish.placement.replicas - len(replicas))
    adopted = _adopt(wish, devices, placed)[:missing]
    placed, missing = placed.union(*adopted), missing - len(adopted)
    if missing == 0:
        return Placed(placed)
    room = (
        device
        for d, device in devices.items()
        if d not in placed and can_take(_without(device, wish, left), wish.name, need)
    )
    chosen = choose_replicas(room, wish.priority, size, missing)
    placed, missing = placed.union(*chosen), missing - len(chosen)
    return Placed(placed, missing, _why_none(wish, devices, need) if missing else "")


def _adopt(
    wish: ModelWish, devices: Mapping[DeviceId, ClusterDevice], placed: frozenset[DeviceId]
) -> list[Replica]:
    """Replicas that run where nobody placed them: engines that were there before the model was
    registered."""
    running = {
        d: device.node
        for d, device in devices.items()
        if d not in placed
        and device.standing is Standing.OPEN
        and any(each.model == wish.name and each.running for each in device.held)
    }
    return group_replicas(running, running, wish.spec.devices_per_replica)[0]


def _without(device: ClusterDevice, wish: ModelWish, left: Collection[DeviceId]) -> ClusterDevice:
    """A device whose part of a broken replica may become part of a whole one."""
    if device.device not in left:
        return device
    return replace(device, held=tuple(each for each in device.held if each.model != wish.name))


def _why_none(wish: ModelWish, devices: Mapping[DeviceId, ClusterDevice], need: int) -> str:
    open_devices = sum(device.standing is Standing.OPEN for device in devices.values())
    size = wish.spec.devices_per_replica
    where = "a device" if size == 1 else f"{size} devices of one node"
    return (
        f"no room for {need} bytes on {where}:"
        f" of {len(devices)} devices {open_devices} take models, and none has so much unclaimed"
    )
