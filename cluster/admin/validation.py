"""What is wrong with a wish that no codec can tell: each fault with the path of its field."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.records import MAX_SUBJECT_BYTES
from cluster.rpc.errors import Violation, invalid
from mirage_core.cluster_model import ModelState, ModelWish


def check_model(wish: ModelWish, path: str = "wish") -> None:
    """Raises ApiError (INVALID_ARGUMENT) with all faults at once."""
    faults = tuple(_model_faults(wish, path))
    if faults:
        raise invalid(*faults)


def _model_faults(wish: ModelWish, path: str) -> Iterator[Violation]:
    devices = wish.placement.devices
    names: dict[str, str] = {f"{path}.name": wish.name}
    names.update((f"{path}.placement.devices[{i}]", d) for i, d in enumerate(devices))
    for at, name in names.items():
        if len(name.encode(errors="replace")) > MAX_SUBJECT_BYTES:
            yield Violation(at, f"is longer than {MAX_SUBJECT_BYTES} bytes")
    if not wish.weights_digest:
        yield Violation(f"{path}.weights_digest", "must be set: it says which weights these are")
    if wish.spec.weights_bytes == 0:
        yield Violation(f"{path}.spec.weights_bytes", "must be above 0")
    if wish.state is ModelState.ABSENT:
        yield Violation(f"{path}.state", "must not be ABSENT: use DeleteModel")
    if wish.floor_bytes is not None and wish.floor_bytes > wish.spec.weights_bytes:
        yield Violation(f"{path}.floor_bytes", "must not exceed spec.weights_bytes")
    least_bytes, at = wish.lending.at_least_bytes, f"{path}.lending.at_least_bytes"
    if least_bytes > wish.spec.weights_bytes - (wish.floor_bytes or 0):
        yield Violation(at, "must not exceed spec.weights_bytes less floor_bytes")
    if least_bytes and wish.pinned:
        yield Violation(at, "must be 0 of a model that is pinned: unpin it, or let it lend nothing")
    size = wish.spec.devices_per_replica
    if devices and len(devices) % size:
        yield Violation(
            f"{path}.placement.devices",
            f"must be a multiple of spec.devices_per_replica, {size}",
        )
