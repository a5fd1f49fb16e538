"""One agent's session: what was said, and what its messages mean.

This is the hot path: a thousand agents report once a second on the core that does all the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.controller import outbox as box
from cluster.controller.outbox import Outbox
from cluster.metrics import SessionCounters
from cluster.records import read_subject
from cluster.rpc.errors import ApiError, Code, Violation, as_api_error, invalid
from mirage_core.cluster_model import (
    AGENT_PROTOCOL_VERSION,
    AgentHello,
    DeviceObservation,
    Event,
    Explanation,
    LeaderWelcome,
    agreed_version,
)
from mirage_core.control import reconciler_events as events
from mirage_core.errors import ProtocolError
from mirage_core.model import DeviceId
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common


class Leadership(Protocol):
    """What sessions need of the leader's term."""

    def leads(self) -> bool:
        """Whether this process leads at this moment, by its own clock."""
        ...

    async def welcome(self, hello: AgentHello) -> LeaderWelcome:
        """Raises ApiError if the agent cannot be taken."""
        ...

    def handle(self, event: events.Event) -> None: ...

    def take_event(self, device: DeviceId, event: Event) -> None: ...

    def take_explanation(self, explanation: Explanation) -> None: ...


@dataclass(slots=True, eq=False)
class AgentSession:
    """heard_s, sent_s  of the last message of either side
    beat_after_s     silence of this side that ends in a heartbeat
    observation      the device as last reported; None: a snapshot is awaited
    messages         since rates were last looked at
    fault            why it was ended
    """

    hello: AgentHello
    term: Leadership
    outbox: Outbox
    counters: SessionCounters
    heard_s: float
    sent_s: float
    beat_after_s: float
    observation: DeviceObservation | None = None
    snapshot_wanted: bool = True
    messages: int = 0
    heartbeats: int = 0
    fault: ApiError | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, fault: ApiError | None = None) -> None:
        """Nothing is said any more but why."""
        if not self.ended.is_set():
            self.fault = fault
            self.outbox.close(last_word(fault) if fault is not None else None)
            self.ended.set()

    def beat(self) -> None:
        """A sign of life, as nothing else was said."""
        self.heartbeats += 1
        beat = pb.SessionResponse(heartbeat=pb.Heartbeat(sequence=self.heartbeats))
        self.outbox.put(box.HEARTBEAT, beat)

    def take(self, request: pb.SessionRequest) -> None:
        """A message of the agent's.  Raises ApiError for what has no place in a session."""
        if request is None:
            raise invalid(Violation("request", "is no message of this stream"))
        try:
            self._take(request)
        except ProtocolError as error:
            raise as_api_error(error) from error

    def _take(self, request: pb.SessionRequest) -> None:
        device = self.hello.device
        match request.WhichOneof("body"):
            case "delta":
                self._observe(self._after(request.delta))
            case "snapshot":
                self.snapshot_wanted = False
                self._observe(agent_codec.decode_observation(request.snapshot))
            case "heartbeat":
                pass
            case "acknowledgement":
                answer = cluster_codec.decode_acknowledgement(request.acknowledgement)
                self.term.handle(events.Answered(device, answer))
            case "event":
                self.term.take_event(device, cluster_codec.decode_event(request.event))
            case "explanation":
                explanation = agent_codec.decode_explanation(request.explanation)
                if explanation.device != device:
                    raise invalid(Violation("explanation.device", "is another's"))
                self.term.take_explanation(explanation)
            case "hello":
                raise invalid(Violation("hello", "comes once"))
            case _:
                raise invalid(Violation("body", "must be set"))

    def _after(self, delta: Any) -> DeviceObservation | None:
        if self.observation is None:
            return None
        return agent_codec.decode_delta(delta).apply(self.observation)

    def _observe(self, observation: DeviceObservation | None) -> None:
        """None: a report is missing, so all is asked for, once."""
        self.observation = observation
        if observation is not None:
            self.counters.reports += 1
            self.term.handle(events.Reported(self.hello.device, observation))
        elif not self.snapshot_wanted:
            self.snapshot_wanted = True
            wanted = pb.SessionResponse(snapshot_wanted=pb.SnapshotWanted())
            self.outbox.put(box.WANTED, wanted)


def decode_hello(message: pb.AgentHello) -> AgentHello:
    """Raises ApiError for a hello that says nonsense, or another version."""
    try:
        hello = agent_codec.decode_hello(message)
        read_subject(hello.device, "hello.device")
        read_subject(hello.node, "hello.node")
    except ProtocolError as error:
        raise as_api_error(error) from error
    if agreed_version(hello.protocol_version) is None:
        raise ApiError(
            Code.FAILED_PRECONDITION,
            common.ERROR_REASON_INCOMPATIBLE_VERSION,
            f"the agent speaks protocol {hello.protocol_version},"
            f" this controller {AGENT_PROTOCOL_VERSION}",
            fields=(Violation("hello.protocol_version", "is not N or N-1"),),
            advice="upgrade the older side; versions N and N-1 work together",
        )
    return hello


def last_word(error: ApiError) -> pb.SessionResponse:
    """What an agent is told before its stream ends with a status."""
    if error.detail.reason == common.ERROR_REASON_NOT_LEADER:
        address = error.detail.leader_address
        return pb.SessionResponse(not_leader=pb.NotLeader(leader_address=address))
    rejected = pb.AgentRejected(error=error.detail, message=error.message)
    return pb.SessionResponse(rejected=rejected)
