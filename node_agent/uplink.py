"""The agent's way to the leader: dial, greet, converse, and dial again.

Nothing here waits for a controller: without one the agent holds to what it was last told.  Many
uplinks may share an event loop, as simulated agents do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from mirage_core.cluster_model import (
    AgentHello,
    Event,
    Explanation,
    LeaderWelcome,
    agreed_version,
)
from mirage_core.errors import ConfigError, ProtocolError
from mirage_core.ports import Clock
from mirage_core.wire import agent_codec
from mirage_core.wire.v1 import agent_pb2, agent_pb2_grpc
from node_agent.uplink_keeper import DirectivesStore, Keeper, UplinkDevice
from node_agent.uplink_route import Route
from node_agent.uplink_session import Session, SessionEnd, Telling, end_of
from node_agent.uplink_settings import UplinkSettings, metadata, open_channel

_log = logging.getLogger("mirage.uplink")

FIRST_PATIENCE_S = 3.0
MAX_PATIENCE_S = 24.0
"""For a connection, and again for the leader's first word; longer after each time in vain, so that
many agents that come at once do not all give up before their turn, and come again."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
"""Low, because all agents must have found a new leader in five seconds."""
REJECTED_BACKOFF_S = 15.0
"""After a leader said that it will not have this agent as it is."""


@dataclass(slots=True)
class UplinkCounters:
    dials: int = 0
    sessions: int = 0
    connected: bool = False
    leader: str = ""


def backoff_s(failures: int, share: float) -> float:
    """Wait before the next dial: twice as long with each failure in a row, from half of it to all
    of it as ``share`` of 0 to 1 has it, so that agents do not come in step."""
    longest_s = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 16), MAX_BACKOFF_S)
    return longest_s * (0.5 + 0.5 * share)


async def _connect(channel: grpc.aio.Channel, patience_s: float) -> bool:
    """Whether the other side said anything within the patience; what it was a call will tell."""
    said = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(patience_s):
            while state not in said:
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return True


def patience_s(in_vain: int) -> float:
    """How long a connection, or a leader's first word, is waited for."""
    return min(FIRST_PATIENCE_S * 2.0 ** min(in_vain, 16), MAX_PATIENCE_S)


class Uplink:
    """``hello`` says who the agent is; what it holds to is filled in.

    Raises ConfigError if the store cannot be read.
    """

    def __init__(
        self,
        hello: AgentHello,
        settings: UplinkSettings,
        device: UplinkDevice,
        store: DirectivesStore,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._hello = hello
        self._settings = settings
        self._device = device
        self._clock = clock
        self._rng = rng
        self._telling = Telling()
        self._session: Session | None = None
        self._spare: tuple[str, grpc.aio.Channel] | None = None
        self.keeper = Keeper(device, store, hello.page_bytes)
        self.counters = UplinkCounters()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.keeper.restore()
        try:
            await self._serve_forever()
        finally:
            await self._close_spare()

    async def _serve_forever(self) -> None:
        controllers = self._settings.controllers
        first = self._rng.randrange(len(controllers))
        route = Route(controllers, first, self._settings.may_dial)
        failures = in_vain = 0
        while True:
            address = route.address
            sessions = self.counters.sessions
            end = await self._serve(address, patience_s(in_vain))
            _log.info("uplink to %s ended: %s", address, end.reason)
            failures = 0 if self.counters.sessions > sessions else failures + 1
            in_vain = in_vain + 1 if end.late else 0
            if route.take(end.leader):
                continue
            wait_s = REJECTED_BACKOFF_S if end.rejected else backoff_s(failures, self._rng.random())
            await asyncio.sleep(wait_s)

    def tell(self, item: Event | Explanation) -> None:
        """Let the leader know, now or when there is one; for the event loop's own thread."""
        if isinstance(item, Explanation):
            latest = self.keeper.held.latest
            self._telling.explanations.append(replace(item, authority=latest))
        else:
            self._telling.events.append(item)
        if self._session is not None:
            self._session.tell()

    async def _serve(self, address: str, patience_s: float) -> SessionEnd:
        """One session, from dial to end; it never raises but when cancelled."""
        try:
            channel = self._dial(address)
        except ConfigError as error:
            return SessionEnd(str(error))
        end = None
        try:
            end = await self._talk(channel, patience_s)
            return end
        finally:
            if end is not None and end.leader is not None:
                # Agents wait for an election here: to ask again must not cost a handshake.
                await self._close_spare()
                self._spare = (address, channel)
            else:
                await channel.close()

    def _dial(self, address: str) -> grpc.aio.Channel:
        """ConfigError if a certificate cannot be read."""
        if self._spare is not None and self._spare[0] == address:
            channel = self._spare[1]
            self._spare = None
            return channel
        self.counters.dials += 1
        return open_channel(self._settings, address)

    async def _close_spare(self) -> None:
        if self._spare is not None:
            channel = self._spare[1]
            self._spare = None
            await channel.close()

    async def _talk(self, channel: grpc.aio.Channel, patience_s: float) -> SessionEnd:
        try:
            headers = metadata(self._settings)
            if not await _connect(channel, patience_s):
                return SessionEnd(f"not reached within {patience_s:g} s", late=True)
            call = agent_pb2_grpc.AgentServiceStub(channel).Session(metadata=headers)
            try:
                greeting = await asyncio.wait_for(self._greet(call), patience_s)
                if isinstance(greeting, SessionEnd):
                    return greeting
                await self._close_spare()
                return await self._converse(call, greeting)
            finally:
                call.cancel()
        except TimeoutError:
            return SessionEnd(f"no greeting within {patience_s:g} s", late=True)
        except ConfigError as error:
            return SessionEnd(str(error))
        except ProtocolError as error:
            return SessionEnd(f"the leader sent what this agent cannot read: {error}")
        except OSError as error:
            return SessionEnd(f"directives cannot be kept, so none is obeyed: {error.strerror}")
        except grpc.aio.AioRpcError as error:
            return SessionEnd(f"{error.code().name}: {error.details()}")
        except asyncio.InvalidStateError:
            # grpc.aio's word for a write to a stream that ended since it was last looked at.
            return SessionEnd("the stream has ended")

    async def _greet(self, call: Any) -> LeaderWelcome | SessionEnd:
        held = self.keeper.held
        hello = replace(
            self._hello,
            latest=held.latest,
            held=tuple((each.key, each.operation) for each in held.directives),
        )
        await call.write(agent_pb2.SessionRequest(hello=agent_codec.encode_hello(hello)))
        message = await call.read()
        if message is grpc.aio.EOF:
            return SessionEnd("the stream ended before a greeting")
        if message.WhichOneof("body") != "welcome":
            return end_of(message)
        welcome = agent_codec.decode_welcome(message.welcome)
        if agreed_version(welcome.protocol_version, self._hello.protocol_version) is None:
            reason = (
                f"the leader speaks protocol {welcome.protocol_version}, this agent"
                f" {self._hello.protocol_version}: upgrade the older one"
            )
            return SessionEnd(reason, rejected=True)
        refusal = self.keeper.welcome(welcome)
        return SessionEnd(f"not obeyed: {refusal}") if refusal is not None else welcome

    async def _converse(self, call: Any, welcome: LeaderWelcome) -> SessionEnd:
        self._session = Session(
            call,
            welcome,
            self.keeper,
            self._device,
            self._telling,
            self._clock,
            phase=self._rng.random(),
        )
        self.counters.sessions += 1
        self.counters.connected = True
        self.counters.leader = welcome.leader
        try:
            return await self._session.run()
        finally:
            self._session = None
            self.counters.connected = False
