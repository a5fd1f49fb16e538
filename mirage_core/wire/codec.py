"""Packets to messages and back.

Decoding is strict: whatever a packet holds, the result is a well-formed message or ProtocolError,
and no count in a packet makes the decoder work more than its device's pages allow.  Encoding
trusts the caller, who is ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError, Message

from mirage_core.errors import ProtocolError
from mirage_core.model import (
    DeviceGeometry,
    DeviceId,
    EngineId,
    Holdings,
    ModelName,
    OperationId,
    PageId,
    RemapPlan,
    UnitId,
)
from mirage_core.wire import messages as m
from mirage_core.wire.v1 import engine_pb2 as pb

MAX_DEVICE_PAGES = 1 << 22
"""Largest device that the protocol carries: 8 TiB of 2 MiB pages."""
MAX_UNITS = 1 << 16
MAX_NAME_CHARS = 256
MAX_TEXT_CHARS = 4096
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
"""Version, trace, parent span, flags (W3C Trace Context, §3.2)."""

_ROLES = {m.Role.WORKER: pb.ROLE_WORKER, m.Role.SCHEDULER: pb.ROLE_SCHEDULER}
_HOST_COPY_STATES = {
    m.HostCopyState.FILL: pb.HOST_COPY_STATE_FILL,
    m.HostCopyState.READY: pb.HOST_COPY_STATE_READY,
}
_ERROR_CODES = {
    m.ErrorCode.VERSION: pb.ERROR_CODE_VERSION,
    m.ErrorCode.PROTOCOL: pb.ERROR_CODE_PROTOCOL,
    m.ErrorCode.DEVICE_MISMATCH: pb.ERROR_CODE_DEVICE_MISMATCH,
    m.ErrorCode.OWNERSHIP: pb.ERROR_CODE_OWNERSHIP,
}


# ---- parts


def encode_pages(pages: Iterable[PageId]) -> list[Any]:
    """``pages`` as runs, in the order given."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and page == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((page, 1))
    return [pb.PageRun(first=first, count=count) for first, count in runs]


def decode_pages(runs: Iterable[Any], device_pages: int) -> tuple[PageId, ...]:
    """Pages of ``runs``, in the order given; ProtocolError if one repeats or is no page."""
    pages: list[PageId] = []
    for run in runs:
        if run.count == 0:
            raise ProtocolError("a run of no pages")
        if run.first + run.count > device_pages:
            raise ProtocolError(
                f"run {run.first}+{run.count} exceeds the device's {device_pages} pages"
            )
        if len(pages) + run.count > device_pages:
            raise ProtocolError("runs overlap")
        pages.extend(map(PageId, range(run.first, run.first + run.count)))
    if len(set(pages)) != len(pages):
        raise ProtocolError("runs overlap")
    return tuple(pages)


def encode_plan(plan: RemapPlan) -> Any:
    return pb.RemapPlan(slots=[pb.Slot(units=members) for members in plan])


def decode_plan(message: Any) -> RemapPlan:
    """ProtocolError if a unit is in two slots, or a slot's units do not ascend."""
    slots = tuple(tuple(map(UnitId, slot.units)) for slot in message.slots)
    if sum(map(len, slots)) > MAX_UNITS:
        raise ProtocolError(f"a plan over more than {MAX_UNITS} units")
    try:
        return RemapPlan(slots)
    except ValueError as error:
        raise ProtocolError(f"not a plan: {error}") from None


def encode_geometry(geometry: DeviceGeometry) -> Any:
    return pb.DeviceGeometry(
        device_id=geometry.device, page_bytes=geometry.page_bytes, pages=geometry.pages
    )


def decode_geometry(message: Any) -> DeviceGeometry:
    if not 0 < message.pages <= MAX_DEVICE_PAGES:
        raise ProtocolError(f"a device of {message.pages} pages")
    if message.page_bytes == 0 or message.page_bytes % 4096:
        raise ProtocolError(f"pages of {message.page_bytes} bytes")
    return DeviceGeometry(
        DeviceId(_name(message.device_id, "device_id")), message.page_bytes, message.pages
    )


def encode_holdings(holdings: Holdings) -> Any:
    return pb.Holdings(
        unit=encode_pages(holdings.unit),
        slot=encode_pages(holdings.slot),
        pool=encode_pages(holdings.pool),
        in_flight=encode_pages(holdings.in_flight),
    )


def decode_holdings(message: Any, device_pages: int) -> Holdings:
    holdings = Holdings(
        unit=decode_pages(message.unit, device_pages),
        slot=decode_pages(message.slot, device_pages),
        pool=decode_pages(message.pool, device_pages),
        in_flight=decode_pages(message.in_flight, device_pages),
    )
    pages = holdings.all()
    if len(set(pages)) != len(pages):
        raise ProtocolError("holdings name a page twice")
    return holdings


def _name(value: str, field: str) -> str:
    """An identity: it goes into logs, metric labels and the state file."""
    if not value or len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise ProtocolError(f"{field} is not a name: {value[:64]!r}")
    return value


def _digest(value: str, *, optional: bool = False) -> str:
    if not value and optional:
        return value
    if len(value) > MAX_NAME_CHARS or not value or set(value) - set("0123456789abcdef"):
        raise ProtocolError(f"not a digest in lower-case hexadecimal: {value[:64]!r}")
    return value


def _text(value: str) -> str:
    if len(value) > MAX_TEXT_CHARS:
        raise ProtocolError(f"a text of {len(value)} characters")
    return value


def _traceparent(message: Any) -> str:
    """Empty if it is not set, as peers that do not know the field leave it."""
    value: str = message.traceparent
    if message.HasField("traceparent") and not _TRACEPARENT.fullmatch(value):
        raise ProtocolError(f"not a W3C trace context: {value[:64]!r}")
    return value


def _seconds(value: float, field: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise ProtocolError(f"{field} is not a duration: {value}")
    return value


def _times(values: Sequence[float], field: str) -> tuple[float, ...]:
    if len(values) > MAX_UNITS:
        raise ProtocolError(f"{field} of more than {MAX_UNITS} units")
    return tuple(_seconds(value, field) for value in values)


def _count(value: int, field: str) -> int:
    if value == 0:
        raise ProtocolError(f"{field} is 0")
    return value


def _enum(table: Mapping[Any, Any], value: Any, field: str) -> Any:
    for member, number in table.items():
        if number == value:
            return member
    raise ProtocolError(f"{field} has the unknown value {value}")


# ---- engine to agent


def encode_engine_message(message: m.EngineMessage) -> bytes:
    """The packet of a message to the agent."""
    body: Any
    match message:
        case m.Hello():
            body = pb.EngineMessage(
                hello=pb.Hello(
                    protocol_version=message.protocol_version,
                    role=_ROLES[message.role],
                    engine_id=message.engine,
                    model_name=message.model,
                    weights_digest=message.weights_digest,
                )
            )
        case m.Take():
            body = pb.EngineMessage(
                take=pb.Take(request_id=message.request_id, pages=message.pages)
            )
        case m.OpenHostCopy():
            body = pb.EngineMessage(
                open_host_copy=pb.OpenHostCopy(
                    weights_digest=message.weights_digest, size_bytes=message.size_bytes
                )
            )
        case m.HostCopyFilled():
            body = pb.EngineMessage(
                host_copy_filled=pb.HostCopyFilled(weights_digest=message.weights_digest)
            )
        case m.Describe():
            body = pb.EngineMessage(
                describe=pb.Describe(
                    priority=message.priority,
                    unit_pages=message.unit_pages,
                    static_pages=message.static_pages,
                    granule_pages=message.granule_pages,
                    pool_max_granules=message.pool_max_granules,
                    pool_min_granules=message.pool_min_granules,
                    plan=encode_plan(message.plan),
                    pinned=message.pinned,
                )
            )
        case m.Report():
            body = pb.EngineMessage(
                report=pb.Report(
                    sequence=message.sequence,
                    active=message.active,
                    running_requests=message.running_requests,
                    waiting_requests=message.waiting_requests,
                    pool_granules=message.pool_granules,
                    spare_granules=message.spare_granules,
                    needed_granules=message.needed_granules,
                    plan=encode_plan(message.plan),
                    reserve_pages=message.reserve_pages,
                    unit_compute_s=message.unit_compute_s,
                    unit_transfer_s=message.unit_transfer_s,
                    idle_s=message.idle_s,
                    preemptions=message.preemptions,
                    fetches=message.fetches,
                    fetched_bytes=message.fetched_bytes,
                    stall_s=message.stall_s,
                    prefill_s=message.prefill_s,
                    fetch_busy_s=message.fetch_busy_s,
                    free_kv_tokens=message.free_kv_tokens,
                )
            )
        case m.Ask():
            body = pb.EngineMessage(ask=pb.Ask(request_id=message.request_id, pages=message.pages))
        case m.Done():
            body = pb.EngineMessage(
                done=pb.Done(
                    operation_id=message.operation,
                    pages=encode_pages(message.pages),
                    plan=encode_plan(message.plan),
                    pool_granules=message.pool_granules,
                )
            )
        case m.Refused():
            body = pb.EngineMessage(
                refused=pb.Refused(
                    operation_id=message.operation,
                    reason=message.reason[:MAX_TEXT_CHARS],
                    pages=encode_pages(message.pages),
                )
            )
        case m.Rejoin():
            body = pb.EngineMessage(
                rejoin=pb.Rejoin(
                    device=encode_geometry(message.device),
                    holdings=encode_holdings(message.holdings),
                )
            )
        case m.GiveBack():
            body = pb.EngineMessage(give_back=pb.GiveBack(pages=encode_pages(message.pages)))
    packet: bytes = body.SerializeToString()
    return packet


def decode_engine_message(packet: bytes, device_pages: int) -> m.EngineMessage:
    """The message to the agent of a device with ``device_pages`` pages in ``packet``."""
    body = _parse(pb.EngineMessage, packet)
    kind = body.WhichOneof("body")
    decode = _ENGINE_DECODERS.get(kind)
    if decode is None:
        raise ProtocolError("a message without a body that this version knows")
    return decode(getattr(body, kind), device_pages)


def _decode_hello(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Hello(
        role=_enum(_ROLES, b.role, "role"),
        engine=EngineId(_name(b.engine_id, "engine_id")),
        model=ModelName(_name(b.model_name, "model_name")),
        weights_digest=_digest(b.weights_digest, optional=True),
        protocol_version=b.protocol_version,
    )


def _decode_take(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Take(b.request_id, _count(b.pages, "pages"))


def _decode_open_host_copy(b: Any, device_pages: int) -> m.EngineMessage:
    return m.OpenHostCopy(_digest(b.weights_digest), _count(b.size_bytes, "size_bytes"))


def _decode_host_copy_filled(b: Any, device_pages: int) -> m.EngineMessage:
    return m.HostCopyFilled(_digest(b.weights_digest))


def _decode_describe(b: Any, device_pages: int) -> m.EngineMessage:
    if not 0 < len(b.unit_pages) <= MAX_UNITS:
        raise ProtocolError(f"a model of {len(b.unit_pages)} units")
    unit_pages = tuple(_count(pages, "unit_pages") for pages in b.unit_pages)
    plan = decode_plan(b.plan)
    try:
        plan.pages(unit_pages)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if not 0 < b.pool_min_granules <= b.pool_max_granules:
        raise ProtocolError(f"a pool of {b.pool_min_granules} to {b.pool_max_granules} granules")
    return m.Describe(
        priority=b.priority,
        unit_pages=unit_pages,
        static_pages=b.static_pages,
        granule_pages=_count(b.granule_pages, "granule_pages"),
        pool_max_granules=b.pool_max_granules,
        pool_min_granules=b.pool_min_granules,
        plan=plan,
        pinned=b.pinned,
    )


def _decode_report(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Report(
        sequence=b.sequence,
        active=b.active,
        running_requests=b.running_requests,
        waiting_requests=b.waiting_requests,
        pool_granules=b.pool_granules,
        spare_granules=b.spare_granules,
        needed_granules=b.needed_granules,
        plan=decode_plan(b.plan),
        reserve_pages=b.reserve_pages,
        unit_compute_s=_times(b.unit_compute_s, "unit_compute_s"),
        unit_transfer_s=_times(b.unit_transfer_s, "unit_transfer_s"),
        idle_s=_seconds(b.idle_s, "idle_s"),
        preemptions=b.preemptions,
        fetches=b.fetches,
        fetched_bytes=b.fetched_bytes,
        stall_s=_seconds(b.stall_s, "stall_s"),
        prefill_s=_seconds(b.prefill_s, "prefill_s"),
        fetch_busy_s=_seconds(b.fetch_busy_s, "fetch_busy_s"),
        free_kv_tokens=b.free_kv_tokens if b.HasField("free_kv_tokens") else None,
    )


def _decode_ask(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Ask(b.request_id, _count(b.pages, "pages"))


def _decode_done(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Done(
        operation=OperationId(b.operation_id),
        pages=decode_pages(b.pages, device_pages),
        plan=decode_plan(b.plan),
        pool_granules=b.pool_granules,
    )


def _decode_refused(b: Any, device_pages: int) -> m.EngineMessage:
    return m.Refused(
        operation=OperationId(b.operation_id),
        reason=_text(b.reason),
        pages=decode_pages(b.pages, device_pages),
    )


def _decode_rejoin(b: Any, device_pages: int) -> m.EngineMessage:
    device = decode_geometry(b.device)
    return m.Rejoin(device, decode_holdings(b.holdings, device.pages))


def _decode_give_back(b: Any, device_pages: int) -> m.EngineMessage:
    return m.GiveBack(decode_pages(b.pages, device_pages))


_ENGINE_DECODERS: dict[str | None, Callable[[Any, int], m.EngineMessage]] = {
    "hello": _decode_hello,
    "take": _decode_take,
    "open_host_copy": _decode_open_host_copy,
    "host_copy_filled": _decode_host_copy_filled,
    "describe": _decode_describe,
    "report": _decode_report,
    "ask": _decode_ask,
    "done": _decode_done,
    "refused": _decode_refused,
    "rejoin": _decode_rejoin,
    "give_back": _decode_give_back,
}


# ---- agent to engine


def encode_agent_message(message: m.AgentMessage) -> bytes:
    """The packet of a message to an engine."""
    body: Any
    match message:
        case m.Welcome():
            body = pb.AgentMessage(
                welcome=pb.Welcome(
                    protocol_version=message.protocol_version,
                    agent_incarnation=message.agent_incarnation,
                    device=encode_geometry(message.device),
                    report_interval_s=message.report_interval_s,
                    rejoin=message.rejoin,
                )
            )
        case m.Granted():
            body = pb.AgentMessage(
                granted=pb.Granted(request_id=message.request_id, pages=encode_pages(message.pages))
            )
        case m.Denied():
            body = pb.AgentMessage(
                denied=pb.Denied(
                    request_id=message.request_id, reason=message.reason[:MAX_TEXT_CHARS]
                )
            )
        case m.HostCopy():
            body = pb.AgentMessage(
                host_copy=pb.HostCopy(
                    weights_digest=message.weights_digest,
                    state=_HOST_COPY_STATES[message.state],
                    size_bytes=message.size_bytes,
                )
            )
        case m.Shrink():
            body = pb.AgentMessage(
                shrink=pb.Shrink(
                    operation_id=message.operation,
                    pages=message.pages,
                    deadline_s=message.deadline_s,
                    traceparent=message.traceparent or None,
                )
            )
        case m.ApplyPlan():
            body = pb.AgentMessage(
                apply_plan=pb.ApplyPlan(
                    operation_id=message.operation,
                    plan=encode_plan(message.plan),
                    pages=encode_pages(message.pages),
                    traceparent=message.traceparent or None,
                )
            )
        case m.Limits():
            body = pb.AgentMessage(
                limits=pb.Limits(
                    pool_limit_pages=message.pool_limit_pages,
                    plan_held=message.plan_held,
                    lend_most_pages=message.lend_most_pages,
                    allowance_pages=message.allowance_pages,
                )
            )
        case m.Error():
            body = pb.AgentMessage(
                error=pb.Error(
                    code=_ERROR_CODES[message.code], message=message.message[:MAX_TEXT_CHARS]
                )
            )
    packet: bytes = body.SerializeToString()
    return packet


def decode_agent_message(packet: bytes, device_pages: int = MAX_DEVICE_PAGES) -> m.AgentMessage:
    """The message to an engine in ``packet``."""
    body = _parse(pb.AgentMessage, packet)
    kind = body.WhichOneof("body")
    b: Any = getattr(body, kind) if kind else None
    match kind:
        case "welcome":
            return m.Welcome(
                agent_incarnation=_name(b.agent_incarnation, "agent_incarnation"),
                device=decode_geometry(b.device),
                report_interval_s=_seconds(b.report_interval_s, "report_interval_s"),
                rejoin=b.rejoin,
                protocol_version=b.protocol_version,
            )
        case "granted":
            return m.Granted(b.request_id, decode_pages(b.pages, device_pages))
        case "denied":
            return m.Denied(b.request_id, _text(b.reason))
        case "host_copy":
            return m.HostCopy(
                weights_digest=_digest(b.weights_digest),
                state=_enum(_HOST_COPY_STATES, b.state, "state"),
                size_bytes=_count(b.size_bytes, "size_bytes"),
            )
        case "shrink":
            return m.Shrink(
                operation=OperationId(b.operation_id),
                pages=_count(b.pages, "pages"),
                deadline_s=_seconds(b.deadline_s, "deadline_s"),
                traceparent=_traceparent(b),
            )
        case "apply_plan":
            return m.ApplyPlan(
                operation=OperationId(b.operation_id),
                plan=decode_plan(b.plan),
                pages=decode_pages(b.pages, device_pages),
                traceparent=_traceparent(b),
            )
        case "limits":
            most = b.lend_most_pages if b.HasField("lend_most_pages") else None
            return m.Limits(b.pool_limit_pages, b.allowance_pages, b.plan_held, most)
        case "error":
            return m.Error(_enum(_ERROR_CODES, b.code, "code"), _text(b.message))
    raise ProtocolError("a message without a body that this version knows")


def _parse(kind: type[Message], packet: bytes) -> Any:
    body = kind()
    try:
        body.ParseFromString(packet)
    except DecodeError as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from None
    return body
