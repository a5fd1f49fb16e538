"""Several devices as one replica: they are chosen on one node, and take a setting all or none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from mirage_core.cluster_model import NodeName
from mirage_core.model import DeviceId
from mirage_core.policy.cluster.ranks import device_key
from mirage_core.policy.cluster.view import ClusterDevice

Replica = tuple[DeviceId, ...]


def group_replicas(
    devices: Iterable[DeviceId], nodes: Mapping[DeviceId, NodeName], devices_per_replica: int
) -> tuple[list[Replica], Replica]:
    """The whole replicas that ``devices`` make up, and the devices left over.

    Devices of one node in the order of their ids, so that whoever has the set of devices, has the
    replicas.  A device of an unknown node is left over unless a replica is one device.
    """
    if devices_per_replica == 1:
        return [(device,) for device in sorted(devices)], ()
    replicas: list[Replica] = []
    left: list[DeviceId] = []
    known = sorted((nodes.get(device, NodeName("")), device) for device in devices)
    for node, members in groupby(known, key=lambda pair: pair[0]):
        ids = [device for _, device in members]
        whole = len(ids) // devices_per_replica * devices_per_replica if node else 0
        replicas += [
            tuple(ids[i : i + devices_per_replica]) for i in range(0, whole, devices_per_replica)
        ]
        left += ids[whole:]
    return replicas, tuple(left)


def choose_replica(
    candidates: Sequence[ClusterDevice], priority: int, devices_per_replica: int
) -> Replica | None:
    """The best devices for one more replica, all of one node; None if no node has enough.

    A replica is as good as its worst device.
    """
    by_node: dict[NodeName, list[ClusterDevice]] = {}
    for device in candidates:
        by_node.setdefault(device.node, []).append(device)
    best: tuple[tuple[int, bool, int, DeviceId], Replica] | None = None
    for members in by_node.values():
        if len(members) < devices_per_replica:
            continue
        keys = sorted(device_key(device, priority) for device in members)[:devices_per_replica]
        choice = (keys[-1], tuple(sorted(key[-1] for key in keys)))
        if best is None or choice < best:
            best = choice
    return best[1] if best is not None else None


def may_change(
    replica: Replica, reachable: Collection[DeviceId], refused: Collection[DeviceId]
) -> bool:
    """Whether a new setting may go to a replica: to all of its devices, or to none."""
    return all(device in reachable and device not in refused for device in replica)
