"""One conversation with the leader, from its welcome to its end.

One task reads, one writes (a stream has one writer), one keeps time.  The time keeper counts how
often it woke without a word from the leader, so that an event loop that was held up does not take
its own delay for the leader's silence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from mirage_core.cluster_model import (
    Acknowledgement,
    Event,
    Explanation,
    LeaderWelcome,
    ObservationDelta,
    Outcome,
)
from mirage_core.ports import Clock
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2
from node_agent.uplink_keeper import Keeper, UplinkDevice
from node_agent.uplink_outbox import Outbox
from node_agent.uplink_reports import Reporter

MISSED_HEARTBEATS = 3
MAX_EVENTS = 256
MAX_EXPLANATIONS = 64
TELLINGS_A_REPORT = 32
"""Events and explanations together, so that a device in trouble does not drown its leader."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Why a session ended, and where to go next.

    leader    whom a controller that does not lead named as leader, empty if it knows none; None:
              no such controller was reached
    rejected  the leader will not have this agent as it is
    late      nothing was heard within the patience
    """

    reason: str
    leader: str | None = None
    rejected: bool = False
    late: bool = False


class Telling:
    """What happened on the device, for whoever leads: bounded, the oldest is dropped.

    Events are told once.  Explanations are told again to each new leader, whose memory begins with
    what agents say.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.explanations: deque[Explanation] = deque(maxlen=MAX_EXPLANATIONS)


class Session:
    """``phase`` from 0 to 1: when in the report interval this agent reports."""

    def __init__(
        self,
        call: Any,
        welcome: LeaderWelcome,
        keeper: Keeper,
        device: UplinkDevice,
        telling: Telling,
        clock: Clock,
        phase: float,
    ) -> None:
        self._call = call
        self._welcome = welcome
        self._keeper = keeper
        self._device = device
        self._telling = telling
        self._clock = clock
        self._phase = phase
        self._outbox: Outbox[agent_pb2.SessionRequest] = Outbox()
        self._reporter = Reporter()
        self._explained = 0
        self._may_tell = TELLINGS_A_REPORT
        self._beats = 0
        self._silent_beats = 0
        self._written = False
        self.reports = 0

    async def run(self) -> SessionEnd:
        """Raises ProtocolError, OSError (the disk) and AioRpcError."""
        self._outbox.put("report", self._report)
        self.tell()
        tasks = [
            asyncio.create_task(part) for part in (self._read(), self._write(), self._keep_time())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def tell(self) -> None:
        """There may be something new in ``telling``."""
        if self._telling.events:
            self._outbox.put("event", self._event)
        if self._telling.explanations and self._telling.explanations[-1].number > self._explained:
            self._outbox.put("explanation", self._explanation)

    # ---- tasks

    async def _read(self) -> SessionEnd:
        while True:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                return SessionEnd("the leader ended the stream")
            self._silent_beats = 0
            match message.WhichOneof("body"):
                case "directive":
                    self._answer(await self._keeper.obey(message.directive))
                case "directives":
                    self._answer(await self._keeper.obey_all(message.directives))
                case "snapshot_wanted":
                    self._reporter.restart()
                    self._outbox.put("report", self._report)
                case "not_leader" | "rejected":
                    return end_of(message)

    async def _write(self) -> SessionEnd:
        while True:
            await self._call.write(await self._outbox.take())
            self._written = True

    async def _keep_time(self) -> SessionEnd:
        welcome = self._welcome
        now_s = self._clock.monotonic_s()
        # In step with each other where the intervals are equal: one waking serves both.
        beat_s = now_s + welcome.heartbeat_s * self._phase
        report_s = now_s + welcome.report_interval_s * self._phase
        while True:
            await asyncio.sleep(min(beat_s, report_s) - now_s)
            now_s = self._clock.monotonic_s()
            if now_s >= beat_s:
                beat_s = max(beat_s, now_s - welcome.heartbeat_s) + welcome.heartbeat_s
                self._silent_beats += 1
                if self._silent_beats > MISSED_HEARTBEATS:
                    return SessionEnd(f"the leader was silent for {MISSED_HEARTBEATS} heartbeats")
                if not self._written:
                    self._outbox.put("heartbeat", self._heartbeat)
                self._written = False
            if now_s >= report_s:
                late_s = now_s - welcome.report_interval_s
                report_s = max(report_s, late_s) + welcome.report_interval_s
                self._outbox.put("report", self._report)
                self._may_tell = TELLINGS_A_REPORT
                self.tell()

    # ---- what is written

    def _answer(self, answers: Iterable[Acknowledgement]) -> None:
        for answer in answers:
            message = cluster_codec.encode_acknowledgement(answer)
            request = agent_pb2.SessionRequest(acknowledgement=message)
            # Refusals do not always know their key.
            key = answer.operation if answer.outcome is Outcome.REFUSED else answer.key
            self._outbox.put(("answer", key), _saying(request))

    def _report(self) -> agent_pb2.SessionRequest:
        self.reports += 1
        report = self._device.report()
        self._answer(self._keeper.reached(report))
        said = self._reporter.next(report)
        if isinstance(said, ObservationDelta):
            return agent_pb2.SessionRequest(delta=agent_codec.encode_delta(said))
        return agent_pb2.SessionRequest(snapshot=agent_codec.encode_observation(said))

    def _heartbeat(self) -> agent_pb2.SessionRequest:
        self._beats += 1
        return agent_pb2.SessionRequest(heartbeat=agent_pb2.Heartbeat(sequence=self._beats))

    def _event(self) -> agent_pb2.SessionRequest | None:
        events = self._telling.events
        if not events or not self._may_tell:
            return None
        self._may_tell -= 1
        if len(events) > 1:
            self._outbox.put("event", self._event)
        return agent_pb2.SessionRequest(event=cluster_codec.encode_event(events.popleft()))

    def _explanation(self) -> agent_pb2.SessionRequest | None:
        new = [each for each in self._telling.explanations if each.number > self._explained]
        if not new or not self._may_tell:
            return None
        self._may_tell -= 1
        if len(new) > 1:
            self._outbox.put("explanation", self._explanation)
        self._explained = new[0].number
        return agent_pb2.SessionRequest(explanation=agent_codec.encode_explanation(new[0]))


def _saying(request: agent_pb2.SessionRequest) -> Callable[[], agent_pb2.SessionRequest]:
    return lambda: request


def end_of(message: Any) -> SessionEnd:
    """What a controller says that ends a session."""
    match message.WhichOneof("body"):
        case "not_leader":
            leader = message.not_leader.leader_address[:256]
            return SessionEnd(f"not the leader; {leader or 'none is known'}", leader=leader)
        case "rejected":
            error = message.rejected.error
            advice = f" ({error.advice})" if error.advice else ""
            return SessionEnd(
                f"rejected: {message.rejected.message}{advice}", rejected=not error.retryable
            )
    return SessionEnd("the leader's first word was no greeting")
