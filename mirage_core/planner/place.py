"""Models on GPUs: the cluster's own policy decides, as the controller would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mirage_core.cluster_model import ModelSpec, ModelUid, ModelWish, NodeName, Placement
from mirage_core.errors import ConfigError
from mirage_core.model import DeviceId, ModelName
from mirage_core.planner.wanted import GpuWanted, ModelWanted, Question
from mirage_core.policy.cluster.fit import need_bytes, unclaimed_bytes
from mirage_core.policy.cluster.placement import place_model
from mirage_core.policy.cluster.ranks import rank_models
from mirage_core.policy.cluster.view import ClusterDevice, HeldModel, Standing
from mirage_core.sizing.hardware import GIGA, Hardware
from mirage_core.sizing.model import ModelSizing


@dataclass(frozen=True, slots=True)
class Tenant:
    """One model on one GPU: what its weights and its KV pool may take there together."""

    wanted: ModelWanted
    sizing: ModelSizing
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """One GPU and the models placed on it, in the order in which they were asked for."""

    name: str
    hardware: Hardware
    usable_bytes: int
    price_per_hour: float | None
    tenants: tuple[Tenant, ...]

    @property
    def claimed_bytes(self) -> int:
        """What the models share: pages that MIRAGE may move between them."""
        return sum(tenant.size_bytes for tenant in self.tenants)


def place(question: Question) -> list[PlacedGpu]:
    """Place all models, or raise ConfigError that names the one that has no room, and its line."""
    devices = {device.device: device for device in _devices(question)}
    places = {model.label: index for index, (model, _) in enumerate(question.models)}
    wishes = []
    for index, (model, sizing) in enumerate(question.models):
        try:
            wishes.append(_wish(question, model, sizing))
        except ConfigError as error:
            raise question.fault(error, "models", index) from None
    for wish in rank_models(wishes):
        placed = place_model(wish, devices, (), idle_before_s=0.0)
        if placed.missing:
            raise question.fault(ConfigError(_why(wish, devices)), "models", places[wish.name])
        held = HeldModel(wish.name, wish.priority, need_bytes(wish.spec))
        for device in placed.devices:
            devices[device] = replace(devices[device], held=(*devices[device].held, held))
    return [_placed(question, device, index) for index, device in enumerate(devices.values())]


def _devices(question: Question) -> Iterator[ClusterDevice]:
    number = 0
    for wanted, hardware in question.gpus:
        for index in range(wanted.count):
            yield ClusterDevice(
                device=DeviceId(f"gpu {number}"),
                node=NodeName(f"{hardware.name} {index // wanted.per_node}"),
                size_bytes=int(hardware.hbm_bytes * question.wanted.usable_share),
                standing=Standing.OPEN,
            )
            number += 1


def _wish(question: Question, model: ModelWanted, sizing: ModelSizing) -> ModelWish:
    """What the controller would be told: weights, and a pool without which the model is no use."""
    pool_bytes = least_pool_bytes(question, sizing)
    if model.share is not None:
        smallest = min(hardware.hbm_bytes for _, hardware in question.gpus)
        given_bytes = int(model.share * smallest)
        if given_bytes < sizing.weight_bytes + pool_bytes:
            raise ConfigError(
                f"{model.label}: a share of {model.share:g} is {gigabytes(given_bytes)}; weights"
                f" take {gigabytes(sizing.weight_bytes)} and a request of"
                f" {request_tokens(question, sizing)} tokens {gigabytes(pool_bytes)}: give it more,"
                " or lower longest_tokens"
            )
        pool_bytes = given_bytes - sizing.weight_bytes
    return ModelWish(
        name=ModelName(model.label),
        uid=ModelUid(model.label),
        weights_digest="",
        spec=ModelSpec(
            weights_bytes=sizing.weight_bytes * model.ranks,
            kv_bytes_per_token=sizing.kv_bytes_per_token * model.ranks,
            min_pool_bytes=pool_bytes * model.ranks,
            devices_per_replica=model.ranks,
        ),
        priority=model.priority,
        placement=Placement(replicas=model.replicas),
    )


def request_tokens(question: Question, sizing: ModelSizing) -> int:
    """Tokens of the longest request that the model is to serve."""
    return min(question.wanted.longest_tokens, sizing.context_tokens or 1 << 62)


def least_pool_bytes(question: Question, sizing: ModelSizing) -> int:
    """A KV pool that holds one longest request; vLLM's null block comes on top."""
    tokens = request_tokens(question, sizing)
    block_tokens = question.wanted.block_tokens
    return sizing.request_bytes(tokens, block_tokens) + sizing.kv_block_bytes(block_tokens)


def _placed(question: Question, device: ClusterDevice, index: int) -> PlacedGpu:
    wanted, hardware = _kinds(question)[index]
    models = [
        (model, sizing) for model, sizing in question.models if device.holds(ModelName(model.label))
    ]
    shareless = sum(model.share is None for model, _ in models)
    extra_bytes = unclaimed_bytes(device) // shareless if shareless else 0
    claims = {each.model: each.need_bytes for each in device.held}
    return PlacedGpu(
        name=str(device.device),
        hardware=hardware,
        usable_bytes=device.size_bytes,
        price_per_hour=wanted.price_per_hour,
        tenants=tuple(
            Tenant(
                model,
                sizing,
                claims[ModelName(model.label)] + (extra_bytes if model.share is None else 0),
            )
            for model, sizing in models
        ),
    )


def _kinds(question: Question) -> list[tuple[GpuWanted, Hardware]]:
    return [kind for kind in question.gpus for _ in range(kind[0].count)]


def _why(wish: ModelWish, devices: dict[DeviceId, ClusterDevice]) -> str:
    gpus = "a GPU" if wish.spec.devices_per_replica == 1 else "each of its GPUs"
    left = ", ".join(
        f"{device.device} ({device.node}) {gigabytes(unclaimed_bytes(device))}"
        for device in devices.values()
    )
    return (
        f"{wish.name} has no room: it needs {gigabytes(need_bytes(wish.spec))} of {gpus}, and what"
        f" models may still take is {left}: add GPUs, lower a share, or raise usable_share"
    )


def gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / GIGA:.1f} GB"
