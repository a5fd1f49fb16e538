"""What the agents' stream carries, between ``cluster_model`` and agent.proto.

Strict as ``cluster_codec``.  An Authority, a Directive and what else both streams know is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_core.cluster_model import (
    AgentHello,
    AgentIncarnation,
    DecisionInput,
    DeviceObservation,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    Effect,
    EngineObservation,
    Explanation,
    LeaderWelcome,
    MoveChosen,
    NodeName,
    ObservationDelta,
    RuleTried,
    StoreIncarnation,
)
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.wire.cluster_codec import (
    MAX_BYTES,
    MAX_PLACED_MODELS,
    decode_authority,
    decode_directive,
    decode_optional_authority,
    encode_authority,
    encode_directive,
)
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
from mirage_core.wire.v1 import agent_pb2, common_pb2

MAX_ENGINES = 1024
MAX_HELD = 2 * MAX_PLACED_MODELS + 2
MAX_RETIRED = 1024
MAX_REASONS = 4096
MAX_PAGES = 1 << 32

_EFFECT_OF = {
    Effect.PERFORMED: common_pb2.DECISION_EFFECT_PERFORMED,
    Effect.SHADOWED: common_pb2.DECISION_EFFECT_SHADOWED,
    Effect.FROZEN: common_pb2.DECISION_EFFECT_FROZEN,
}
_EFFECTS: Mapping[int, Effect] = {value: member for member, value in _EFFECT_OF.items()}


# ---- greeting


def encode_hello(hello: AgentHello) -> agent_pb2.AgentHello:
    return agent_pb2.AgentHello(
        protocol_version=hello.protocol_version,
        node=hello.node,
        device=hello.device,
        incarnation=hello.incarnation,
        page_bytes=hello.page_bytes,
        pages=hello.pages,
        host_link=hello.host_link,
        capabilities=hello.capabilities,
        latest=encode_authority(hello.latest),
        held=[
            agent_pb2.HeldDirective(key=key, operation_id=operation)
            for key, operation in hello.held
        ],
    )


def decode_hello(message: Any, path: str = "hello") -> AgentHello:
    """Any protocol version: whether it can be spoken is the leader's to say."""
    if not message.page_bytes or not message.pages:
        raise FieldError(f"{path}.pages", "a device has pages of some bytes")
    return AgentHello(
        node=NodeName(read_name(message.node, f"{path}.node")),
        device=DeviceId(read_name(message.device, f"{path}.device")),
        incarnation=AgentIncarnation(read_name(message.incarnation, f"{path}.incarnation")),
        page_bytes=read_count(message.page_bytes, f"{path}.page_bytes", MAX_BYTES),
        pages=read_count(message.pages, f"{path}.pages", MAX_PAGES),
        host_link=read_text(message.host_link, f"{path}.host_link"),
        capabilities=tuple(
            read_name(each, at)
            for each, at in bounded(message.capabilities, f"{path}.capabilities", 64)
        ),
        protocol_version=message.protocol_version,
        latest=decode_optional_authority(message, "latest", path),
        held=tuple(
            (
                DirectiveKey(read_name(each.key, f"{at}.key")),
                DirectiveId(read_name(each.operation_id, f"{at}.operation_id")),
            )
            for each, at in bounded(message.held, f"{path}.held", MAX_HELD)
        ),
    )


def encode_welcome(welcome: LeaderWelcome) -> agent_pb2.AgentWelcome:
    return agent_pb2.AgentWelcome(
        protocol_version=welcome.protocol_version,
        authority=encode_authority(welcome.authority),
        leader=welcome.leader,
        heartbeat_s=welcome.heartbeat_s,
        report_interval_s=welcome.report_interval_s,
        retired_store_incarnations=welcome.retired,
    )


def decode_welcome(message: Any, path: str = "welcome") -> LeaderWelcome:
    for name in ("heartbeat_s", "report_interval_s"):
        if not 0.01 <= getattr(message, name) <= 3600:
            raise FieldError(f"{path}.{name}", "must be from 0.01 to 3600")
    return LeaderWelcome(
        authority=decode_authority(message.authority, f"{path}.authority"),
        leader=read_text(message.leader, f"{path}.leader"),
        heartbeat_s=message.heartbeat_s,
        report_interval_s=message.report_interval_s,
        protocol_version=message.protocol_version,
        retired=tuple(
            StoreIncarnation(read_name(each, at))
            for each, at in bounded(
                message.retired_store_incarnations,
                f"{path}.retired_store_incarnations",
                MAX_RETIRED,
            )
        ),
    )


def encode_directive_snapshot(snapshot: DirectiveSnapshot) -> agent_pb2.DirectiveSnapshot:
    return agent_pb2.DirectiveSnapshot(
        authority=encode_authority(snapshot.authority),
        directives=[encode_directive(each) for each in snapshot.directives],
    )


def decode_directive_snapshot(message: Any, path: str = "directives") -> DirectiveSnapshot:
    directives = tuple(
        decode_directive(each, at)
        for each, at in bounded(message.directives, f"{path}.directives", MAX_HELD)
    )
    if len({each.key for each in directives}) != len(directives):
        raise FieldError(f"{path}.directives", "has a key twice")
    return DirectiveSnapshot(decode_authority(message.authority, f"{path}.authority"), directives)


# ---- observations


def encode_engine(engine: EngineObservation) -> common_pb2.EngineObservation:
    return common_pb2.EngineObservation(
        engine_id=engine.engine,
        model=engine.model,
        resident_pages=engine.resident_pages,
        slot_pages=engine.slot_pages,
        pool_pages=engine.pool_pages,
        spare_pages=engine.spare_pages,
        in_flight_pages=engine.in_flight_pages,
        waiting_pages=engine.waiting_pages,
        active=engine.active,  # type: ignore[arg-type]  # None is not set
        priority=engine.priority,
        pinned=engine.pinned,  # type: ignore[arg-type]
        units=engine.units,
        cycled_units=engine.cycled_units,
        unit_pages=engine.unit_pages,
        lent_pages=engine.lent_pages,
        free_kv_tokens=engine.free_kv_tokens,
        running_requests=engine.running_requests,
        waiting_requests=engine.waiting_requests,
        preemptions=engine.preemptions,
    )


def _decode_engine(message: Any, path: str) -> EngineObservation:
    for name in ("resident_pages", "slot_pages", "pool_pages", "spare_pages", "in_flight_pages"):
        read_count(getattr(message, name), f"{path}.{name}", MAX_PAGES)
    return EngineObservation(
        engine=EngineId(read_name(message.engine_id, f"{path}.engine_id")),
        model=ModelName(read_name(message.model, f"{path}.model")),
        resident_pages=message.resident_pages,
        slot_pages=message.slot_pages,
        pool_pages=message.pool_pages,
        spare_pages=message.spare_pages,
        in_flight_pages=message.in_flight_pages,
        waiting_pages=read_count(message.waiting_pages, f"{path}.waiting_pages", MAX_PAGES),
        active=optional(message, "active"),
        priority=optional(message, "priority"),
        pinned=optional(message, "pinned"),
        units=optional(message, "units"),
        cycled_units=optional(message, "cycled_units"),
        unit_pages=optional(message, "unit_pages"),
        lent_pages=optional(message, "lent_pages"),
        free_kv_tokens=optional(message, "free_kv_tokens"),
        running_requests=optional(message, "running_requests"),
        waiting_requests=optional(message, "waiting_requests"),
        preemptions=optional(message, "preemptions"),
    )


def encode_observation(device: DeviceObservation) -> common_pb2.DeviceObservation:
    return common_pb2.DeviceObservation(
        sequence=device.sequence,
        free_pages=device.free_pages,
        coming_pages=device.coming_pages,
        engines=[encode_engine(each) for each in device.engines],
    )


def decode_observation(message: Any, path: str = "snapshot") -> DeviceObservation:
    engines = tuple(
        _decode_engine(each, at)
        for each, at in bounded(message.engines, f"{path}.engines", MAX_ENGINES)
    )
    if len({each.engine for each in engines}) != len(engines):
        raise FieldError(f"{path}.engines", "has an engine twice")
    return DeviceObservation(
        message.sequence,
        read_count(message.free_pages, f"{path}.free_pages", MAX_PAGES),
        read_count(message.coming_pages, f"{path}.coming_pages", MAX_PAGES),
        engines,
    )


def encode_delta(delta: ObservationDelta) -> common_pb2.ObservationDelta:
    return common_pb2.ObservationDelta(
        sequence=delta.sequence,
        free_pages=delta.free_pages,
        coming_pages=delta.coming_pages,
        changed=[encode_engine(each) for each in delta.changed],
        gone_engine_ids=delta.gone,
    )


def decode_delta(message: Any, path: str = "delta") -> ObservationDelta:
    return ObservationDelta(
        message.sequence,
        read_count(message.free_pages, f"{path}.free_pages", MAX_PAGES),
        read_count(message.coming_pages, f"{path}.coming_pages", MAX_PAGES),
        tuple(
            _decode_engine(each, at)
            for each, at in bounded(message.changed, f"{path}.changed", MAX_ENGINES)
        ),
        tuple(
            EngineId(read_name(each, at))
            for each, at in bounded(message.gone_engine_ids, f"{path}.gone_engine_ids", MAX_ENGINES)
        ),
    )


# ---- explanations


def encode_explanation(explanation: Explanation) -> common_pb2.Explanation:
    return common_pb2.Explanation(
        device=explanation.device,
        number=explanation.number,
        at_unix_s=explanation.at_unix_s,
        effect=_EFFECT_OF[explanation.effect],
        borrower=explanation.borrower or "",
        short_pages=explanation.short_pages,
        free_pages=explanation.free_pages,
        inputs=[
            common_pb2.DecisionInput(
                engine_id=each.engine,
                model=each.model,
                priority=each.priority,
                active=each.active,
                pinned=each.pinned,
                idle_s=each.idle_s,
                pool_pages=each.pool_pages,
                spare_pages=each.spare_pages,
                unit_pages=each.unit_pages,
                lent_pages=each.lent_pages,
                floor_pages=each.floor_pages,
            )
            for each in explanation.inputs
        ],
        rules=[
            common_pb2.RuleTried(
                rule=each.rule,
                engine_id=each.engine or "",
                asked_pages=each.asked_pages,
                given_pages=each.given_pages,
                why=each.why,
            )
            for each in explanation.rules
        ],
        moves=[
            common_pb2.MoveChosen(
                engine_id=each.engine, model=each.model, action=each.action, pages=each.pages
            )
            for each in explanation.moves
        ],
        authority=encode_authority(explanation.authority),
    )


def decode_explanation(message: Any, path: str = "explanation") -> Explanation:
    return Explanation(
        device=DeviceId(read_name(message.device, f"{path}.device")),
        number=message.number,
        at_unix_s=read_number(message.at_unix_s, f"{path}.at_unix_s"),
        effect=read_enum(message.effect, _EFFECTS, f"{path}.effect"),
        borrower=ModelName(read_text(message.borrower, f"{path}.borrower")) or None,
        short_pages=read_count(message.short_pages, f"{path}.short_pages", MAX_PAGES),
        free_pages=read_count(message.free_pages, f"{path}.free_pages", MAX_PAGES),
        inputs=tuple(
            _decode_input(each, at)
            for each, at in bounded(message.inputs, f"{path}.inputs", MAX_ENGINES)
        ),
        rules=tuple(
            RuleTried(
                read_name(each.rule, f"{at}.rule"),
                EngineId(read_text(each.engine_id, f"{at}.engine_id")) or None,
                each.asked_pages,
                each.given_pages,
                read_text(each.why, f"{at}.why"),
            )
            for each, at in bounded(message.rules, f"{path}.rules", MAX_REASONS)
        ),
        moves=tuple(
            MoveChosen(
                EngineId(read_name(each.engine_id, f"{at}.engine_id")),
                ModelName(read_name(each.model, f"{at}.model")),
                read_name(each.action, f"{at}.action"),
                each.pages,
            )
            for each, at in bounded(message.moves, f"{path}.moves", MAX_REASONS)
        ),
        authority=decode_optional_authority(message, "authority", path),
    )


def _decode_input(message: Any, path: str) -> DecisionInput:
    idle_s = optional(message, "idle_s")
    return DecisionInput(
        engine=EngineId(read_name(message.engine_id, f"{path}.engine_id")),
        model=ModelName(read_name(message.model, f"{path}.model")),
        priority=message.priority,
        active=message.active,
        pinned=message.pinned,
        idle_s=None if idle_s is None else read_number(idle_s, f"{path}.idle_s"),
        pool_pages=message.pool_pages,
        spare_pages=message.spare_pages,
        unit_pages=message.unit_pages,
        lent_pages=message.lent_pages,
        floor_pages=message.floor_pages,
    )
