from mirage_core.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionRequest(_message.Message):
    __slots__ = ("hello", "snapshot", "delta", "event", "explanation", "acknowledgement", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: AgentHello
    snapshot: _common_pb2.DeviceObservation
    delta: _common_pb2.ObservationDelta
    event: _common_pb2.Event
    explanation: _common_pb2.Explanation
    acknowledgement: _common_pb2.Acknowledgement
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[AgentHello, _Mapping]] = ..., snapshot: _Optional[_Union[_common_pb2.DeviceObservation, _Mapping]] = ..., delta: _Optional[_Union[_common_pb2.ObservationDelta, _Mapping]] = ..., event: _Optional[_Union[_common_pb2.Event, _Mapping]] = ..., explanation: _Optional[_Union[_common_pb2.Explanation, _Mapping]] = ..., acknowledgement: _Optional[_Union[_common_pb2.Acknowledgement, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("welcome", "directives", "directive", "heartbeat", "not_leader", "rejected", "snapshot_wanted")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVES_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_WANTED_FIELD_NUMBER: _ClassVar[int]
    welcome: AgentWelcome
    directives: DirectiveSnapshot
    directive: _common_pb2.Directive
    heartbeat: Heartbeat
    not_leader: NotLeader
    rejected: AgentRejected
    snapshot_wanted: SnapshotWanted
    def __init__(self, welcome: _Optional[_Union[AgentWelcome, _Mapping]] = ..., directives: _Optional[_Union[DirectiveSnapshot, _Mapping]] = ..., directive: _Optional[_Union[_common_pb2.Directive, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., not_leader: _Optional[_Union[NotLeader, _Mapping]] = ..., rejected: _Optional[_Union[AgentRejected, _Mapping]] = ..., snapshot_wanted: _Optional[_Union[SnapshotWanted, _Mapping]] = ...) -> None: ...

class HeldDirective(_message.Message):
    __slots__ = ("key", "operation_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    key: str
    operation_id: str
    def __init__(self, key: _Optional[str] = ..., operation_id: _Optional[str] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("protocol_version", "node", "device", "incarnation", "page_bytes", "pages", "host_link", "capabilities", "latest", "held")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    HOST_LINK_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    node: str
    device: str
    incarnation: str
    page_bytes: int
    pages: int
    host_link: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    latest: _common_pb2.Authority
    held: _containers.RepeatedCompositeFieldContainer[HeldDirective]
    def __init__(self, protocol_version: _Optional[int] = ..., node: _Optional[str] = ..., device: _Optional[str] = ..., incarnation: _Optional[str] = ..., page_bytes: _Optional[int] = ..., pages: _Optional[int] = ..., host_link: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., latest: _Optional[_Union[_common_pb2.Authority, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldDirective, _Mapping]]] = ...) -> None: ...

class AgentWelcome(_message.Message):
    __slots__ = ("protocol_version", "authority", "leader", "heartbeat_s", "report_interval_s", "retired_store_incarnations")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    RETIRED_STORE_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    authority: _common_pb2.Authority
    leader: str
    heartbeat_s: float
    report_interval_s: float
    retired_store_incarnations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., authority: _Optional[_Union[_common_pb2.Authority, _Mapping]] = ..., leader: _Optional[str] = ..., heartbeat_s: _Optional[float] = ..., report_interval_s: _Optional[float] = ..., retired_store_incarnations: _Optional[_Iterable[str]] = ...) -> None: ...

class DirectiveSnapshot(_message.Message):
    __slots__ = ("authority", "directives")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVES_FIELD_NUMBER: _ClassVar[int]
    authority: _common_pb2.Authority
    directives: _containers.RepeatedCompositeFieldContainer[_common_pb2.Directive]
    def __init__(self, authority: _Optional[_Union[_common_pb2.Authority, _Mapping]] = ..., directives: _Optional[_Iterable[_Union[_common_pb2.Directive, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class NotLeader(_message.Message):
    __slots__ = ("leader_address",)
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    leader_address: str
    def __init__(self, leader_address: _Optional[str] = ...) -> None: ...

class AgentRejected(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.ErrorDetail
    message: str
    def __init__(self, error: _Optional[_Union[_common_pb2.ErrorDetail, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class SnapshotWanted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
