"""The smallest agent that keeps to agent.proto: it obeys, reports and acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from mirage_core.cluster_model import (
    Acknowledgement,
    AgentHello,
    AgentIncarnation,
    Authority,
    DeviceObservation,
    Directive,
    DirectiveKey,
    EngineObservation,
    NodeName,
    Outcome,
)
from mirage_core.model import DeviceId
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2 as pb
from mirage_core.wire.v1 import agent_pb2_grpc


class TinyAgent:
    """``run`` one session at ``address``; again, if it ends, where it is sent."""

    def __init__(self, device: str, node: str = "node-1", *, pages: int = 1000) -> None:
        self.device = DeviceId(device)
        self.hello = AgentHello(
            NodeName(node), self.device, AgentIncarnation(f"{device}-1"), 1 << 20, pages, node
        )
        self.engines: tuple[EngineObservation, ...] = ()
        self.refuse: dict[DirectiveKey, str] = {}
        self.holds: dict[DirectiveKey, Directive] = {}
        self.latest: Authority | None = None
        self.obeyed: list[Directive] = []
        self.refused_authorities: list[Authority] = []
        self.welcomes: list[Any] = []
        self.rejections: list[pb.AgentRejected] = []
        self.last_status: grpc.StatusCode | None = None
        self.named: list[str] = []
        """leaders that standbys named, empty where none was known"""
        self.answers = True
        self.silent = False
        self._outbox: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self._sequence = 0

    def report(self, *engines: EngineObservation) -> None:
        """Send a snapshot with these engines."""
        self.engines = engines
        self._sequence += 1
        used = sum(e.resident_pages + e.pool_pages for e in engines)
        seen = DeviceObservation(self._sequence, self.hello.pages - used, 0, engines)
        self._send(snapshot=agent_codec.encode_observation(seen))

    def send(self, **body: Any) -> None:
        self._send(**body)

    def _send(self, **body: Any) -> None:
        self._outbox.put_nowait(pb.SessionRequest(**body))

    async def run(self, *addresses: str, pause_s: float = 0.05) -> None:
        """Dial each address in turn until cancelled."""
        while True:
            for address in addresses:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self.session(address)
                await asyncio.sleep(pause_s)

    async def session(self, address: str, credentials: Any = None) -> None:
        self._outbox = asyncio.Queue()
        make = grpc.aio.insecure_channel if credentials is None else _secure(credentials)
        async with make(address) as channel:
            call = agent_pb2_grpc.AgentServiceStub(channel).Session()
            try:
                hello = self._hello()
                await call.write(pb.SessionRequest(hello=hello))
                self.report(*self.engines)
                writer = asyncio.create_task(self._write(call))
                try:
                    async for response in call:
                        self._take(response)
                except grpc.aio.AioRpcError as error:
                    self.last_status = error.code()
                    raise
                finally:
                    writer.cancel()
            finally:
                call.cancel()

    def _hello(self) -> pb.AgentHello:
        message = agent_codec.encode_hello(self.hello)
        if self.latest is not None:
            message.latest.CopyFrom(cluster_codec.encode_authority(self.latest))
        for key, directive in self.holds.items():
            message.held.add(key=key, operation_id=directive.operation)
        return message

    async def _write(self, call: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(0.2):
                    request = await self._outbox.get()
            except TimeoutError:
                request = pb.SessionRequest(heartbeat=pb.Heartbeat())
            if not self.silent:
                await call.write(request)

    def _take(self, response: pb.SessionResponse) -> None:
        match response.WhichOneof("body"):
            case "welcome":
                self.welcomes.append(agent_codec.decode_welcome(response.welcome))
            case "directives":
                snapshot = agent_codec.decode_directive_snapshot(response.directives)
                if self._admit(snapshot.authority):
                    self.holds = {}
                    for directive in snapshot.directives:
                        self._obey(directive)
            case "directive":
                self._obey(cluster_codec.decode_directive(response.directive))
            case "not_leader":
                self.named.append(response.not_leader.leader_address)
            case "rejected":
                self.rejections.append(response.rejected)

    def _admit(self, authority: Authority) -> bool:
        latest = self.latest
        if latest is not None and latest.store == authority.store:
            if authority.epoch < latest.epoch:
                self.refused_authorities.append(authority)
                return False
            authority = max(authority, latest, key=lambda a: (a.epoch, a.revision))
        self.latest = authority
        return True

    def _obey(self, directive: Directive) -> None:
        outcome, reason = Outcome.APPLIED, self.refuse.get(directive.key, "")
        if not self._admit(directive.authority):
            outcome = Outcome.STALE
        elif reason:
            outcome = Outcome.REFUSED
        else:
            self.holds[directive.key] = directive
            self.obeyed.append(directive)
        if not self.answers:
            return
        answer = Acknowledgement(
            directive.operation,
            directive.key,
            directive.authority,
            outcome,
            reason,
            latest=self.latest if outcome is Outcome.STALE else None,
        )
        self._send(acknowledgement=cluster_codec.encode_acknowledgement(answer))


def _secure(credentials: Any) -> Any:
    return lambda address: grpc.aio.secure_channel(address, credentials)


def engine(model: str, *, active: bool | None = False, waiting_pages: int = 0) -> Any:
    """An engine of ``model`` that holds 100 pages of weights and 50 of pool."""
    from mirage_core.model import EngineId, ModelName

    return EngineObservation(
        EngineId(f"{model}-engine"),
        ModelName(model),
        100,
        0,
        50,
        10,
        0,
        waiting_pages=waiting_pages,
        active=active,
    )
