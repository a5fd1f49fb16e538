"""Several devices as one replica: they are chosen on one node, and take a setting all or none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from mirage_core.cluster_model import NodeName
from mirage_core.model import DeviceId
from mirage_core.policy.cluster.ranks import DeviceKey, device_key
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


def choose_replicas(
    candidates: Iterable[ClusterDevice], priority: int, devices_per_replica: int, count: int
) -> list[Replica]:
    """The best ``count`` replicas that ``candidates`` make up, or as many as they do.

    The devices of a replica are of one node, where the best make the first.  A replica is as good
    as its worst device.
    """
    by_node: dict[NodeName, list[DeviceKey]] = {}
    for device in candidates:
        by_node.setdefault(device.node, []).append(device_key(device, priority))
    found: list[tuple[DeviceKey, Replica]] = []
    for keys in by_node.values():
        keys.sort()
        for i in range(0, len(keys) - devices_per_replica + 1, devices_per_replica):
            members = keys[i : i + devices_per_replica]
            found.append((members[-1], tuple(sorted(key[-1] for key in members))))
    return [replica for _, replica in sorted(found)[:count]]


def may_change(
    replica: Replica, reachable: Collection[DeviceId], refused: Collection[DeviceId]
) -> bool:
    """Whether a new setting may go to a replica: to all of its devices, or to none."""
    return all(device in reachable and device not in refused for device in replica)
