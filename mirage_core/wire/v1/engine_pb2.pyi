from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
    ROLE_SCHEDULER: _ClassVar[Role]

class HostCopyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOST_COPY_STATE_UNSPECIFIED: _ClassVar[HostCopyState]
    HOST_COPY_STATE_FILL: _ClassVar[HostCopyState]
    HOST_COPY_STATE_READY: _ClassVar[HostCopyState]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_PROTOCOL: _ClassVar[ErrorCode]
    ERROR_CODE_DEVICE_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_OWNERSHIP: _ClassVar[ErrorCode]
ROLE_UNSPECIFIED: Role
ROLE_WORKER: Role
ROLE_SCHEDULER: Role
HOST_COPY_STATE_UNSPECIFIED: HostCopyState
HOST_COPY_STATE_FILL: HostCopyState
HOST_COPY_STATE_READY: HostCopyState
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_VERSION: ErrorCode
ERROR_CODE_PROTOCOL: ErrorCode
ERROR_CODE_DEVICE_MISMATCH: ErrorCode
ERROR_CODE_OWNERSHIP: ErrorCode

class PageRun(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class DeviceGeometry(_message.Message):
    __slots__ = ("device_id", "page_bytes", "pages")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    page_bytes: int
    pages: int
    def __init__(self, device_id: _Optional[str] = ..., page_bytes: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("units",)
    UNITS_FIELD_NUMBER: _ClassVar[int]
    units: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, units: _Optional[_Iterable[int]] = ...) -> None: ...

class RemapPlan(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[Slot]
    def __init__(self, slots: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ...) -> None: ...

class Holdings(_message.Message):
    __slots__ = ("unit", "slot", "pool", "in_flight")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    unit: _containers.RepeatedCompositeFieldContainer[PageRun]
    slot: _containers.RepeatedCompositeFieldContainer[PageRun]
    pool: _containers.RepeatedCompositeFieldContainer[PageRun]
    in_flight: _containers.RepeatedCompositeFieldContainer[PageRun]
    def __init__(self, unit: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., slot: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., pool: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., in_flight: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ...) -> None: ...

class EngineMessage(_message.Message):
    __slots__ = ("hello", "take", "open_host_copy", "host_copy_filled", "describe", "report", "ask", "done", "refused", "rejoin", "give_back")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    OPEN_HOST_COPY_FIELD_NUMBER: _ClassVar[int]
    HOST_COPY_FILLED_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    take: Take
    open_host_copy: OpenHostCopy
    host_copy_filled: HostCopyFilled
    describe: Describe
    report: Report
    ask: Ask
    done: Done
    refused: Refused
    rejoin: Rejoin
    give_back: GiveBack
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., take: _Optional[_Union[Take, _Mapping]] = ..., open_host_copy: _Optional[_Union[OpenHostCopy, _Mapping]] = ..., host_copy_filled: _Optional[_Union[HostCopyFilled, _Mapping]] = ..., describe: _Optional[_Union[Describe, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., rejoin: _Optional[_Union[Rejoin, _Mapping]] = ..., give_back: _Optional[_Union[GiveBack, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "role", "engine_id", "model_name", "weights_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    role: Role
    engine_id: str
    model_name: str
    weights_digest: str
    def __init__(self, protocol_version: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., engine_id: _Optional[str] = ..., model_name: _Optional[str] = ..., weights_digest: _Optional[str] = ...) -> None: ...

class Take(_message.Message):
    __slots__ = ("request_id", "pages")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    pages: int
    def __init__(self, request_id: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class OpenHostCopy(_message.Message):
    __slots__ = ("weights_digest", "size_bytes")
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    weights_digest: str
    size_bytes: int
    def __init__(self, weights_digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class HostCopyFilled(_message.Message):
    __slots__ = ("weights_digest",)
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    weights_digest: str
    def __init__(self, weights_digest: _Optional[str] = ...) -> None: ...

class Describe(_message.Message):
    __slots__ = ("priority", "unit_pages", "static_pages", "granule_pages", "pool_max_granules", "pool_min_granules", "plan", "pinned")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    UNIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    STATIC_PAGES_FIELD_NUMBER: _ClassVar[int]
    GRANULE_PAGES_FIELD_NUMBER: _ClassVar[int]
    POOL_MAX_GRANULES_FIELD_NUMBER: _ClassVar[int]
    POOL_MIN_GRANULES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    priority: int
    unit_pages: _containers.RepeatedScalarFieldContainer[int]
    static_pages: int
    granule_pages: int
    pool_max_granules: int
    pool_min_granules: int
    plan: RemapPlan
    pinned: bool
    def __init__(self, priority: _Optional[int] = ..., unit_pages: _Optional[_Iterable[int]] = ..., static_pages: _Optional[int] = ..., granule_pages: _Optional[int] = ..., pool_max_granules: _Optional[int] = ..., pool_min_granules: _Optional[int] = ..., plan: _Optional[_Union[RemapPlan, _Mapping]] = ..., pinned: bool = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("sequence", "active", "running_requests", "waiting_requests", "pool_granules", "spare_granules", "needed_granules", "plan", "reserve_pages", "unit_compute_s", "unit_transfer_s", "idle_s", "preemptions", "fetches", "fetched_bytes", "stall_s", "prefill_s", "fetch_busy_s", "free_kv_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    POOL_GRANULES_FIELD_NUMBER: _ClassVar[int]
    SPARE_GRANULES_FIELD_NUMBER: _ClassVar[int]
    NEEDED_GRANULES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESERVE_PAGES_FIELD_NUMBER: _ClassVar[int]
    UNIT_COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    UNIT_TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    FETCH_BUSY_S_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    active: bool
    running_requests: int
    waiting_requests: int
    pool_granules: int
    spare_granules: int
    needed_granules: int
    plan: RemapPlan
    reserve_pages: int
    unit_compute_s: _containers.RepeatedScalarFieldContainer[float]
    unit_transfer_s: _containers.RepeatedScalarFieldContainer[float]
    idle_s: float
    preemptions: int
    fetches: int
    fetched_bytes: int
    stall_s: float
    prefill_s: float
    fetch_busy_s: float
    free_kv_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., active: bool = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., pool_granules: _Optional[int] = ..., spare_granules: _Optional[int] = ..., needed_granules: _Optional[int] = ..., plan: _Optional[_Union[RemapPlan, _Mapping]] = ..., reserve_pages: _Optional[int] = ..., unit_compute_s: _Optional[_Iterable[float]] = ..., unit_transfer_s: _Optional[_Iterable[float]] = ..., idle_s: _Optional[float] = ..., preemptions: _Optional[int] = ..., fetches: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., stall_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., fetch_busy_s: _Optional[float] = ..., free_kv_tokens: _Optional[int] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("request_id", "pages")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    pages: int
    def __init__(self, request_id: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("operation_id", "pages", "plan", "pool_granules")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    POOL_GRANULES_FIELD_NUMBER: _ClassVar[int]
    operation_id: int
    pages: _containers.RepeatedCompositeFieldContainer[PageRun]
    plan: RemapPlan
    pool_granules: int
    def __init__(self, operation_id: _Optional[int] = ..., pages: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., plan: _Optional[_Union[RemapPlan, _Mapping]] = ..., pool_granules: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("operation_id", "reason", "pages")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    operation_id: int
    reason: str
    pages: _containers.RepeatedCompositeFieldContainer[PageRun]
    def __init__(self, operation_id: _Optional[int] = ..., reason: _Optional[str] = ..., pages: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ...) -> None: ...

class Rejoin(_message.Message):
    __slots__ = ("device", "holdings")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    device: DeviceGeometry
    holdings: Holdings
    def __init__(self, device: _Optional[_Union[DeviceGeometry, _Mapping]] = ..., holdings: _Optional[_Union[Holdings, _Mapping]] = ...) -> None: ...

class GiveBack(_message.Message):
    __slots__ = ("pages",)
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[PageRun]
    def __init__(self, pages: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("welcome", "granted", "denied", "host_copy", "shrink", "apply_plan", "limits", "error")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    HOST_COPY_FIELD_NUMBER: _ClassVar[int]
    SHRINK_FIELD_NUMBER: _ClassVar[int]
    APPLY_PLAN_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    granted: Granted
    denied: Denied
    host_copy: HostCopy
    shrink: Shrink
    apply_plan: ApplyPlan
    limits: Limits
    error: Error
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., denied: _Optional[_Union[Denied, _Mapping]] = ..., host_copy: _Optional[_Union[HostCopy, _Mapping]] = ..., shrink: _Optional[_Union[Shrink, _Mapping]] = ..., apply_plan: _Optional[_Union[ApplyPlan, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "agent_incarnation", "device", "report_interval_s", "rejoin")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    agent_incarnation: str
    device: DeviceGeometry
    report_interval_s: float
    rejoin: bool
    def __init__(self, protocol_version: _Optional[int] = ..., agent_incarnation: _Optional[str] = ..., device: _Optional[_Union[DeviceGeometry, _Mapping]] = ..., report_interval_s: _Optional[float] = ..., rejoin: bool = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("request_id", "pages")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    pages: _containers.RepeatedCompositeFieldContainer[PageRun]
    def __init__(self, request_id: _Optional[int] = ..., pages: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ...) -> None: ...

class Denied(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    reason: str
    def __init__(self, request_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class HostCopy(_message.Message):
    __slots__ = ("weights_digest", "state", "size_bytes")
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    weights_digest: str
    state: HostCopyState
    size_bytes: int
    def __init__(self, weights_digest: _Optional[str] = ..., state: _Optional[_Union[HostCopyState, str]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Shrink(_message.Message):
    __slots__ = ("operation_id", "pages", "deadline_s", "traceparent")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    operation_id: int
    pages: int
    deadline_s: float
    traceparent: str
    def __init__(self, operation_id: _Optional[int] = ..., pages: _Optional[int] = ..., deadline_s: _Optional[float] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ApplyPlan(_message.Message):
    __slots__ = ("operation_id", "plan", "pages", "traceparent")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    operation_id: int
    plan: RemapPlan
    pages: _containers.RepeatedCompositeFieldContainer[PageRun]
    traceparent: str
    def __init__(self, operation_id: _Optional[int] = ..., plan: _Optional[_Union[RemapPlan, _Mapping]] = ..., pages: _Optional[_Iterable[_Union[PageRun, _Mapping]]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("pool_limit_pages", "allowance_pages", "plan_held", "lend_most_pages")
    POOL_LIMIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_PAGES_FIELD_NUMBER: _ClassVar[int]
    PLAN_HELD_FIELD_NUMBER: _ClassVar[int]
    LEND_MOST_PAGES_FIELD_NUMBER: _ClassVar[int]
    pool_limit_pages: int
    allowance_pages: int
    plan_held: bool
    lend_most_pages: int
    def __init__(self, pool_limit_pages: _Optional[int] = ..., allowance_pages: _Optional[int] = ..., plan_held: bool = ..., lend_most_pages: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...
