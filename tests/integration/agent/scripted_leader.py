"""A controller whose every word a test chooses: a real gRPC server around the agents' protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from mirage_core.cluster_model import (
    Acknowledgement,
    AgentHello,
    Authority,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveSnapshot,
    LeaderWelcome,
    StoreIncarnation,
)
from mirage_core.wire import agent_codec, cluster_codec
from mirage_core.wire.v1 import agent_pb2, agent_pb2_grpc

WAIT_S = 60.0
STORE = StoreIncarnation("store-1")


class Conversation:
    """One agent's stream, seen from the leader."""

    def __init__(self, hello: AgentHello, context: Any) -> None:
        self.hello = hello
        self.metadata = dict(context.invocation_metadata())
        self._context = context
        self._writing = asyncio.Lock()
        self.heard: list[agent_pb2.SessionRequest] = []
        self._changed = asyncio.Condition()
        self.closed = asyncio.Event()

    async def say(self, message: agent_pb2.SessionResponse) -> None:
        async with self._writing:  # a stream has one writer
            await self._context.write(message)

    async def direct(self, *directives: Directive) -> None:
        for directive in directives:
            message = cluster_codec.encode_directive(directive)
            await self.say(agent_pb2.SessionResponse(directive=message))

    async def snapshot(self, authority: Authority, *directives: Directive) -> None:
        message = agent_codec.encode_directive_snapshot(DirectiveSnapshot(authority, directives))
        await self.say(agent_pb2.SessionResponse(directives=message))

    async def hear(self, message: agent_pb2.SessionRequest) -> None:
        async with self._changed:
            self.heard.append(message)
            self._changed.notify_all()

    async def until(self, holds: Callable[[agent_pb2.SessionRequest], Any]) -> Any:
        """The first message heard, now or later, for which ``holds`` is true."""
        async with asyncio.timeout(WAIT_S), self._changed:
            while True:
                for message in self.heard:
                    if holds(message):
                        return message
                await self._changed.wait()

    async def answer(self, directive: Directive, outcome: Any = None) -> Acknowledgement:
        def is_answer(message: agent_pb2.SessionRequest) -> bool:
            return message.acknowledgement.operation_id == directive.operation and (
                outcome is None or message.acknowledgement.outcome == outcome
            )

        message = await self.until(is_answer)
        return cluster_codec.decode_acknowledgement(message.acknowledgement)


class ScriptedLeader(agent_pb2_grpc.AgentServiceServicer):
    def __init__(self, epoch: int = 1, store: StoreIncarnation = STORE) -> None:
        self.authority = Authority(store, epoch, 1)
        self.retired: tuple[StoreIncarnation, ...] = ()
        self.version = 1
        self.heartbeat_s = 0.2
        self.beats = True
        self.redirect: str | None = None
        """not the leader, but this one is; empty: there is none"""
        self.reject: agent_pb2.AgentRejected | None = None
        self.address = ""
        self.met: asyncio.Queue[Conversation] = asyncio.Queue()
        self.greeted = 0
        self.peers: set[str] = set()

    async def Session(self, requests: Any, context: Any) -> None:
        self.greeted += 1
        self.peers.add(context.peer())
        first = await anext(aiter(requests))
        hello = agent_codec.decode_hello(first.hello)
        if self.redirect is not None:
            not_leader = agent_pb2.NotLeader(leader_address=self.redirect)
            await context.write(agent_pb2.SessionResponse(not_leader=not_leader))
            return
        if self.reject is not None:
            await context.write(agent_pb2.SessionResponse(rejected=self.reject))
            return
        welcome = LeaderWelcome(
            self.authority, self.address, self.heartbeat_s, 0.2, self.version, self.retired
        )
        message = agent_codec.encode_welcome(welcome)
        await context.write(agent_pb2.SessionResponse(welcome=message))
        conversation = Conversation(hello, context)
        beating = asyncio.create_task(self._beat(conversation))
        await self.met.put(conversation)
        try:
            async for request in requests:
                await conversation.hear(request)
        finally:
            beating.cancel()
            conversation.closed.set()

    async def _beat(self, conversation: Conversation) -> None:
        beat = agent_pb2.SessionResponse(heartbeat=agent_pb2.Heartbeat(sequence=1))
        while self.beats:
            await conversation.say(beat)
            await asyncio.sleep(self.heartbeat_s)

    async def meet(self) -> Conversation:
        async with asyncio.timeout(WAIT_S):
            return await self.met.get()

    def directive(self, operation: str, revision: int, body: DirectiveBody) -> Directive:
        authority = Authority(self.authority.store, self.authority.epoch, revision)
        return Directive(DirectiveId(operation), authority, body)


@asynccontextmanager
async def serving(
    leader: ScriptedLeader, credentials: grpc.ServerCredentials | None = None, port: int = 0
) -> AsyncIterator[ScriptedLeader]:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(leader, server)
    if credentials is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    leader.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield leader
    finally:
        await server.stop(None)
