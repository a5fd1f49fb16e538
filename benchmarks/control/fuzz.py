"""Messages of every kind at both services, half of them well-formed enough to reach the handlers.

A process of its own, ``python -m benchmarks.control.fuzz``: the controller runs in it under
coverage, so that what the messages reached is known branch by branch.  The answer is one line of
JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import coverage

HANDLERS = (
    "cluster/admin/*.py",
    "cluster/rpc/*.py",
    "cluster/controller/sessions.py",
    "cluster/controller/outbox.py",
    "mirage_core/wire/agent_codec.py",
    "mirage_core/wire/cluster_codec.py",
    "mirage_core/wire/fields.py",
)
CALLERS = 8
SESSION_SHARE = 0.3
"""Of all messages, those that go to the agents' service."""
_CALL_S = 20.0
_STREAM_S = 1.0
_SESSION_MESSAGES = (1, 2, 4, 8)
_MODELS, _AGENTS = ("chat", "code"), 2


class Errors(logging.Handler):
    """The controller's own faults, as it logs them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen[record.getMessage()[:200]] += 1


class Fuzzer:
    """``improper`` counts what must not be: no answer, an internal error, one without details."""

    def __init__(self, admin: str, agents: str, seed: int) -> None:
        import grpc

        from tests.integration.cluster import fuzzed_messages

        self._grpc = grpc
        self._messages = fuzzed_messages
        self._rng = random.Random(seed)
        self._methods = fuzzed_messages.methods("AdminService")
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._admin = grpc.aio.insecure_channel(admin, options=options)
        self._agents = grpc.insecure_channel(agents, options=options)
        self.sent = 0
        self.structured = 0
        self.improper: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()

    async def run(self, messages: int) -> None:
        async def caller() -> None:
            while self.sent < messages:
                if self._rng.random() < SESSION_SHARE / 4:  # a session is several messages
                    await self._session()
                else:
                    await self._call()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    async def _call(self) -> None:
        method = self._rng.choice(self._methods)
        data = self._data(method.input_type)
        path = f"/mirage.v1.AdminService/{method.name}"
        try:
            async with asyncio.timeout(_CALL_S + 5):
                if method.server_streaming:
                    stream = self._admin.unary_stream(path)(data, timeout=_STREAM_S)
                    await stream.read()
                    stream.cancel()
                else:
                    await self._admin.unary_unary(path)(data, timeout=_CALL_S)
            self.codes["OK"] += 1
        except self._grpc.aio.AioRpcError as error:
            self._judge(method.name, error, may_time_out=method.server_streaming)
        except TimeoutError:
            self.improper[f"{method.name}: no answer"] += 1

    async def _session(self) -> None:
        from mirage_core.wire.v1 import agent_pb2

        body = agent_pb2.SessionRequest.DESCRIPTOR.fields
        messages = []
        if self._rng.random() < 0.9:
            hello = agent_pb2.AgentHello(
                protocol_version=1,
                node=f"node-{self._rng.randrange(3)}",
                device=f"GPU-{self._rng.randrange(5)}",
                incarnation=str(self._rng.randrange(3)),
                page_bytes=1 << 20,
                pages=100,
                host_link="link",
            )
            messages.append(agent_pb2.SessionRequest(hello=hello).SerializeToString())
        for _ in range(self._rng.choice(_SESSION_MESSAGES)):
            if self._rng.random() < 0.2:
                messages.append(self._data(None))
                continue
            field = self._rng.choice(body)
            request = agent_pb2.SessionRequest()
            part = self._messages.random_message(self._rng, field.message_type)
            getattr(request, field.name).CopyFrom(part)
            messages.append(request.SerializeToString())
            self.structured += 1
        self.sent += len(messages)
        # grpc.aio makes INTERNAL of a write that meets the stream's end; this one tells its status.
        open_session = self._agents.stream_stream("/mirage.v1.AgentService/Session")

        def converse() -> None:
            for _ in open_session(iter(messages), timeout=_CALL_S):
                pass

        try:
            await asyncio.to_thread(converse)
            self.codes["OK"] += 1
        except self._grpc.RpcError as error:
            self._judge("Session", error, may_time_out=False)

    def _data(self, kind: Any) -> bytes:
        """Structure-aware for half of all calls (``kind`` None: bytes that mean nothing)."""
        if kind is None or self._rng.random() < 0.5:
            self.sent += kind is not None
            return bytes(self._messages.random_bytes(self._rng))
        self.sent += 1
        self.structured += 1
        return bytes(self._messages.random_message(self._rng, kind).SerializeToString())

    def _judge(self, name: str, error: Any, *, may_time_out: bool) -> None:
        from grpc_status import rpc_status

        code = error.code()
        self.codes[code.name] += 1
        if code is self._grpc.StatusCode.DEADLINE_EXCEEDED and may_time_out:
            return
        status = rpc_status.from_call(error)
        if code.name in ("UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED"):
            self.improper[f"{name}: {code.name} {error.details()[:100]}"] += 1
        elif status is None or not status.details:
            self.improper[f"{name}: {code.name} without details"] += 1


async def fuzz(folder: Path, messages: int, seed: int) -> dict[str, Any]:
    """A controller of its own, two agents, two models; then ``messages``."""
    import uuid

    from benchmarks.control.agents import SimulatedAgent, Watched
    from benchmarks.control.generator import MonotonicClock
    from cluster.clocks import BootClock, SystemWallClock
    from cluster.config import load_config
    from cluster.controller.controller import Controller
    from cluster.store.redis_store import RedisStore
    from cluster.store.server import embedded_redis

    errors = Errors()
    logging.getLogger().addHandler(errors)
    logging.getLogger("mirage").setLevel(logging.ERROR)
    redis, url = embedded_redis(folder)
    async with redis:
        config = load_config(
            None,
            {
                "store": {"url": url},
                "admin_listen": "127.0.0.1:0",
                "agent_listen": "127.0.0.1:0",
                "limits": {"calls_per_s": 1e6, "calls_burst": 1_000_000},
            },
        )
        controller = Controller(
            config, RedisStore(config.store), BootClock(), SystemWallClock(), uuid.uuid4().hex
        )
        await controller.start()
        tasks = [asyncio.create_task(controller.run())]
        for number in range(_AGENTS):
            agent = SimulatedAgent(
                number, [controller.addresses.agents], None, MonotonicClock(), Watched()
            )
            tasks.append(asyncio.create_task(agent.uplink.run()))
        fuzzer = Fuzzer(controller.addresses.admin, controller.addresses.agents, seed)
        began_s = time.monotonic()
        await fuzzer.run(messages)
        took_s = time.monotonic() - began_s
        crashed = tasks[0].done()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await controller.stop()
    improper = sum(fuzzer.improper.values()) + sum(errors.seen.values()) + crashed
    return {
        "fuzz_messages": fuzzer.sent,
        "fuzz_structured_share": fuzzer.structured / fuzzer.sent,
        "fuzz_improper": improper,
        "fuzz_answers": dict(fuzzer.codes.most_common()),
        "fuzz_faults": {**dict(fuzzer.improper.most_common(20)), **dict(errors.seen)},
        "fuzz_messages_per_s": fuzzer.sent / took_s,
    }


def _branches(measured: coverage.Coverage) -> dict[str, Any]:
    """Share of the handlers' branches that were taken, and of each file."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        measured.json_report(outfile=out.name, ignore_errors=True)
        report = json.loads(Path(out.name).read_text())
    files = {
        name: each["summary"]["covered_branches"] / each["summary"]["num_branches"]
        for name, each in report["files"].items()
        if each["summary"]["num_branches"]
    }
    totals = report["totals"]
    return {
        "handler_branch_coverage": totals["covered_branches"] / totals["num_branches"],
        "handler_branches": totals["num_branches"],
        "handler_branch_coverage_by_file": files,
    }


def main(arguments: Sequence[str]) -> None:
    messages, seed, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    measured = coverage.Coverage(branch=True, include=list(HANDLERS), data_file=None)
    measured.start()
    found = asyncio.run(fuzz(folder, messages, seed))
    measured.stop()
    print(json.dumps({**found, **_branches(measured)}))


if __name__ == "__main__":
    main(sys.argv[1:])
