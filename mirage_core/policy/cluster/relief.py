"""A device has nothing left to remap, and an engine still waits: what helps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirage_core.cluster_model import ModelWish
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.fit import can_take, need_bytes
from mirage_core.policy.cluster.ranks import device_key, rank_victims
from mirage_core.policy.cluster.replicas import choose_replicas
from mirage_core.policy.cluster.view import ClusterDevice, HeldModel


@dataclass(frozen=True, slots=True)
class Move:
    """Take ``model`` from ``source`` to ``target``: its memory is what helps."""

    model: ModelName
    source: DeviceId
    target: DeviceId
    why: str


@dataclass(frozen=True, slots=True)
class Replicate:
    """Place one more replica of ``model`` on ``targets``: it shares the load."""

    model: ModelName
    targets: tuple[DeviceId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AskForNode:
    """No device of the cluster helps ``model``; an autoscaler reads this."""

    model: ModelName
    devices: int
    need_bytes: int
    why: str


Relief = Move | Replicate | AskForNode


def choose_relief(
    short: ClusterDevice, borrower: ModelWish, devices: Iterable[ClusterDevice]
) -> Relief:
    """What helps ``borrower`` on ``short``; the first that can be done.

    1. move an idle model away: nobody waits for it, and its weights become KV cache;
    2. replicate the borrower, unless an operator named its devices;
    3. ask for a node.
    """
    elsewhere = [device for device in devices if device.device != short.device]
    return (
        _move(short, borrower, elsewhere)
        or _replicate(short, borrower, elsewhere)
        or _ask(short, borrower)
    )


def may_move(each: HeldModel, borrower: ModelWish) -> bool:
    """Whether a model may be moved for ``borrower``: it is known to be idle, is no more important,
    and no operator said where it belongs."""
    return (
        each.model != borrower.name
        and each.placed
        and each.movable
        and each.active is False
        and each.priority <= borrower.priority
    )


def _move(short: ClusterDevice, borrower: ModelWish, elsewhere: list[ClusterDevice]) -> Move | None:
    for victim in rank_victims(each for each in short.held if may_move(each, borrower)):
        room = [
            device
            for device in elsewhere
            if device.waiting is None and can_take(device, victim.model, victim.need_bytes)
        ]
        if room:
            target = min(room, key=lambda device: device_key(device, victim.priority))
            why = f"{borrower.name} waits for pages on {short.device}, {victim.model} is idle"
            return Move(victim.model, short.device, target.device, why)
    return None


def _replicate(
    short: ClusterDevice, borrower: ModelWish, elsewhere: list[ClusterDevice]
) -> Replicate | None:
    if borrower.placement.devices:
        return None
    need = need_bytes(borrower.spec)
    room = [
        device
        for device in elsewhere
        if device.waiting is None and can_take(device, borrower.name, need)
    ]
    chosen = choose_replicas(room, borrower.priority, borrower.spec.devices_per_replica, 1)
    if not chosen:
        return None
    why = f"{borrower.name} waits for pages on {short.device}, and no idle model can leave it"
    return Replicate(borrower.name, chosen[0], why)


def _ask(short: ClusterDevice, borrower: ModelWish) -> AskForNode:
    return AskForNode(
        borrower.name,
        borrower.spec.devices_per_replica,
        need_bytes(borrower.spec),
        f"{borrower.name} waits for pages on {short.device}, and no other device has room",
    )
