"""What the controller keeps in the store: wishes and directives, as messages of common.proto.

model/NAME  device/ID  node/NAME  cluster/cluster   wishes
directive/DEVICE/KEY                                directives; the record's revision is theirs
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from cluster.store.port import Record
from mirage_core.cluster_model import (
    Authority,
    ClusterWish,
    DeviceWish,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveKey,
    ModelWish,
    NodeWish,
    Revised,
    StoreIncarnation,
    Wish,
)
from mirage_core.errors import ProtocolError
from mirage_core.model import DeviceId
from mirage_core.wire import cluster_codec as codec
from mirage_core.wire.fields import FieldError, read_name
from mirage_core.wire.v1 import common_pb2 as pb

MODEL, DEVICE, NODE, CLUSTER, DIRECTIVE = "model", "device", "node", "cluster", "directive"
WISH_KINDS = (MODEL, DEVICE, NODE, CLUSTER)

MAX_SUBJECT_BYTES = 200
"""Of a model's, device's or node's name: two of them and a key name a directive's record."""

_M = TypeVar("_M")


def read_subject(name: str, path: str) -> str:
    """A name that a record may have; FieldError names its field."""
    read_name(name, path)
    if len(name.encode(errors="replace")) > MAX_SUBJECT_BYTES:
        raise FieldError(path, f"is longer than {MAX_SUBJECT_BYTES} bytes")
    return name


def subject_of(wish: Wish) -> tuple[str, str]:
    """(kind, name) of the record that holds a wish."""
    match wish:
        case ModelWish():
            return MODEL, wish.name
        case DeviceWish():
            return DEVICE, wish.device
        case NodeWish():
            return NODE, wish.node
        case ClusterWish():
            return CLUSTER, CLUSTER


def encode_wish(wish: Wish) -> bytes:
    match wish:
        case ModelWish():
            return codec.encode_model_wish(wish).SerializeToString()
        case DeviceWish():
            return codec.encode_device_wish(wish).SerializeToString()
        case NodeWish():
            return codec.encode_node_wish(wish).SerializeToString()
        case ClusterWish():
            return codec.encode_cluster_wish(wish).SerializeToString()


def decode_wish(record: Record) -> Revised[Any]:
    """Raises ProtocolError if this version cannot read it."""
    wish: Wish
    match record.kind:
        case "model":
            wish = codec.decode_model_wish(_parse(record, pb.ModelWish()))
        case "device":
            wish = codec.decode_device_wish(_parse(record, pb.DeviceWish()))
        case "node":
            wish = codec.decode_node_wish(_parse(record, pb.NodeWish()))
        case _:
            wish = codec.decode_cluster_wish(_parse(record, pb.ClusterWish()))
    return Revised(wish, record.revision, record.actor, record.unix_ms / 1000)


def directive_name(device: DeviceId, key: DirectiveKey) -> str:
    return f"{device}/{key}"


def encode_directive(
    operation: DirectiveId, body: DirectiveBody, store: StoreIncarnation, epoch: int, trace: str
) -> bytes:
    """A directive before its write: its revision is not known, and is the record's."""
    directive = Directive(operation, Authority(store, epoch, 0), body, trace)
    return codec.encode_directive(directive).SerializeToString()


def decode_directive(record: Record) -> tuple[DeviceId, Directive]:
    """Raises ProtocolError if this version cannot read it."""
    stored = codec.decode_directive(_parse(record, pb.Directive()))
    authority = Authority(stored.authority.store, stored.authority.epoch, record.revision)
    device = record.name.removesuffix(f"/{stored.key}")
    return DeviceId(device), Directive(stored.operation, authority, stored.body, stored.traceparent)


def _parse(record: Record, message: _M) -> _M:
    try:
        message.ParseFromString(record.payload)  # type: ignore[attr-defined]
    except DecodeError:
        raise ProtocolError(f"{record.kind}/{record.name} holds no such message") from None
    return message
