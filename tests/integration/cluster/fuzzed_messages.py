"""Messages for every RPC: bytes that mean nothing, and messages that reach the handlers.

The structure-aware half fills fields by their descriptors from values that are often valid (names
that exist, small numbers) and sometimes at their limits; it is seeded, so a fault comes again.
"""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from mirage_core.wire.v1 import admin_pb2, agent_pb2

NAMES = (
    "chat",
    "chat",
    "chat",
    "code",
    "GPU-1",
    "GPU-2",
    "node-1",
    "",
    "nobody",
    "a" * 300,
    "line\nbreak",
    "ü",
)
TEXTS = (*NAMES, "once", "abcd", "model/chat", "cluster", "MTpjaGF0", "?")
_LARGEST = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
}
_OFTEN_RIGHT = {
    "weights_digest": ("abcd", "abcd", "abcd", "not hexadecimal"),
    "state": (0, 1, 2, 3, 99),
    "uid": ("", "", "", "made up"),
    "expected_revision": (0, 3),
    "weights_bytes": (1, 1, 100, 0, (1 << 64) - 1),
    "devices_per_replica": (0, 1, 1, 2, 9),
    "min_pool_bytes": (0, 1),
    "floor_bytes": (0, 1),
}
_FLOATS = (0.0, 1.0, -1.0, float("nan"), float("inf"))


def methods(service: str) -> list[Any]:
    """Descriptors of a service's methods."""
    module = admin_pb2 if service == "AdminService" else agent_pb2
    return list(module.DESCRIPTOR.services_by_name[service].methods)


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 3, 10, 60, 400)))


def random_message(rng: random.Random, descriptor: Descriptor, depth: int = 0) -> Any:
    message = GetMessageClass(descriptor)()
    if descriptor.name == "ModelWish" and rng.random() < 0.3:
        message.name, message.weights_digest = rng.choice(NAMES), "abcd"
        message.spec.weights_bytes, message.priority = 100, rng.choice((-1, 0, 1))
        return message
    for field in descriptor.fields:
        if depth > 4 or rng.random() < (0.9 if field.name == "expected_revision" else 0.25):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[rng.choice(TEXTS)] = rng.choice(TEXTS)
        elif field.is_repeated:
            for _ in range(rng.choice((0, 0, 1, 2, 5))):
                _add(rng, message, field, depth)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(
                random_message(rng, field.message_type, depth + 1)
            )
        else:
            setattr(message, field.name, _scalar(rng, field))
    return message


def _add(rng: random.Random, message: Any, field: FieldDescriptor, depth: int) -> None:
    items = getattr(message, field.name)
    if field.message_type is not None:
        items.add().CopyFrom(random_message(rng, field.message_type, depth + 1))
    else:
        items.append(_scalar(rng, field))


def _scalar(rng: random.Random, field: FieldDescriptor) -> Any:
    if field.name in _OFTEN_RIGHT:
        return rng.choice(_OFTEN_RIGHT[field.name])
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(NAMES if field.name in ("name", "device", "node", "model") else TEXTS)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([*(each.number for each in field.enum_type.values), 99])
    if field.type in _LARGEST:
        low, high = _LARGEST[field.type]
        return rng.choice((0, 1, 1, 2, 3, 100, low, high))
    return rng.choice(_FLOATS)
