"""What engine and agent say to each other, as frozen values: the protocol without its encoding.

One class for each message of ``proto/mirage/v1/engine.proto``, which says what each is for and
in which order they come.  ``codec`` turns them into packets and back; a value that ``codec``
returned is well formed in itself (disjoint pages of the device, finite times, a valid plan), but
not yet checked against what the receiver knows (a granule's size, an operation's id).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from mirage_core.model import (
    RESIDENT,
    DeviceGeometry,
    EngineId,
    Holdings,
    ModelName,
    OperationId,
    PageId,
    RemapPlan,
)

PROTOCOL_VERSION = 1
"""Both sides must speak the same version; agent and engines of a node are upgraded together."""


class Role(Enum):
    """Which of an engine's two processes is at the other end of a link."""

    WORKER = "worker"
    SCHEDULER = "scheduler"


class HostCopyState(Enum):
    FILL = "fill"
    """the receiver writes the host copy, then sends HostCopyFilled"""
    READY = "ready"


class ErrorCode(Enum):
    VERSION = "version"
    PROTOCOL = "protocol"
    DEVICE_MISMATCH = "device_mismatch"
    OWNERSHIP = "ownership"


# ---- engine to agent


@dataclass(frozen=True, slots=True)
class Hello:
    role: Role
    engine: EngineId
    model: ModelName
    weights_digest: str = ""
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Take:
    request_id: int
    pages: int


@dataclass(frozen=True, slots=True)
class OpenHostCopy:
    weights_digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostCopyFilled:
    weights_digest: str


@dataclass(frozen=True, slots=True)
class Describe:
    priority: int
    unit_pages: tuple[int, ...]
    static_pages: int
    granule_pages: int
    pool_max_granules: int
    pool_min_granules: int
    plan: RemapPlan = RESIDENT
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    sequence: int
    active: bool
    pool_granules: int
    running_requests: int = 0
    waiting_requests: int = 0
    spare_granules: int = 0
    needed_granules: int = 0
    plan: RemapPlan = RESIDENT
    reserve_pages: int = 0
    unit_compute_s: tuple[float, ...] = ()
    unit_transfer_s: tuple[float, ...] = ()
    idle_s: float = 0.0
    preemptions: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    stall_s: float = 0.0
    prefill_s: float = 0.0
    fetch_busy_s: float = 0.0
    free_kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    request_id: int
    pages: int


@dataclass(frozen=True, slots=True)
class Done:
    operation: OperationId
    pages: tuple[PageId, ...]
    plan: RemapPlan
    pool_granules: int


@dataclass(frozen=True, slots=True)
class Refused:
    operation: OperationId
    reason: str
    pages: tuple[PageId, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejoin:
    device: DeviceGeometry
    holdings: Holdings


@dataclass(frozen=True, slots=True)
class GiveBack:
    pages: tuple[PageId, ...]


EngineMessage: TypeAlias = (
    Hello
    | Take
    | OpenHostCopy
    | HostCopyFilled
    | Describe
    | Report
    | Ask
    | Done
    | Refused
    | Rejoin
    | GiveBack
)


# ---- agent to engine


@dataclass(frozen=True, slots=True)
class Welcome:
    agent_incarnation: str
    device: DeviceGeometry
    report_interval_s: float
    rejoin: bool = False
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Granted:
    request_id: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Denied:
    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class HostCopy:
    weights_digest: str
    state: HostCopyState
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Shrink:
    operation: OperationId
    pages: int
    deadline_s: float
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    operation: OperationId
    plan: RemapPlan
    pages: tuple[PageId, ...] = ()
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    pool_limit_pages: int
    allowance_pages: int
    plan_held: bool = False
    lend_most_pages: int | None = None


@dataclass(frozen=True, slots=True)
class Error:
    """The agent closes the link after it."""

    code: ErrorCode
    message: str


AgentMessage: TypeAlias = (
    Welcome | Granted | Denied | HostCopy | Shrink | ApplyPlan | Limits | Error
)
