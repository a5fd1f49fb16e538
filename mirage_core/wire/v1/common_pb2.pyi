from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_ALREADY_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_REVISION: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_ID_REUSED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_LEADER: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_TRIMMED: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_FORBIDDEN: _ClassVar[ErrorReason]
    ERROR_REASON_RATE_LIMITED: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_INCOMPATIBLE_VERSION: _ClassVar[ErrorReason]
    ERROR_REASON_PRECONDITION: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_ACTIVE: _ClassVar[ModelState]
    MODEL_STATE_INACTIVE: _ClassVar[ModelState]
    MODEL_STATE_ABSENT: _ClassVar[ModelState]

class SharingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARING_MODE_UNSPECIFIED: _ClassVar[SharingMode]
    SHARING_MODE_TEMPORAL: _ClassVar[SharingMode]
    SHARING_MODE_SPATIAL: _ClassVar[SharingMode]

class Truth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUTH_UNSPECIFIED: _ClassVar[Truth]
    TRUTH_TRUE: _ClassVar[Truth]
    TRUTH_FALSE: _ClassVar[Truth]
    TRUTH_UNKNOWN: _ClassVar[Truth]

class Turn(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_UNSPECIFIED: _ClassVar[Turn]
    TURN_ACTIVE: _ClassVar[Turn]
    TURN_INACTIVE: _ClassVar[Turn]
    TURN_DRAINING: _ClassVar[Turn]

class DirectiveOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTIVE_OUTCOME_UNSPECIFIED: _ClassVar[DirectiveOutcome]
    DIRECTIVE_OUTCOME_ACCEPTED: _ClassVar[DirectiveOutcome]
    DIRECTIVE_OUTCOME_APPLIED: _ClassVar[DirectiveOutcome]
    DIRECTIVE_OUTCOME_STALE: _ClassVar[DirectiveOutcome]
    DIRECTIVE_OUTCOME_REFUSED: _ClassVar[DirectiveOutcome]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]

class DecisionEffect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_EFFECT_UNSPECIFIED: _ClassVar[DecisionEffect]
    DECISION_EFFECT_PERFORMED: _ClassVar[DecisionEffect]
    DECISION_EFFECT_SHADOWED: _ClassVar[DecisionEffect]
    DECISION_EFFECT_FROZEN: _ClassVar[DecisionEffect]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID: ErrorReason
ERROR_REASON_NOT_FOUND: ErrorReason
ERROR_REASON_ALREADY_EXISTS: ErrorReason
ERROR_REASON_STALE_REVISION: ErrorReason
ERROR_REASON_REQUEST_ID_REUSED: ErrorReason
ERROR_REASON_NOT_LEADER: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_TRIMMED: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_FORBIDDEN: ErrorReason
ERROR_REASON_RATE_LIMITED: ErrorReason
ERROR_REASON_TOO_LARGE: ErrorReason
ERROR_REASON_INCOMPATIBLE_VERSION: ErrorReason
ERROR_REASON_PRECONDITION: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_ACTIVE: ModelState
MODEL_STATE_INACTIVE: ModelState
MODEL_STATE_ABSENT: ModelState
SHARING_MODE_UNSPECIFIED: SharingMode
SHARING_MODE_TEMPORAL: SharingMode
SHARING_MODE_SPATIAL: SharingMode
TRUTH_UNSPECIFIED: Truth
TRUTH_TRUE: Truth
TRUTH_FALSE: Truth
TRUTH_UNKNOWN: Truth
TURN_UNSPECIFIED: Turn
TURN_ACTIVE: Turn
TURN_INACTIVE: Turn
TURN_DRAINING: Turn
DIRECTIVE_OUTCOME_UNSPECIFIED: DirectiveOutcome
DIRECTIVE_OUTCOME_ACCEPTED: DirectiveOutcome
DIRECTIVE_OUTCOME_APPLIED: DirectiveOutcome
DIRECTIVE_OUTCOME_STALE: DirectiveOutcome
DIRECTIVE_OUTCOME_REFUSED: DirectiveOutcome
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
DECISION_EFFECT_UNSPECIFIED: DecisionEffect
DECISION_EFFECT_PERFORMED: DecisionEffect
DECISION_EFFECT_SHADOWED: DecisionEffect
DECISION_EFFECT_FROZEN: DecisionEffect

class FieldViolation(_message.Message):
    __slots__ = ("field", "description")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    description: str
    def __init__(self, field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("reason", "retryable", "fields", "advice", "leader_address", "current_revision", "retry_after_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_REVISION_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    retryable: bool
    fields: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    advice: str
    leader_address: str
    current_revision: int
    retry_after_s: float
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., retryable: bool = ..., fields: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ..., advice: _Optional[str] = ..., leader_address: _Optional[str] = ..., current_revision: _Optional[int] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("weights_bytes", "kv_bytes_per_token", "min_pool_bytes", "devices_per_replica")
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MIN_POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    weights_bytes: int
    kv_bytes_per_token: int
    min_pool_bytes: int
    devices_per_replica: int
    def __init__(self, weights_bytes: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., min_pool_bytes: _Optional[int] = ..., devices_per_replica: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("devices", "replicas")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedScalarFieldContainer[str]
    replicas: int
    def __init__(self, devices: _Optional[_Iterable[str]] = ..., replicas: _Optional[int] = ...) -> None: ...

class LendingBounds(_message.Message):
    __slots__ = ("at_least_bytes", "at_most_bytes")
    AT_LEAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    at_least_bytes: int
    at_most_bytes: int
    def __init__(self, at_least_bytes: _Optional[int] = ..., at_most_bytes: _Optional[int] = ...) -> None: ...

class ModelWish(_message.Message):
    __slots__ = ("name", "uid", "weights_digest", "spec", "priority", "floor_bytes", "pinned", "state", "placement", "lending")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    LENDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    weights_digest: str
    spec: ModelSpec
    priority: int
    floor_bytes: int
    pinned: bool
    state: ModelState
    placement: Placement
    lending: LendingBounds
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., weights_digest: _Optional[str] = ..., spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., priority: _Optional[int] = ..., floor_bytes: _Optional[int] = ..., pinned: bool = ..., state: _Optional[_Union[ModelState, str]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., lending: _Optional[_Union[LendingBounds, _Mapping]] = ...) -> None: ...

class DeviceWish(_message.Message):
    __slots__ = ("device", "drain", "sharing")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    device: str
    drain: bool
    sharing: SharingMode
    def __init__(self, device: _Optional[str] = ..., drain: bool = ..., sharing: _Optional[_Union[SharingMode, str]] = ...) -> None: ...

class NodeWish(_message.Message):
    __slots__ = ("node", "drain")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    node: str
    drain: bool
    def __init__(self, node: _Optional[str] = ..., drain: bool = ...) -> None: ...

class ClusterWish(_message.Message):
    __slots__ = ("freeze", "shadow")
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    freeze: bool
    shadow: bool
    def __init__(self, freeze: bool = ..., shadow: bool = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("kind", "status", "reason", "message", "observed_revision", "changed_unix_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    status: Truth
    reason: str
    message: str
    observed_revision: int
    changed_unix_s: float
    def __init__(self, kind: _Optional[str] = ..., status: _Optional[_Union[Truth, str]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., observed_revision: _Optional[int] = ..., changed_unix_s: _Optional[float] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("desired_revision", "observed_revision", "conditions")
    DESIRED_REVISION_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_REVISION_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    desired_revision: int
    observed_revision: int
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, desired_revision: _Optional[int] = ..., observed_revision: _Optional[int] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class Authority(_message.Message):
    __slots__ = ("store_incarnation", "epoch", "revision")
    STORE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    store_incarnation: str
    epoch: int
    revision: int
    def __init__(self, store_incarnation: _Optional[str] = ..., epoch: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class ModelDirective(_message.Message):
    __slots__ = ("model", "priority", "floor_bytes", "pinned", "turn")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FLOOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    model: str
    priority: int
    floor_bytes: int
    pinned: bool
    turn: Turn
    def __init__(self, model: _Optional[str] = ..., priority: _Optional[int] = ..., floor_bytes: _Optional[int] = ..., pinned: bool = ..., turn: _Optional[_Union[Turn, str]] = ...) -> None: ...

class LendingDirective(_message.Message):
    __slots__ = ("model", "at_least_bytes", "at_most_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    at_least_bytes: int
    at_most_bytes: int
    def __init__(self, model: _Optional[str] = ..., at_least_bytes: _Optional[int] = ..., at_most_bytes: _Optional[int] = ...) -> None: ...

class DeviceDirective(_message.Message):
    __slots__ = ("sharing", "drain", "freeze", "shadow")
    SHARING_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    sharing: SharingMode
    drain: bool
    freeze: bool
    shadow: bool
    def __init__(self, sharing: _Optional[_Union[SharingMode, str]] = ..., drain: bool = ..., freeze: bool = ..., shadow: bool = ...) -> None: ...

class PlacementDirective(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, models: _Optional[_Iterable[str]] = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("operation_id", "authority", "traceparent", "model", "lending", "device", "placement")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LENDING_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    authority: Authority
    traceparent: str
    model: ModelDirective
    lending: LendingDirective
    device: DeviceDirective
    placement: PlacementDirective
    def __init__(self, operation_id: _Optional[str] = ..., authority: _Optional[_Union[Authority, _Mapping]] = ..., traceparent: _Optional[str] = ..., model: _Optional[_Union[ModelDirective, _Mapping]] = ..., lending: _Optional[_Union[LendingDirective, _Mapping]] = ..., device: _Optional[_Union[DeviceDirective, _Mapping]] = ..., placement: _Optional[_Union[PlacementDirective, _Mapping]] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("operation_id", "key", "authority", "outcome", "reason", "retryable", "latest")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    key: str
    authority: Authority
    outcome: DirectiveOutcome
    reason: str
    retryable: bool
    latest: Authority
    def __init__(self, operation_id: _Optional[str] = ..., key: _Optional[str] = ..., authority: _Optional[_Union[Authority, _Mapping]] = ..., outcome: _Optional[_Union[DirectiveOutcome, str]] = ..., reason: _Optional[str] = ..., retryable: bool = ..., latest: _Optional[_Union[Authority, _Mapping]] = ...) -> None: ...

class EngineObservation(_message.Message):
    __slots__ = ("engine_id", "model", "resident_pages", "slot_pages", "pool_pages", "spare_pages", "in_flight_pages", "waiting_pages", "active", "priority", "pinned", "units", "cycled_units", "unit_pages", "lent_pages", "free_kv_tokens", "running_requests", "waiting_requests", "preemptions")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    SLOT_PAGES_FIELD_NUMBER: _ClassVar[int]
    POOL_PAGES_FIELD_NUMBER: _ClassVar[int]
    SPARE_PAGES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_PAGES_FIELD_NUMBER: _ClassVar[int]
    WAITING_PAGES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    CYCLED_UNITS_FIELD_NUMBER: _ClassVar[int]
    UNIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    LENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    model: str
    resident_pages: int
    slot_pages: int
    pool_pages: int
    spare_pages: int
    in_flight_pages: int
    waiting_pages: int
    active: bool
    priority: int
    pinned: bool
    units: int
    cycled_units: int
    unit_pages: int
    lent_pages: int
    free_kv_tokens: int
    running_requests: int
    waiting_requests: int
    preemptions: int
    def __init__(self, engine_id: _Optional[str] = ..., model: _Optional[str] = ..., resident_pages: _Optional[int] = ..., slot_pages: _Optional[int] = ..., pool_pages: _Optional[int] = ..., spare_pages: _Optional[int] = ..., in_flight_pages: _Optional[int] = ..., waiting_pages: _Optional[int] = ..., active: bool = ..., priority: _Optional[int] = ..., pinned: bool = ..., units: _Optional[int] = ..., cycled_units: _Optional[int] = ..., unit_pages: _Optional[int] = ..., lent_pages: _Optional[int] = ..., free_kv_tokens: _Optional[int] = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...

class DeviceObservation(_message.Message):
    __slots__ = ("sequence", "free_pages", "coming_pages", "engines")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    COMING_PAGES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    free_pages: int
    coming_pages: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineObservation]
    def __init__(self, sequence: _Optional[int] = ..., free_pages: _Optional[int] = ..., coming_pages: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineObservation, _Mapping]]] = ...) -> None: ...

class ObservationDelta(_message.Message):
    __slots__ = ("sequence", "free_pages", "coming_pages", "changed", "gone_engine_ids")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    COMING_PAGES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    GONE_ENGINE_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    free_pages: int
    coming_pages: int
    changed: _containers.RepeatedCompositeFieldContainer[EngineObservation]
    gone_engine_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence: _Optional[int] = ..., free_pages: _Optional[int] = ..., coming_pages: _Optional[int] = ..., changed: _Optional[_Iterable[_Union[EngineObservation, _Mapping]]] = ..., gone_engine_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "kind", "subject", "message", "at_unix_s", "severity", "actor", "attributes", "traceparent")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: str
    subject: str
    message: str
    at_unix_s: float
    severity: Severity
    actor: str
    attributes: _containers.ScalarMap[str, str]
    traceparent: str
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., message: _Optional[str] = ..., at_unix_s: _Optional[float] = ..., severity: _Optional[_Union[Severity, str]] = ..., actor: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class DecisionInput(_message.Message):
    __slots__ = ("engine_id", "model", "priority", "active", "pinned", "idle_s", "pool_pages", "spare_pages", "unit_pages", "lent_pages", "floor_pages")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    POOL_PAGES_FIELD_NUMBER: _ClassVar[int]
    SPARE_PAGES_FIELD_NUMBER: _ClassVar[int]
    UNIT_PAGES_FIELD_NUMBER: _ClassVar[int]
    LENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_PAGES_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    model: str
    priority: int
    active: bool
    pinned: bool
    idle_s: float
    pool_pages: int
    spare_pages: int
    unit_pages: int
    lent_pages: int
    floor_pages: int
    def __init__(self, engine_id: _Optional[str] = ..., model: _Optional[str] = ..., priority: _Optional[int] = ..., active: bool = ..., pinned: bool = ..., idle_s: _Optional[float] = ..., pool_pages: _Optional[int] = ..., spare_pages: _Optional[int] = ..., unit_pages: _Optional[int] = ..., lent_pages: _Optional[int] = ..., floor_pages: _Optional[int] = ...) -> None: ...

class RuleTried(_message.Message):
    __slots__ = ("rule", "engine_id", "asked_pages", "given_pages", "why")
    RULE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_PAGES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_PAGES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    rule: str
    engine_id: str
    asked_pages: int
    given_pages: int
    why: str
    def __init__(self, rule: _Optional[str] = ..., engine_id: _Optional[str] = ..., asked_pages: _Optional[int] = ..., given_pages: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class MoveChosen(_message.Message):
    __slots__ = ("engine_id", "model", "action", "pages")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    model: str
    action: str
    pages: int
    def __init__(self, engine_id: _Optional[str] = ..., model: _Optional[str] = ..., action: _Optional[str] = ..., pages: _Optional[int] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("device", "number", "at_unix_s", "effect", "borrower", "short_pages", "free_pages", "inputs", "rules", "moves", "authority")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    BORROWER_FIELD_NUMBER: _ClassVar[int]
    SHORT_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    device: str
    number: int
    at_unix_s: float
    effect: DecisionEffect
    borrower: str
    short_pages: int
    free_pages: int
    inputs: _containers.RepeatedCompositeFieldContainer[DecisionInput]
    rules: _containers.RepeatedCompositeFieldContainer[RuleTried]
    moves: _containers.RepeatedCompositeFieldContainer[MoveChosen]
    authority: Authority
    def __init__(self, device: _Optional[str] = ..., number: _Optional[int] = ..., at_unix_s: _Optional[float] = ..., effect: _Optional[_Union[DecisionEffect, str]] = ..., borrower: _Optional[str] = ..., short_pages: _Optional[int] = ..., free_pages: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[DecisionInput, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[RuleTried, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[MoveChosen, _Mapping]]] = ..., authority: _Optional[_Union[Authority, _Mapping]] = ...) -> None: ...
