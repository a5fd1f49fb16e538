from mirage_core.wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reachability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REACHABILITY_UNSPECIFIED: _ClassVar[Reachability]
    REACHABILITY_CONNECTED: _ClassVar[Reachability]
    REACHABILITY_SILENT: _ClassVar[Reachability]

class ChangeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_KIND_UNSPECIFIED: _ClassVar[ChangeKind]
    CHANGE_KIND_CREATED: _ClassVar[ChangeKind]
    CHANGE_KIND_UPDATED: _ClassVar[ChangeKind]
    CHANGE_KIND_UNCHANGED: _ClassVar[ChangeKind]

class ResourceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_KIND_UNSPECIFIED: _ClassVar[ResourceKind]
    RESOURCE_KIND_MODEL: _ClassVar[ResourceKind]
    RESOURCE_KIND_DEVICE: _ClassVar[ResourceKind]
    RESOURCE_KIND_NODE: _ClassVar[ResourceKind]
    RESOURCE_KIND_CLUSTER: _ClassVar[ResourceKind]
    RESOURCE_KIND_DIRECTIVE: _ClassVar[ResourceKind]
    RESOURCE_KIND_EVENT: _ClassVar[ResourceKind]
REACHABILITY_UNSPECIFIED: Reachability
REACHABILITY_CONNECTED: Reachability
REACHABILITY_SILENT: Reachability
CHANGE_KIND_UNSPECIFIED: ChangeKind
CHANGE_KIND_CREATED: ChangeKind
CHANGE_KIND_UPDATED: ChangeKind
CHANGE_KIND_UNCHANGED: ChangeKind
RESOURCE_KIND_UNSPECIFIED: ResourceKind
RESOURCE_KIND_MODEL: ResourceKind
RESOURCE_KIND_DEVICE: ResourceKind
RESOURCE_KIND_NODE: ResourceKind
RESOURCE_KIND_CLUSTER: ResourceKind
RESOURCE_KIND_DIRECTIVE: ResourceKind
RESOURCE_KIND_EVENT: ResourceKind

class WriteOptions(_message.Message):
    __slots__ = ("request_id", "expected_revision", "dry_run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    expected_revision: int
    dry_run: bool
    def __init__(self, request_id: _Optional[str] = ..., expected_revision: _Optional[int] = ..., dry_run: bool = ...) -> None: ...

class PageOptions(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("revision", "set_by", "set_unix_s")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    revision: int
    set_by: str
    set_unix_s: float
    def __init__(self, revision: _Optional[int] = ..., set_by: _Optional[str] = ..., set_unix_s: _Optional[float] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("devices", "active")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedScalarFieldContainer[str]
    active: bool
    def __init__(self, devices: _Optional[_Iterable[str]] = ..., active: bool = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("wish", "provenance", "status", "replicas")
    WISH_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    wish: _common_pb2.ModelWish
    provenance: Provenance
    status: _common_pb2.Status
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, wish: _Optional[_Union[_common_pb2.ModelWish, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.Status, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("wish", "provenance", "status", "node", "host_link", "page_bytes", "pages", "reachability", "agent_incarnation", "observation", "observed_age_s")
    WISH_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_LINK_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    REACHABILITY_FIELD_NUMBER: _ClassVar[int]
    AGENT_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    wish: _common_pb2.DeviceWish
    provenance: Provenance
    status: _common_pb2.Status
    node: str
    host_link: str
    page_bytes: int
    pages: int
    reachability: Reachability
    agent_incarnation: str
    observation: _common_pb2.DeviceObservation
    observed_age_s: float
    def __init__(self, wish: _Optional[_Union[_common_pb2.DeviceWish, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.Status, _Mapping]] = ..., node: _Optional[str] = ..., host_link: _Optional[str] = ..., page_bytes: _Optional[int] = ..., pages: _Optional[int] = ..., reachability: _Optional[_Union[Reachability, str]] = ..., agent_incarnation: _Optional[str] = ..., observation: _Optional[_Union[_common_pb2.DeviceObservation, _Mapping]] = ..., observed_age_s: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("wish", "provenance", "status", "devices")
    WISH_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    wish: _common_pb2.NodeWish
    provenance: Provenance
    status: _common_pb2.Status
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, wish: _Optional[_Union[_common_pb2.NodeWish, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.Status, _Mapping]] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("wish", "provenance", "status", "revision", "store_incarnation", "leader_epoch", "leader_address", "connected_agents", "silent_agents")
    WISH_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STORE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AGENTS_FIELD_NUMBER: _ClassVar[int]
    SILENT_AGENTS_FIELD_NUMBER: _ClassVar[int]
    wish: _common_pb2.ClusterWish
    provenance: Provenance
    status: _common_pb2.Status
    revision: int
    store_incarnation: str
    leader_epoch: int
    leader_address: str
    connected_agents: int
    silent_agents: int
    def __init__(self, wish: _Optional[_Union[_common_pb2.ClusterWish, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., status: _Optional[_Union[_common_pb2.Status, _Mapping]] = ..., revision: _Optional[int] = ..., store_incarnation: _Optional[str] = ..., leader_epoch: _Optional[int] = ..., leader_address: _Optional[str] = ..., connected_agents: _Optional[int] = ..., silent_agents: _Optional[int] = ...) -> None: ...

class DirectiveRecord(_message.Message):
    __slots__ = ("directive", "device", "key", "outcome", "reason", "sent_unix_s", "answered_after_s")
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    directive: _common_pb2.Directive
    device: str
    key: str
    outcome: _common_pb2.DirectiveOutcome
    reason: str
    sent_unix_s: float
    answered_after_s: float
    def __init__(self, directive: _Optional[_Union[_common_pb2.Directive, _Mapping]] = ..., device: _Optional[str] = ..., key: _Optional[str] = ..., outcome: _Optional[_Union[_common_pb2.DirectiveOutcome, str]] = ..., reason: _Optional[str] = ..., sent_unix_s: _Optional[float] = ..., answered_after_s: _Optional[float] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: PageOptions
    def __init__(self, page: _Optional[_Union[PageOptions, _Mapping]] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class RegisterModelRequest(_message.Message):
    __slots__ = ("options", "wish")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    wish: _common_pb2.ModelWish
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., wish: _Optional[_Union[_common_pb2.ModelWish, _Mapping]] = ...) -> None: ...

class RegisterModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UpdateModelRequest(_message.Message):
    __slots__ = ("options", "wish")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    wish: _common_pb2.ModelWish
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., wish: _Optional[_Union[_common_pb2.ModelWish, _Mapping]] = ...) -> None: ...

class UpdateModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class DeleteModelRequest(_message.Message):
    __slots__ = ("options", "name")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ActivateModelRequest(_message.Message):
    __slots__ = ("options", "name")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class ActivateModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class DeactivateModelRequest(_message.Message):
    __slots__ = ("options", "name")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class DeactivateModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetModelPriorityRequest(_message.Message):
    __slots__ = ("options", "name", "priority")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    priority: int
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class SetModelPriorityResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetModelFloorRequest(_message.Message):
    __slots__ = ("options", "name", "floor_bytes")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    floor_bytes: int
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ..., floor_bytes: _Optional[int] = ...) -> None: ...

class SetModelFloorResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetModelPinnedRequest(_message.Message):
    __slots__ = ("options", "name", "pinned")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    pinned: bool
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ..., pinned: bool = ...) -> None: ...

class SetModelPinnedResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class SetModelLendingRequest(_message.Message):
    __slots__ = ("options", "name", "lending")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LENDING_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    name: str
    lending: _common_pb2.LendingBounds
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., name: _Optional[str] = ..., lending: _Optional[_Union[_common_pb2.LendingBounds, _Mapping]] = ...) -> None: ...

class SetModelLendingResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ListDevicesRequest(_message.Message):
    __slots__ = ("page", "node")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    page: PageOptions
    node: str
    def __init__(self, page: _Optional[_Union[PageOptions, _Mapping]] = ..., node: _Optional[str] = ...) -> None: ...

class ListDevicesResponse(_message.Message):
    __slots__ = ("devices", "next_page_token")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    next_page_token: str
    def __init__(self, devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetDeviceRequest(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: str
    def __init__(self, device: _Optional[str] = ...) -> None: ...

class GetDeviceResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: Device
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class SetDeviceSharingRequest(_message.Message):
    __slots__ = ("options", "device", "sharing")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    device: str
    sharing: _common_pb2.SharingMode
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., device: _Optional[str] = ..., sharing: _Optional[_Union[_common_pb2.SharingMode, str]] = ...) -> None: ...

class SetDeviceSharingResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: Device
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class DrainDeviceRequest(_message.Message):
    __slots__ = ("options", "device")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    device: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., device: _Optional[str] = ...) -> None: ...

class DrainDeviceResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: Device
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class UndrainDeviceRequest(_message.Message):
    __slots__ = ("options", "device")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    device: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., device: _Optional[str] = ...) -> None: ...

class UndrainDeviceResponse(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: Device
    def __init__(self, device: _Optional[_Union[Device, _Mapping]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: PageOptions
    def __init__(self, page: _Optional[_Union[PageOptions, _Mapping]] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "next_page_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    next_page_token: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class GetNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("options", "node")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    node: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., node: _Optional[str] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class UndrainNodeRequest(_message.Message):
    __slots__ = ("options", "node")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    node: str
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., node: _Optional[str] = ...) -> None: ...

class UndrainNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ...) -> None: ...

class FreezeResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...

class ThawRequest(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ...) -> None: ...

class ThawResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...

class SetShadowRequest(_message.Message):
    __slots__ = ("options", "shadow")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    shadow: bool
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., shadow: bool = ...) -> None: ...

class SetShadowResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...

class ListDirectivesRequest(_message.Message):
    __slots__ = ("page", "device")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    page: PageOptions
    device: str
    def __init__(self, page: _Optional[_Union[PageOptions, _Mapping]] = ..., device: _Optional[str] = ...) -> None: ...

class ListDirectivesResponse(_message.Message):
    __slots__ = ("directives", "next_page_token")
    DIRECTIVES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    directives: _containers.RepeatedCompositeFieldContainer[DirectiveRecord]
    next_page_token: str
    def __init__(self, directives: _Optional[_Iterable[_Union[DirectiveRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetDirectiveRequest(_message.Message):
    __slots__ = ("operation_id",)
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    def __init__(self, operation_id: _Optional[str] = ...) -> None: ...

class GetDirectiveResponse(_message.Message):
    __slots__ = ("directive",)
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    directive: DirectiveRecord
    def __init__(self, directive: _Optional[_Union[DirectiveRecord, _Mapping]] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("page", "subject", "after_sequence")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    page: PageOptions
    subject: str
    after_sequence: int
    def __init__(self, page: _Optional[_Union[PageOptions, _Mapping]] = ..., subject: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_common_pb2.Event]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[_common_pb2.Event, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("options", "models", "devices", "nodes", "cluster")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    options: WriteOptions
    models: _containers.RepeatedCompositeFieldContainer[_common_pb2.ModelWish]
    devices: _containers.RepeatedCompositeFieldContainer[_common_pb2.DeviceWish]
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeWish]
    cluster: _common_pb2.ClusterWish
    def __init__(self, options: _Optional[_Union[WriteOptions, _Mapping]] = ..., models: _Optional[_Iterable[_Union[_common_pb2.ModelWish, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[_common_pb2.DeviceWish, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[_common_pb2.NodeWish, _Mapping]]] = ..., cluster: _Optional[_Union[_common_pb2.ClusterWish, _Mapping]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("subject", "kind", "fields")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    kind: ChangeKind
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subject: _Optional[str] = ..., kind: _Optional[_Union[ChangeKind, str]] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("changes", "revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("model", "device", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    device: str
    limit: int
    def __init__(self, model: _Optional[str] = ..., device: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("explanations", "note")
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    explanations: _containers.RepeatedCompositeFieldContainer[_common_pb2.Explanation]
    note: str
    def __init__(self, explanations: _Optional[_Iterable[_Union[_common_pb2.Explanation, _Mapping]]] = ..., note: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("kinds", "after_sequence", "store_incarnation")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STORE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[ResourceKind]
    after_sequence: int
    store_incarnation: str
    def __init__(self, kinds: _Optional[_Iterable[_Union[ResourceKind, str]]] = ..., after_sequence: _Optional[int] = ..., store_incarnation: _Optional[str] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("store_incarnation",)
    STORE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    store_incarnation: str
    def __init__(self, store_incarnation: _Optional[str] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: ResourceKind
    name: str
    def __init__(self, kind: _Optional[_Union[ResourceKind, str]] = ..., name: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("sequence", "model", "device", "node", "cluster", "directive", "event", "removed", "snapshot_end", "heartbeat")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    model: Model
    device: Device
    node: Node
    cluster: Cluster
    directive: DirectiveRecord
    event: _common_pb2.Event
    removed: Removed
    snapshot_end: SnapshotEnd
    heartbeat: WatchHeartbeat
    def __init__(self, sequence: _Optional[int] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., node: _Optional[_Union[Node, _Mapping]] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., directive: _Optional[_Union[DirectiveRecord, _Mapping]] = ..., event: _Optional[_Union[_common_pb2.Event, _Mapping]] = ..., removed: _Optional[_Union[Removed, _Mapping]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping]] = ..., heartbeat: _Optional[_Union[WatchHeartbeat, _Mapping]] = ...) -> None: ...

class WatchHeartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
