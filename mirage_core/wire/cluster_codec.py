"""Wishes, status, directives and events between ``cluster_model`` and common.proto.

Decoding is strict: whatever a message holds, the result is a well-formed value or FieldError.
Encoding trusts the caller, who is ours.  ``agent_codec`` has what only the agents' stream carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mirage_core.cluster_model import (
    FREE_LENDING,
    Acknowledgement,
    Authority,
    ClusterWish,
    Condition,
    DeviceWish,
    DirectDevice,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveKey,
    DirectLending,
    DirectModel,
    DirectPlacement,
    Event,
    Lending,
    ModelSpec,
    ModelState,
    ModelUid,
    ModelWish,
    NodeName,
    NodeWish,
    Outcome,
    Placement,
    Severity,
    Sharing,
    Status,
    StoreIncarnation,
    Truth,
    Turn,
)
from mirage_core.model import DeviceId, ModelName
from mirage_core.wire.fields import (
    FieldError,
    bounded,
    optional,
    read_count,
    read_enum,
    read_name,
    read_number,
    read_text,
)
from mirage_core.wire.v1 import common_pb2 as pb

MAX_BYTES = 1 << 50
"""Largest size in bytes that a field may state: a petabyte."""
MAX_REVISION = (1 << 63) - 1
MAX_REPLICAS = 1 << 16
MAX_PLACEMENT_DEVICES = 4096
MAX_PLACED_MODELS = 4096
MAX_CONDITIONS = 64
MAX_ATTRIBUTES = 64

_STATE_OF = {
    ModelState.ACTIVE: pb.MODEL_STATE_ACTIVE,
    ModelState.INACTIVE: pb.MODEL_STATE_INACTIVE,
    ModelState.ABSENT: pb.MODEL_STATE_ABSENT,
}
_SHARING_OF = {
    Sharing.TEMPORAL: pb.SHARING_MODE_TEMPORAL,
    Sharing.SPATIAL: pb.SHARING_MODE_SPATIAL,
}
_TRUTH_OF = {
    Truth.TRUE: pb.TRUTH_TRUE,
    Truth.FALSE: pb.TRUTH_FALSE,
    Truth.UNKNOWN: pb.TRUTH_UNKNOWN,
}
_TURN_OF = {
    Turn.ACTIVE: pb.TURN_ACTIVE,
    Turn.INACTIVE: pb.TURN_INACTIVE,
    Turn.DRAINING: pb.TURN_DRAINING,
}
_OUTCOME_OF = {
    Outcome.ACCEPTED: pb.DIRECTIVE_OUTCOME_ACCEPTED,
    Outcome.APPLIED: pb.DIRECTIVE_OUTCOME_APPLIED,
    Outcome.STALE: pb.DIRECTIVE_OUTCOME_STALE,
    Outcome.REFUSED: pb.DIRECTIVE_OUTCOME_REFUSED,
}
_SEVERITY_OF = {
    Severity.INFO: pb.SEVERITY_INFO,
    Severity.WARNING: pb.SEVERITY_WARNING,
}
_STATES: Mapping[int, ModelState] = {value: member for member, value in _STATE_OF.items()}
_SHARINGS: Mapping[int, Sharing] = {value: member for member, value in _SHARING_OF.items()}
_TRUTHS: Mapping[int, Truth] = {value: member for member, value in _TRUTH_OF.items()}
_TURNS: Mapping[int, Turn] = {value: member for member, value in _TURN_OF.items()}
_OUTCOMES: Mapping[int, Outcome] = {value: member for member, value in _OUTCOME_OF.items()}
_SEVERITIES: Mapping[int, Severity] = {value: member for member, value in _SEVERITY_OF.items()}


# ---- wishes


def encode_model_wish(wish: ModelWish) -> pb.ModelWish:
    return pb.ModelWish(
        name=wish.name,
        uid=wish.uid,
        weights_digest=wish.weights_digest,
        spec=pb.ModelSpec(
            weights_bytes=wish.spec.weights_bytes,
            kv_bytes_per_token=wish.spec.kv_bytes_per_token,
            min_pool_bytes=wish.spec.min_pool_bytes,
            devices_per_replica=wish.spec.devices_per_replica,
        ),
        priority=wish.priority,
        floor_bytes=wish.floor_bytes,
        pinned=wish.pinned,
        state=_STATE_OF[wish.state],
        placement=pb.Placement(devices=wish.placement.devices, replicas=wish.placement.replicas),
        lending=None if wish.lending == FREE_LENDING else _encode_lending(wish.lending),
    )


def _encode_lending(lending: Lending) -> pb.LendingBounds:
    return pb.LendingBounds(
        at_least_bytes=lending.at_least_bytes, at_most_bytes=lending.at_most_bytes
    )


def decode_lending(message: Any, path: str) -> Lending:
    """Of any message with two bounds; one that is not set is free."""
    least = _bytes(message.at_least_bytes, f"{path}.at_least_bytes")
    most = _optional_bytes(optional(message, "at_most_bytes"), f"{path}.at_most_bytes")
    if most is not None and most < least:
        raise FieldError(f"{path}.at_most_bytes", "is below at_least_bytes")
    return Lending(least, most)


def decode_model_wish(message: Any, path: str = "wish") -> ModelWish:
    """An unspecified state is ACTIVE; 0 replicas and 0 devices a replica are 1."""
    spec, placement = message.spec, message.placement
    devices = tuple(
        DeviceId(read_name(device, at))
        for device, at in bounded(
            placement.devices, f"{path}.placement.devices", MAX_PLACEMENT_DEVICES
        )
    )
    if len(set(devices)) != len(devices):
        raise FieldError(f"{path}.placement.devices", "names a device twice")
    state = message.state or pb.MODEL_STATE_ACTIVE
    kv_bytes_per_token = optional(spec, "kv_bytes_per_token")
    floor_bytes = optional(message, "floor_bytes")
    return ModelWish(
        name=ModelName(read_name(message.name, f"{path}.name")),
        uid=ModelUid(read_text(message.uid, f"{path}.uid", 64)),
        weights_digest=_read_digest(message.weights_digest, f"{path}.weights_digest"),
        spec=ModelSpec(
            weights_bytes=_bytes(spec.weights_bytes, f"{path}.spec.weights_bytes"),
            kv_bytes_per_token=_optional_bytes(
                kv_bytes_per_token, f"{path}.spec.kv_bytes_per_token"
            ),
            min_pool_bytes=_bytes(spec.min_pool_bytes, f"{path}.spec.min_pool_bytes"),
            devices_per_replica=read_count(
                spec.devices_per_replica or 1,
                f"{path}.spec.devices_per_replica",
                MAX_PLACEMENT_DEVICES,
            ),
        ),
        priority=message.priority,
        floor_bytes=_optional_bytes(floor_bytes, f"{path}.floor_bytes"),
        pinned=message.pinned,
        state=read_enum(state, _STATES, f"{path}.state"),
        placement=Placement(
            devices,
            read_count(placement.replicas or 1, f"{path}.placement.replicas", MAX_REPLICAS),
        ),
        lending=decode_lending(message.lending, f"{path}.lending"),
    )


def encode_device_wish(wish: DeviceWish) -> pb.DeviceWish:
    return pb.DeviceWish(device=wish.device, drain=wish.drain, sharing=_SHARING_OF[wish.sharing])


def decode_device_wish(message: Any, path: str = "wish") -> DeviceWish:
    """An unspecified sharing mode is SPATIAL."""
    return DeviceWish(
        DeviceId(read_name(message.device, f"{path}.device")),
        message.drain,
        decode_sharing(message.sharing or pb.SHARING_MODE_SPATIAL, f"{path}.sharing"),
    )


def decode_sharing(value: int, path: str) -> Sharing:
    return read_enum(value, _SHARINGS, path)


def encode_node_wish(wish: NodeWish) -> pb.NodeWish:
    return pb.NodeWish(node=wish.node, drain=wish.drain)


def decode_node_wish(message: Any, path: str = "wish") -> NodeWish:
    return NodeWish(NodeName(read_name(message.node, f"{path}.node")), message.drain)


def encode_cluster_wish(wish: ClusterWish) -> pb.ClusterWish:
    return pb.ClusterWish(freeze=wish.freeze, shadow=wish.shadow)


def decode_cluster_wish(message: Any) -> ClusterWish:
    return ClusterWish(message.freeze, message.shadow)


# ---- status


def encode_status(status: Status) -> pb.Status:
    return pb.Status(
        desired_revision=status.desired_revision,
        observed_revision=status.observed_revision,
        conditions=[
            pb.Condition(
                kind=each.kind,
                status=_TRUTH_OF[each.status],
                reason=each.reason,
                message=each.message,
                observed_revision=each.observed_revision,
                changed_unix_s=each.changed_unix_s,
            )
            for each in status.conditions
        ],
    )


def decode_status(message: Any, path: str = "status") -> Status:
    return Status(
        message.desired_revision,
        optional(message, "observed_revision"),
        tuple(
            Condition(
                read_name(each.kind, f"{at}.kind"),
                read_enum(each.status, _TRUTHS, f"{at}.status"),
                read_name(each.reason, f"{at}.reason"),
                read_text(each.message, f"{at}.message"),
                each.observed_revision,
                read_number(each.changed_unix_s, f"{at}.changed_unix_s"),
            )
            for each, at in bounded(message.conditions, f"{path}.conditions", MAX_CONDITIONS)
        ),
    )


# ---- directives


def encode_authority(authority: Authority | None) -> pb.Authority | None:
    if authority is None:
        return None
    return pb.Authority(
        store_incarnation=authority.store, epoch=authority.epoch, revision=authority.revision
    )


def decode_authority(message: Any, path: str) -> Authority:
    return Authority(
        StoreIncarnation(read_name(message.store_incarnation, f"{path}.store_incarnation")),
        read_count(message.epoch, f"{path}.epoch", MAX_REVISION),
        read_count(message.revision, f"{path}.revision", MAX_REVISION),
    )


def decode_optional_authority(message: Any, name: str, path: str) -> Authority | None:
    if not message.HasField(name):
        return None
    return decode_authority(getattr(message, name), f"{path}.{name}")


def encode_directive(directive: Directive) -> pb.Directive:
    message = pb.Directive(
        operation_id=directive.operation,
        authority=encode_authority(directive.authority),
        traceparent=directive.traceparent,
    )
    match directive.body:
        case DirectModel() as body:
            message.model.CopyFrom(
                pb.ModelDirective(
                    model=body.model,
                    priority=body.priority,
                    floor_bytes=body.floor_bytes,
                    pinned=body.pinned,  # type: ignore[arg-type]  # None is not set
                    turn=_TURN_OF[body.turn] if body.turn is not None else pb.TURN_UNSPECIFIED,
                )
            )
        case DirectLending() as body:
            message.lending.CopyFrom(
                pb.LendingDirective(
                    model=body.model,
                    at_least_bytes=body.at_least_bytes,
                    at_most_bytes=body.at_most_bytes,
                )
            )
        case DirectDevice() as body:
            message.device.CopyFrom(
                pb.DeviceDirective(
                    sharing=_SHARING_OF[body.sharing],
                    drain=body.drain,
                    freeze=body.freeze,
                    shadow=body.shadow,
                )
            )
        case DirectPlacement() as body:
            message.placement.CopyFrom(pb.PlacementDirective(models=body.models))
    return message


def decode_directive(message: Any, path: str = "directive") -> Directive:
    return Directive(
        DirectiveId(read_name(message.operation_id, f"{path}.operation_id")),
        decode_authority(message.authority, f"{path}.authority"),
        _decode_body(message, path),
        read_text(message.traceparent, f"{path}.traceparent", 128),
    )


def _decode_body(message: Any, path: str) -> DirectiveBody:
    match message.WhichOneof("body"):
        case "model":
            model, at = message.model, f"{path}.model"
            turn = read_enum(model.turn, _TURNS, f"{at}.turn") if model.turn else None
            return DirectModel(
                ModelName(read_name(model.model, f"{at}.model")),
                optional(model, "priority"),
                _optional_bytes(optional(model, "floor_bytes"), f"{at}.floor_bytes"),
                optional(model, "pinned"),
                turn,
            )
        case "lending":
            at = f"{path}.lending"
            name = ModelName(read_name(message.lending.model, f"{at}.model"))
            bounds = decode_lending(message.lending, at)
            return DirectLending(name, bounds.at_least_bytes, bounds.at_most_bytes)
        case "device":
            device = message.device
            return DirectDevice(
                decode_sharing(device.sharing or pb.SHARING_MODE_SPATIAL, f"{path}.device.sharing"),
                device.drain,
                device.freeze,
                device.shadow,
            )
        case "placement":
            names = bounded(message.placement.models, f"{path}.placement.models", MAX_PLACED_MODELS)
            return DirectPlacement(tuple(ModelName(read_name(name, at)) for name, at in names))
    raise FieldError(path, "has no body that this version knows")


def encode_outcome(outcome: Outcome | None) -> pb.DirectiveOutcome:
    """None: not answered yet."""
    return pb.DIRECTIVE_OUTCOME_UNSPECIFIED if outcome is None else _OUTCOME_OF[outcome]


def encode_acknowledgement(answer: Acknowledgement) -> pb.Acknowledgement:
    return pb.Acknowledgement(
        operation_id=answer.operation,
        key=answer.key,
        authority=encode_authority(answer.authority),
        outcome=_OUTCOME_OF[answer.outcome],
        reason=answer.reason,
        retryable=answer.retryable,
        latest=encode_authority(answer.latest),
    )


def decode_acknowledgement(message: Any, path: str = "acknowledgement") -> Acknowledgement:
    return Acknowledgement(
        DirectiveId(read_name(message.operation_id, f"{path}.operation_id")),
        DirectiveKey(read_name(message.key, f"{path}.key")),
        decode_authority(message.authority, f"{path}.authority"),
        read_enum(message.outcome, _OUTCOMES, f"{path}.outcome"),
        read_text(message.reason, f"{path}.reason"),
        message.retryable,
        decode_optional_authority(message, "latest", path),
    )


# ---- events


def encode_event(event: Event) -> pb.Event:
    return pb.Event(
        sequence=event.sequence,
        kind=event.kind,
        subject=event.subject,
        message=event.message,
        at_unix_s=event.at_unix_s,
        severity=_SEVERITY_OF[event.severity],
        actor=event.actor,
        attributes=dict(event.attributes),
        traceparent=event.traceparent,
    )


def decode_event(message: Any, path: str = "event") -> Event:
    return Event(
        kind=read_name(message.kind, f"{path}.kind"),
        subject=read_name(message.subject, f"{path}.subject"),
        message=read_text(message.message, f"{path}.message"),
        at_unix_s=read_number(message.at_unix_s, f"{path}.at_unix_s"),
        severity=read_enum(message.severity, _SEVERITIES, f"{path}.severity"),
        actor=read_text(message.actor, f"{path}.actor"),
        attributes=_decode_attributes(message.attributes.items(), f"{path}.attributes"),
        traceparent=read_text(message.traceparent, f"{path}.traceparent", 128),
        sequence=message.sequence,
    )


def _decode_attributes(items: Iterable[tuple[str, str]], path: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (read_name(name, at), read_text(value, f"{path}[{name}]"))
            for (name, value), at in bounded(items, path, MAX_ATTRIBUTES)
        )
    )


# ---- parts


def _bytes(value: int, path: str) -> int:
    return read_count(value, path, MAX_BYTES)


def _optional_bytes(value: int | None, path: str) -> int | None:
    return None if value is None else _bytes(value, path)


def _read_digest(value: str, path: str) -> str:
    if len(value) > 128 or not all(each in "0123456789abcdef" for each in value):
        raise FieldError(path, "must be hexadecimal in lower case")
    return value
