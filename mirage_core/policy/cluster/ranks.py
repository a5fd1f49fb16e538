"""Every order that the cluster's policy uses: one key a line, and a total tie-break."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mirage_core.cluster_model import ModelWish
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.fit import need_bytes, unclaimed_bytes
from mirage_core.policy.cluster.view import ClusterDevice, HeldModel


def rank_models(wishes: Iterable[ModelWish]) -> list[ModelWish]:
    """Who chooses a device first.

    1. highest priority;
    2. most devices a replica, then most bytes: what is hardest to fit;
    3. by name.
    """

    def key(wish: ModelWish) -> tuple[int, int, int, ModelName]:
        spec = wish.spec
        return (-wish.priority, -spec.devices_per_replica, -need_bytes(spec), wish.name)

    return sorted(wishes, key=key)


DeviceKey = tuple[int, bool, int, DeviceId]


def device_key(device: ClusterDevice, priority: int) -> DeviceKey:
    """Where a model of ``priority`` is best placed: the least key.

    1. fewest models at least as important: while active they lend it nothing (§5.2);
    2. not where an engine already waits for pages;
    3. most bytes unclaimed;
    4. by device id.
    """
    rivals = sum(each.priority >= priority for each in device.held)
    return (rivals, device.waiting is not None, -unclaimed_bytes(device), device.device)


def rank_victims(held: Iterable[HeldModel]) -> list[HeldModel]:
    """Who is moved away first, of models that may be.

    1. lowest priority;
    2. idle for longest;
    3. most bytes: one move that helps is better than several;
    4. by name.
    """

    def key(each: HeldModel) -> tuple[int, float, int, ModelName]:
        return (each.priority, _since_s(each), -each.need_bytes, each.model)

    return sorted(held, key=key)


def _since_s(each: HeldModel) -> float:
    return math.inf if each.idle_since_s is None else each.idle_since_s


@dataclass(frozen=True, slots=True)
class Shortage:
    """``model`` has waited for pages on ``device`` for ``waited_s``."""

    device: DeviceId
    model: ModelName
    priority: int
    waited_s: float


def rank_shortages(shortages: Iterable[Shortage]) -> list[Shortage]:
    """Which device is helped first: priorities hold across devices.

    1. highest priority of the model that waits;
    2. longest wait;
    3. by device id.
    """
    return sorted(shortages, key=lambda each: (-each.priority, -each.waited_s, each.device))
