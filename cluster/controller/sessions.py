"""Agents' streams: one session for each device, of which the newest wins.

One task reads a session and one writes it, from its outbox.  A single ticker watches over all of
them: it sends heartbeats where nothing else was sent, and ends sessions that were silent for three
intervals (plain gRPC writes into a silent partition for minutes without an error).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from cluster.controller import outbox as box
from cluster.controller.outbox import Outbox
from cluster.controller.session import AgentSession, Leadership, decode_hello, last_word
from cluster.election import Following, Role
from cluster.metrics import SessionCounters
from cluster.rpc.errors import ApiError, Code, Violation, internal, invalid, not_leader
from cluster.security import certificate_names
from mirage_core.cluster_model import AgentHello, Directive, DirectiveSnapshot
from mirage_core.control import reconciler_events as events
from mirage_core.model import DeviceId
from mirage_core.ports import Clock
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2 as pb
from mirage_core.wire.v1 import agent_pb2_grpc
from mirage_core.wire.v1 import common_pb2 as common

_log = logging.getLogger("mirage.sessions")

MISSED_HEARTBEATS = 3
HELLO_PATIENCE_S = 10.0
ELECTION_PATIENCE_S = 2.5
"""Shorter than agents wait for the first word."""
_OUTBOX_MESSAGES = 4096
_TICKS_A_HEARTBEAT = 20
_SPREAD = 0.25
"""Of a heartbeat: by so much sessions differ in how long they are silent before they beat.  Without
it all that were told something at once beat at once ever after, and directives wait behind them."""
_GOLDEN = 0.618034
"""Multiples of it, less whole numbers, are spread evenly however many there are."""
_RATE_WINDOW_S = 10.0


class AgentSessions(agent_pb2_grpc.AgentServiceServicer):
    """The agents' service; ``term`` is None while this process does not lead."""

    def __init__(
        self,
        clock: Clock,
        *,
        heartbeat_s: float,
        agents: int,
        messages_per_s: float,
        role: Callable[[], Role],
        leader_address: Callable[[], str],
        bind_certificates: bool,
    ) -> None:
        """``bind_certificates``: an agent's node must be a name of its certificate."""
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._agents = agents
        self._messages_per_s = messages_per_s
        self._role = role
        self._leader_address = leader_address
        self._bind_certificates = bind_certificates
        self._sessions: dict[DeviceId, AgentSession] = {}
        self._rate_window_s = clock.monotonic_s()
        self._news = asyncio.Event()
        self._looked_at: Role | None = None
        self.waiting = 0
        """agents that wait for an election; may be read from any thread"""
        self.term: Leadership | None = None
        self.counters = SessionCounters()

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- to agents

    def send(self, device: DeviceId, directive: Directive) -> None:
        session = self._sessions.get(device)
        if session is not None:
            self.counters.directives += 1
            message = pb.SessionResponse(directive=cluster_codec.encode_directive(directive))
            if not session.outbox.put_directive(directive.key, message):
                self._give_up(session, "it does not read")

    def send_all(self, device: DeviceId, snapshot: DirectiveSnapshot) -> None:
        session = self._sessions.get(device)
        if session is not None:
            message = agent_codec.encode_directive_snapshot(snapshot)
            session.outbox.put(box.SNAPSHOT, pb.SessionResponse(directives=message))

    def begin(self, term: Leadership) -> None:
        """This process leads."""
        self.term = term
        self.look_again()

    def look_again(self) -> None:
        """Let agents that wait for an election see what there is now."""
        self._looked_at = self._role()
        self._news.set()
        self._news = asyncio.Event()

    def end_all(self) -> None:
        """This process does not lead any more."""
        self.term = None
        for session in self._sessions.values():
            session.end(not_leader(self._leader_address()))
        self._sessions.clear()
        self.counters.connected = 0

    async def watch_over(self) -> None:
        """Heartbeats, silence and rates, until cancelled."""
        pause_s = self._heartbeat_s / _TICKS_A_HEARTBEAT
        while True:
            before_s = self._clock.monotonic_s()
            await asyncio.sleep(pause_s)
            if self.waiting and self._role() != self._looked_at:
                self.look_again()
            now_s = self._clock.monotonic_s()
            late_s = now_s - before_s - pause_s
            for session in list(self._sessions.values()):
                self._watch(session, now_s, late_s)
            if now_s - self._rate_window_s >= _RATE_WINDOW_S:
                self._rate_window_s = now_s

    def _watch(self, session: AgentSession, now_s: float, late_s: float) -> None:
        if late_s > self._heartbeat_s:
            session.heard_s += late_s  # it was this process that did not listen
        if now_s - session.heard_s > MISSED_HEARTBEATS * self._heartbeat_s:
            self.counters.silent += 1
            self._give_up(session, f"silent for {now_s - session.heard_s:.1f} s")
            return
        if now_s - self._rate_window_s >= _RATE_WINDOW_S:
            if session.messages > self._messages_per_s * _RATE_WINDOW_S:
                self._give_up(session, f"{session.messages} messages in {_RATE_WINDOW_S:g} s")
                return
            session.messages = 0
        if now_s - session.sent_s >= session.beat_after_s:
            session.beat()

    def _give_up(self, session: AgentSession, why: str) -> None:
        _log.warning("%s: %s", session.hello.device, why)
        fault = ApiError(
            Code.RESOURCE_EXHAUSTED, common.ERROR_REASON_OVERLOADED, why, retryable=True
        )
        session.end(fault)

    # ---- from agents

    async def Session(
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> None:
        requests = aiter(request_iterator)
        try:
            session = await self._open(requests, context)
        except ApiError as error:
            self.counters.rejected += 1
            await self._reject(context, error)
            return
        reader = asyncio.create_task(self._read(session, requests))
        writer = asyncio.create_task(self._write(session, context))
        ended = asyncio.create_task(session.ended.wait())
        try:
            await asyncio.wait((reader, writer, ended), return_when=asyncio.FIRST_COMPLETED)
            failure = reader.exception() if reader.done() else None
            if failure is not None:
                session.end(self._fault_of(session, failure))
            session.end()
            await asyncio.wait((writer,), timeout=self._heartbeat_s)
        finally:
            session.end()
            for task in (reader, writer, ended):
                task.cancel()
            await asyncio.gather(reader, writer, ended, return_exceptions=True)
            self._leave(session)
        if (fault := session.fault) is not None:
            await context.abort(fault.code, fault.message, fault.trailing_metadata())

    def _fault_of(self, session: AgentSession, error: BaseException) -> ApiError:
        device = session.hello.device
        if isinstance(error, ApiError):
            _log.warning("%s: %s", device, error)
            return error
        _log.error("the session of %s failed", device, exc_info=error)
        return internal()

    async def _open(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> AgentSession:
        try:
            async with asyncio.timeout(HELLO_PATIENCE_S):
                request = await anext(requests, None)
        except TimeoutError:
            request = None
        if request is None or request.WhichOneof("body") != "hello":
            raise invalid(Violation("hello", "must be the first message"))
        hello = decode_hello(request.hello)
        self._check_certificate(hello, context)
        term = await self._elected(hello)
        if len(self._sessions) >= self._agents and hello.device not in self._sessions:
            raise ApiError(
                Code.RESOURCE_EXHAUSTED,
                common.ERROR_REASON_OVERLOADED,
                f"{self._agents} agents are connected, which is this controller's limit",
                retryable=True,
                retry_after_s=10.0,
            )
        welcome = await term.welcome(hello)
        if self.term is not term or not term.leads():
            raise not_leader(self._leader_address())
        now_s = self._clock.monotonic_s()
        outbox = Outbox(_OUTBOX_MESSAGES)
        spread = _SPREAD * (self.counters.opened * _GOLDEN % 1.0)
        beat_after_s = self._heartbeat_s * (1 - 1 / _TICKS_A_HEARTBEAT - spread)
        session = AgentSession(hello, term, outbox, self.counters, now_s, now_s, beat_after_s)
        message = pb.SessionResponse(welcome=agent_codec.encode_welcome(welcome))
        session.outbox.put(box.WELCOME, message)
        earlier = self._sessions.get(hello.device)
        if earlier is not None:
            earlier.end(_superseded(hello))
        self._sessions[hello.device] = session
        self.counters.opened += 1
        self.counters.connected = len(self._sessions)
        term.handle(events.Joined(hello))
        return session

    async def _elected(self, hello: AgentHello) -> Leadership:
        """The term of this process, or ApiError (not leader) with who leads instead.

        An agent that comes from the very leader that this process knows has lost it: it waits here
        until that one is seen to renew its lease, or another is elected, and asks nobody meanwhile.
        """
        came_s = self._clock.monotonic_s()
        until_s = came_s + ELECTION_PATIENCE_S
        came_from = hello.latest.epoch if hello.latest is not None else 0
        self.waiting += 1
        try:
            while True:
                if self.term is not None and self.term.leads():
                    return self.term
                left_s = until_s - self._clock.monotonic_s()
                told = self._leads_elsewhere(came_from, came_s)
                if told or left_s <= 0 or self.waiting > self._agents:
                    raise not_leader(self._leader_address())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._news.wait()
        finally:
            self.waiting -= 1

    def _leads_elsewhere(self, came_from: int, came_s: float) -> bool:
        """Whether another process is known to lead, by more than a lease that may be a dead one's:
        it was renewed since the agent came, or is not of the epoch that the agent came from."""
        role = self._role()
        if not isinstance(role, Following) or role.leader is None:
            return False
        return role.epoch != came_from or role.renewed_s > came_s

    def _check_certificate(self, hello: AgentHello, context: Any) -> None:
        if not self._bind_certificates:
            return
        names = certificate_names(context.auth_context())
        if hello.node not in names:
            raise ApiError(
                Code.PERMISSION_DENIED,
                common.ERROR_REASON_FORBIDDEN,
                f"the certificate is not node {hello.node!r}'s:"
                f" it names {', '.join(sorted(names)) or 'nobody'}",
                advice="give the agent a certificate whose subject alternative names hold its node",
            )

    def _leave(self, session: AgentSession) -> None:
        device = session.hello.device
        if self._sessions.get(device) is session:
            del self._sessions[device]
            self.counters.connected = len(self._sessions)
            if self.term is session.term:
                session.term.handle(events.Left(device, session.hello.incarnation))

    async def _reject(self, context: Any, error: ApiError) -> None:
        if error.detail.reason != common.ERROR_REASON_NOT_LEADER:
            _log.warning("an agent was rejected: %s", error)
        await context.write(last_word(error))
        await context.abort(error.code, error.message, error.trailing_metadata())

    async def _write(self, session: AgentSession, context: Any) -> None:
        while True:
            messages = await session.outbox.take()
            for message in messages:
                if not session.outbox.closed and not session.term.leads():
                    return
                await context.write(message)
            if messages:
                session.sent_s = self._clock.monotonic_s()
            elif session.outbox.closed:
                return

    async def _read(
        self, session: AgentSession, requests: AsyncIterator[pb.SessionRequest]
    ) -> None:
        """Until the agent ends the stream.  Raises ApiError for what has no place in it."""
        async for request in requests:
            if session.ended.is_set():
                return
            session.heard_s = self._clock.monotonic_s()
            session.messages += 1
            session.take(request)


def _superseded(hello: AgentHello) -> ApiError:
    return ApiError(
        Code.ABORTED,
        common.ERROR_REASON_PRECONDITION,
        f"another agent of {hello.device} said hello: incarnation {hello.incarnation}",
        advice="run one agent for each device",
    )
