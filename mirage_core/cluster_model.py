"""Frozen values of the cluster: what operators wish, what controllers direct, what agents saw.

A *wish* is what an operator set: durable and revisioned.  A *directive* is what the leader makes of
wishes for one device.  An *observation* is what an agent saw; it never bumps a wish's revision, and
what is missing from one is unknown (None), never idle.

Every directive has a *key* (``model/NAME``, ``lend/NAME``, ``device``, ``placement``) and states
all that holds under it, so the latest one of a key is the whole truth and nothing is ever a step
that must not be missed.  Its *authority* says who may speak: an agent refuses a lower epoch than it
has seen, and under one key a lower revision.

Pure: the standard library alone.  ``_unix_s`` is a wall clock, for people only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NewType, TypeAlias, TypeVar

from mirage_core.model import DeviceId, EngineId, ModelName

NodeName = NewType("NodeName", str)
ModelUid = NewType("ModelUid", str)
"""Made when a model is registered; a name used again gets another."""
StoreIncarnation = NewType("StoreIncarnation", str)
"""One unbroken history of the metadata store; a store that lost its history makes another."""
AgentIncarnation = NewType("AgentIncarnation", str)
"""One life of an agent; of two with the same device the newest to say hello wins."""
DirectiveId = NewType("DirectiveId", str)
"""The operation id of a directive: the same id is the same directive, however often it comes."""
DirectiveKey = NewType("DirectiveKey", str)

AGENT_PROTOCOL_VERSION = 1
"""N of agent.proto; a controller also takes N - 1."""


def agreed_version(theirs: int, ours: int = AGENT_PROTOCOL_VERSION) -> int | None:
    """The version that both sides speak: the lower one, if the higher side still speaks it."""
    lower, higher = sorted((theirs, ours))
    return lower if lower >= 1 and higher - lower <= 1 else None


MIN_PRIORITY, MAX_PRIORITY = -(1 << 31), (1 << 31) - 1


# ---- wishes


class ModelState(Enum):
    """ACTIVE serves, or is to; INACTIVE stays registered and lends all; ABSENT is to be gone."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    ABSENT = "absent"


class Sharing(Enum):
    """TEMPORAL: one model runs on the device at a time; SPATIAL: several at once."""

    TEMPORAL = "temporal"
    SPATIAL = "spatial"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model needs, whatever the operators wish.

    weights_bytes       of one replica, all its devices together
    kv_bytes_per_token  of one replica, all its devices together; None: not known
    min_pool_bytes      KV pool without which a replica is of no use
    devices_per_replica devices that one replica holds
    """

    weights_bytes: int
    kv_bytes_per_token: int | None = None
    min_pool_bytes: int = 0
    devices_per_replica: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Where replicas may be: on these devices; with none named the controller chooses."""

    devices: tuple[DeviceId, ...] = ()
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Lending:
    """Bounds of what a model lends of its unit bytes on each device.

    at_least_bytes  lends so many even if nobody asks
    at_most_bytes   never lends more, to others or to its own pool; None: no bound
    """

    at_least_bytes: int = 0
    at_most_bytes: int | None = None


FREE_LENDING = Lending()
"""The policy alone decides."""


@dataclass(frozen=True, slots=True)
class ModelWish:
    """priority     higher is more important (int32)
    floor_bytes  unit bytes that stay resident on each device, whatever is asked; None: the
                 policy's own floor
    pinned       lends neither weights nor pool
    """

    name: ModelName
    uid: ModelUid
    weights_digest: str
    spec: ModelSpec
    priority: int = 0
    floor_bytes: int | None = None
    pinned: bool = False
    state: ModelState = ModelState.ACTIVE
    placement: Placement = Placement()
    lending: Lending = FREE_LENDING


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """drain: no model is placed here any more, and those that are here are moved away."""

    device: DeviceId
    drain: bool = False
    sharing: Sharing = Sharing.SPATIAL


@dataclass(frozen=True, slots=True)
class NodeWish:
    node: NodeName
    drain: bool = False


@dataclass(frozen=True, slots=True)
class ClusterWish:
    """freeze: nothing is remapped or moved at all.  shadow: decide, log, do nothing."""

    freeze: bool = False
    shadow: bool = False


Wish: TypeAlias = ModelWish | DeviceWish | NodeWish | ClusterWish
W = TypeVar("W", ModelWish, DeviceWish, NodeWish, ClusterWish)


@dataclass(frozen=True, slots=True)
class Revised(Generic[W]):
    """A wish as stored.  ``revision`` is of the whole store, and rises with each write."""

    wish: W
    revision: int
    set_by: str = ""
    set_unix_s: float = 0.0


# ---- status


class Truth(Enum):
    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement about a subject, as in ``Applied``, ``Reachable``, ``DurabilityWeak``.

    reason   one CamelCase word for programs
    message  one sentence for people, saying what to do if something is wrong
    """

    kind: str
    status: Truth
    reason: str
    message: str = ""
    observed_revision: int = 0
    changed_unix_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """``desired_revision`` was accepted; ``observed_revision`` was applied, None if nothing was."""

    desired_revision: int
    observed_revision: int | None
    conditions: tuple[Condition, ...] = ()


# ---- directives


@dataclass(frozen=True, slots=True)
class Authority:
    """Who speaks: the store's incarnation, the leader's fencing token, the write it follows."""

    store: StoreIncarnation
    epoch: int
    revision: int


class Turn(Enum):
    """What an agent makes of a model: ACTIVE is scheduled to run, so its units come back now;
    INACTIVE lends all but its floor; DRAINING is INACTIVE and may start no engine."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class DirectModel:
    """Settings of a model on a device.  None: as the engine says of itself.

    floor_bytes  unit bytes that stay resident whatever is asked
    """

    model: ModelName
    priority: int | None = None
    floor_bytes: int | None = None
    pinned: bool | None = None
    turn: Turn | None = None

    @property
    def key(self) -> DirectiveKey:
        return DirectiveKey(f"model/{self.model}")


@dataclass(frozen=True, slots=True)
class DirectLending:
    """Remap a model until it lends ``at_least_bytes`` of its units; restore it until it lends
    ``at_most_bytes`` (None: no bound).  It holds until another replaces it."""

    model: ModelName
    at_least_bytes: int = 0
    at_most_bytes: int | None = None

    @property
    def key(self) -> DirectiveKey:
        return DirectiveKey(f"lend/{self.model}")


@dataclass(frozen=True, slots=True)
class DirectDevice:
    """drain: no new engine gets pages; those that run go on."""

    sharing: Sharing = Sharing.SPATIAL
    drain: bool = False
    freeze: bool = False
    shadow: bool = False

    @property
    def key(self) -> DirectiveKey:
        return DirectiveKey("device")


@dataclass(frozen=True, slots=True)
class DirectPlacement:
    """The models that may start engines here; without this directive all may."""

    models: tuple[ModelName, ...]

    @property
    def key(self) -> DirectiveKey:
        return DirectiveKey("placement")


DirectiveBody: TypeAlias = DirectModel | DirectLending | DirectDevice | DirectPlacement


@dataclass(frozen=True, slots=True)
class Directive:
    """``traceparent``: W3C trace context of the admin call behind it; empty if there is none."""

    operation: DirectiveId
    authority: Authority
    body: DirectiveBody
    traceparent: str = ""

    @property
    def key(self) -> DirectiveKey:
        return self.body.key


@dataclass(frozen=True, slots=True)
class DirectiveSnapshot:
    """All that is directed to a device; keys that are not in it hold no longer."""

    authority: Authority
    directives: tuple[Directive, ...]


class Outcome(Enum):
    ACCEPTED = "accepted"
    """kept on disk; what it asks for is under way"""
    APPLIED = "applied"
    STALE = "stale"
    """a newer leader or revision was heard"""
    REFUSED = "refused"
    """cannot be done, for a reason"""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """authority  of the directive that is answered
    latest     for STALE: the authority that the agent holds to
    retryable  for REFUSED: whether the same directive may succeed later
    """

    operation: DirectiveId
    key: DirectiveKey
    authority: Authority
    outcome: Outcome
    reason: str = ""
    retryable: bool = False
    latest: Authority | None = None


# ---- observations


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """One engine.  Pages by kind of owner (DESIGN §8.1); None: not reported.

    lent_pages      unit pages that its plan frees
    unit_pages      of all its units, when all are resident
    free_kv_tokens  that its pool can take now
    priority        in force, directives included
    """

    engine: EngineId
    model: ModelName
    resident_pages: int
    slot_pages: int
    pool_pages: int
    spare_pages: int
    in_flight_pages: int
    waiting_pages: int = 0
    active: bool | None = None
    priority: int | None = None
    pinned: bool | None = None
    units: int | None = None
    cycled_units: int | None = None
    unit_pages: int | None = None
    lent_pages: int | None = None
    free_kv_tokens: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceObservation:
    """All that an agent reports of its device; ``sequence`` rises by one with each report."""

    sequence: int
    free_pages: int
    coming_pages: int
    engines: tuple[EngineObservation, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservationDelta:
    """What changed since the report before; a gap in ``sequence`` asks for a new snapshot."""

    sequence: int
    free_pages: int
    coming_pages: int
    changed: tuple[EngineObservation, ...] = ()
    gone: tuple[EngineId, ...] = ()

    def apply(self, before: DeviceObservation) -> DeviceObservation | None:
        """The device after it; None if a report between the two is missing."""
        if self.sequence != before.sequence + 1:
            return None
        engines = {each.engine: each for each in before.engines if each.engine not in self.gone}
        engines.update((each.engine, each) for each in self.changed)
        return DeviceObservation(
            self.sequence, self.free_pages, self.coming_pages, tuple(engines.values())
        )


@dataclass(frozen=True, slots=True)
class AgentHello:
    """First words of an agent.

    protocol_version  the newest it speaks; it also speaks the one before
    host_link         domain of the host link; devices that name the same one share it
    latest            highest authority that it has heard; None if none
    held              what it holds to, by key, so that a leader need not send it again
    """

    node: NodeName
    device: DeviceId
    incarnation: AgentIncarnation
    page_bytes: int
    pages: int
    host_link: str
    capabilities: tuple[str, ...] = ()
    protocol_version: int = AGENT_PROTOCOL_VERSION
    latest: Authority | None = None
    held: tuple[tuple[DirectiveKey, DirectiveId], ...] = ()


@dataclass(frozen=True, slots=True)
class LeaderWelcome:
    """The leader's answer to a hello.

    authority  store, epoch, and the revision that it has reconciled up to
    retired    store incarnations whose history was lost, and in whose place ``authority.store``
               stands: an agent that holds to one of them lets go of it
    """

    authority: Authority
    leader: str
    heartbeat_s: float
    report_interval_s: float
    protocol_version: int = AGENT_PROTOCOL_VERSION
    retired: tuple[StoreIncarnation, ...] = ()


# ---- events and explanations


class Severity(Enum):
    INFO = "info"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for people.

    kind      one CamelCase word: ``EngineDied``, ``StoreHistoryLost``, ``PrioritySet``
    subject   ``model/NAME``, ``device/ID``, ``node/NAME``, ``cluster``
    sequence  of the store's stream; 0 until it is stored
    """

    kind: str
    subject: str
    message: str
    at_unix_s: float
    severity: Severity = Severity.INFO
    actor: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    traceparent: str = ""
    sequence: int = 0


class Effect(Enum):
    """What came of a decision."""

    PERFORMED = "performed"
    SHADOWED = "shadowed"
    """shadow mode: logged, not done"""
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """One engine as the decision saw it."""

    engine: EngineId
    model: ModelName
    priority: int
    active: bool
    pinned: bool
    idle_s: float | None
    pool_pages: int
    spare_pages: int
    unit_pages: int
    lent_pages: int
    floor_pages: int


@dataclass(frozen=True, slots=True)
class RuleTried:
    """One rule of the policy: what it was asked for, what it gave, on what grounds."""

    rule: str
    engine: EngineId | None
    asked_pages: int
    given_pages: int
    why: str


@dataclass(frozen=True, slots=True)
class MoveChosen:
    """pages: that come free by it; below 0, pages that it takes."""

    engine: EngineId
    model: ModelName
    action: str
    pages: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why pages moved, or did not.

    borrower  the model that it was for; None: for all, as when lent pages go back
    """

    device: DeviceId
    number: int
    at_unix_s: float
    effect: Effect
    borrower: ModelName | None
    short_pages: int
    free_pages: int
    inputs: tuple[DecisionInput, ...]
    rules: tuple[RuleTried, ...]
    moves: tuple[MoveChosen, ...]
    authority: Authority | None = None
    """the latest directive that the agent held to"""

    def models(self) -> tuple[ModelName, ...]:
        """Models whose pages it moves, and the one that it was for."""
        named = [move.model for move in self.moves]
        if self.borrower is not None:
            named.append(self.borrower)
        return tuple(dict.fromkeys(named))
