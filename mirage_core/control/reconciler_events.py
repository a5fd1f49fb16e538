"""What the reconciler hears and what it says: values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from mirage_core.cluster_model import (
    Acknowledgement,
    AgentHello,
    AgentIncarnation,
    Authority,
    DeviceObservation,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    Severity,
    Wish,
)
from mirage_core.model import DeviceId, ModelName

# ---- events


@dataclass(frozen=True, slots=True)
class Wished:
    """A wish as it now stands; ``traceparent`` of the call that set it.

    more  others come at once (of the same write, or at a term's start): nothing is decided before
          the last, so that a thousand wishes cost one decision
    """

    wish: Wish
    revision: int
    traceparent: str = ""
    more: bool = False


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A model's record is gone from the store."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class Joined:
    """An agent said hello and was welcomed; it takes the place of an earlier one."""

    hello: AgentHello


@dataclass(frozen=True, slots=True)
class Left:
    """An agent's stream ended.  Nothing is known of its device from now on but what was last."""

    device: DeviceId
    incarnation: AgentIncarnation


@dataclass(frozen=True, slots=True)
class Reported:
    """All that an agent sees of its device."""

    device: DeviceId
    observation: DeviceObservation


@dataclass(frozen=True, slots=True)
class Answered:
    """An agent answered a directive."""

    device: DeviceId
    answer: Acknowledgement


@dataclass(frozen=True, slots=True)
class Committed:
    """The last ``Commit`` is in the store, at this revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; expected about once a second."""


Event: TypeAlias = Wished | Forgotten | Joined | Left | Reported | Answered | Committed | Tick


# ---- actions


@dataclass(frozen=True, slots=True)
class Write:
    """One directive to store; ``body`` None: delete the key."""

    device: DeviceId
    key: DirectiveKey
    operation: DirectiveId
    body: DirectiveBody | None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """Store all of these, fenced, at once; answered by ``Committed``.  One at a time."""

    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Send:
    device: DeviceId
    directive: Directive


@dataclass(frozen=True, slots=True)
class SendAll:
    """Replaces all that the agent holds to."""

    device: DeviceId
    snapshot: DirectiveSnapshot


@dataclass(frozen=True, slots=True)
class Emit:
    """Something for people to know."""

    kind: str
    subject: str
    message: str
    severity: Severity = Severity.INFO
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Purge:
    """An absent model runs nowhere any more: delete its record if it is at ``revision``."""

    model: ModelName
    revision: int


@dataclass(frozen=True, slots=True)
class Changed:
    """What readers see of a subject may have changed (``model/NAME``, ``device/ID``, ...)."""

    subject: str


@dataclass(frozen=True, slots=True)
class Deposed:
    """An agent has heard a leader with a higher epoch."""

    latest: Authority


Action: TypeAlias = Commit | Send | SendAll | Emit | Purge | Changed | Deposed
