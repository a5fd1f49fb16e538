"""Whether a model fits on a device.

An engine claims the pages of all its weights when it starts, and lends them only afterwards; and
every model there must be able to come back at once.  So what a device can hold is bounded by full
weights and least pools: what remapping gains is KV cache, not room for more models.
"""

from __future__ import annotations

from mirage_core.cluster_model import ModelSpec
from mirage_core.model import ModelName
from mirage_core.policy.cluster.view import ClusterDevice, Standing


def need_bytes(spec: ModelSpec) -> int:
    """What one device of a replica must hold, rounded up."""
    return -(-(spec.weights_bytes + spec.min_pool_bytes) // spec.devices_per_replica)


def unclaimed_bytes(device: ClusterDevice) -> int:
    """What no model here claims; below 0 when an operator named more models than fit."""
    return device.size_bytes - sum(each.need_bytes for each in device.held)


def can_take(device: ClusterDevice, model: ModelName, need: int) -> bool:
    """Whether a replica's share of ``need`` bytes may be placed here anew."""
    return (
        device.standing is Standing.OPEN
        and not device.holds(model)
        and unclaimed_bytes(device) >= need
    )
