"""What the arbiter hears and what it says: values, written to the event log as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mirage_core.cluster_model import DecisionInput, Effect
from mirage_core.control.directed import Directions
from mirage_core.model import EngineId, ModelName
from mirage_core.policy.decision import Decision
from mirage_core.wire.messages import (
    AgentMessage,
    Ask,
    Describe,
    Done,
    GiveBack,
    Refused,
    Rejoin,
    Report,
    Role,
    Take,
)

# ---- events


@dataclass(frozen=True, slots=True)
class Linked:
    """A process of an engine said hello."""

    engine: EngineId
    model: ModelName
    role: Role


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A link was lost.  The process may live; its pages are its own."""

    engine: EngineId
    role: Role


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine's worker has ended, and with it every mapping of its pages."""

    engine: EngineId


@dataclass(frozen=True, slots=True)
class Received:
    """A message of an engine that has said hello."""

    engine: EngineId
    message: Take | Describe | Report | Ask | Done | Refused | Rejoin | GiveBack


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Directed:
    """The cluster controller's directives changed: all that hold from now on.

    ``traceparent``: W3C trace context of the directive that changed them, empty if there is none.
    What is ordered while this event is handled carries it, and so does the plan that the answer
    to such an order makes room for.  A later shortage that merely finds other priorities is
    nobody's directive, and carries none.
    """

    directions: Directions
    traceparent: str = ""


Event: TypeAlias = Linked | Unlinked | EngineDied | Received | Tick | Directed


# ---- actions


@dataclass(frozen=True, slots=True)
class Send:
    """A message to one process of an engine."""

    engine: EngineId
    role: Role
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class Explain:
    """Why pages move, or why they cannot: for people and for the event log.

    ``engine`` is whom it was for; None for a reversion, which is for all.  ``inputs`` are the
    engines as they were seen, ``free_pages`` the free list.
    """

    engine: EngineId | None
    decision: Decision
    effect: Effect = Effect.PERFORMED
    free_pages: int = 0
    inputs: tuple[DecisionInput, ...] = ()


Action: TypeAlias = Send | Explain
