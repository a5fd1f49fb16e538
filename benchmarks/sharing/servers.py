"""Processes of a benchmark: vLLM's own HTTP servers, and whatever an arm starts before them.

Each process leads a process group of its own, so that stopping it also stops the children that
vLLM starts (scheduler and worker), and nothing else.  All listen on loopback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from mirage_core.errors import MirageError

START_LIMIT_S = 300.0
_STOP_LIMIT_S = 20.0
_SETTLE_LIMIT_S = 60.0
_TAIL_LINES = 30


class ServerError(MirageError):
    """A process did not start, or ended before its time; the message ends with its log's tail."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A process to run: what, with which environment, and where it logs."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """added to the harness's own"""
    ready: Path | None = None
    """a file or socket that exists once the process can be used"""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One vLLM engine with its HTTP server."""

    name: str
    """also the name under which the model is served"""
    model: Path
    cores: tuple[int, ...]
    """of the worker; explicit, since ``auto`` gives every engine the same cores"""
    kv_bytes: int
    """KV pool: all of it for stock, the largest that it may become for an elastic pool"""
    dtype: str
    block_size: int
    max_num_seqs: int
    max_model_len: int
    eager: bool
    extra_arguments: tuple[str, ...] = ()
    extra_environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """Arguments of vLLM's own entry point; everything not named here is vLLM's default."""
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--model", str(self.model), "--served-model-name", self.name]
        command += ["--dtype", self.dtype, "--block-size", str(self.block_size)]
        command += ["--max-num-seqs", str(self.max_num_seqs)]
        command += ["--max-model-len", str(self.max_model_len)]
        command += ["--kv-cache-memory-bytes", str(self.kv_bytes)]
        command += ["--disable-uvicorn-access-log"]
        command += ["--enforce-eager"] if self.eager else []
        return command + list(self.extra_arguments)

    def environment(self) -> dict[str, str]:
        return {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, self.cores)),
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.extra_environment,
        }


class Server:
    """A running process and its children."""

    def __init__(self, spec: ServerSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @classmethod
    async def start(cls, spec: ServerSpec) -> Server:
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **spec.environment},
                start_new_session=True,
            )
        return cls(spec, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_running(self) -> None:
        """Raises ServerError if the process has ended."""
        if self._process.returncode is not None:
            raise self.error(f"ended with status {self._process.returncode}")

    def error(self, problem: str) -> ServerError:
        lines = self.spec.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines)
        return ServerError(f"{self.spec.name} {problem}; the end of {self.spec.log}:\n{tail}")

    async def stop(self) -> None:
        """End the process and its children: first asked, then killed.  Safe to call twice."""
        self._signal_group(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_LIMIT_S)
        finally:
            self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End at once whoever of the process and its children is left."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that was healthy when it started."""

    spec: EngineSpec
    url: str
    start_s: float
    """from the process's start to its first healthy answer"""


class Stage:
    """The processes that run now.

    Use as ``async with Stage() as stage``: leaving ends every process.
    """

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._cast: tuple[Sequence[ServerSpec], Sequence[EngineSpec]] | None = None
        self._engines: dict[str, Engine] = {}

    async def __aenter__(self) -> Stage:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.clear()

    @property
    def engines(self) -> Mapping[str, Engine]:
        return self._engines

    def plays(self, before: Sequence[ServerSpec], engines: Sequence[EngineSpec]) -> bool:
        """Whether just these processes run."""
        return self._cast == (before, engines)

    async def switch(
        self, before: Sequence[ServerSpec], engines: Sequence[EngineSpec], log_folder: Path
    ) -> Mapping[str, Engine]:
        """End what runs and start these: ``before`` first, each ready before the next.

        Engines log to ``log_folder``.  Returns the engines by name, all healthy.  Raises
        ServerError if a process ends or is not ready in ``START_LIMIT_S``.
        """
        await self.clear()
        for spec in before:
            await _wait_ready(await self._start(spec))
        ports = free_ports(len(engines))
        servers = [
            await self._start(_engine_server(spec, port, log_folder))
            for spec, port in zip(engines, ports, strict=True)
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                healthy = [
                    tasks.create_task(_wait_healthy(spec, port, server))
                    for spec, port, server in zip(engines, ports, servers, strict=True)
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        self._engines = {task.result().spec.name: task.result() for task in healthy}
        self._cast = (before, engines)
        return self._engines

    def require_running(self) -> None:
        """Raises ServerError if a process has ended."""
        for server in self._servers:
            server.require_running()

    async def clear(self) -> None:
        """End all processes, whatever happens meanwhile."""
        servers, self._servers = self._servers, []
        self._cast = None
        self._engines = {}
        try:
            await asyncio.gather(*(server.stop() for server in servers))
        finally:
            for server in servers:
                server.kill()

    async def _start(self, spec: ServerSpec) -> Server:
        server = await Server.start(spec)
        self._servers.append(server)
        return server


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _engine_server(spec: EngineSpec, port: int, log_folder: Path) -> ServerSpec:
    return ServerSpec(
        name=f"engine {spec.name}",
        command=spec.command(port),
        log=log_folder / f"{spec.name}.log",
        environment=spec.environment(),
    )


async def _wait_ready(server: Server) -> None:
    ready = server.spec.ready
    began_s = time.monotonic()
    while ready is not None and not ready.exists():
        server.require_running()
        if time.monotonic() - began_s > START_LIMIT_S:
            raise server.error(f"did not make {ready} in {START_LIMIT_S:.0f} s")
        await asyncio.sleep(0.05)


async def _wait_healthy(spec: EngineSpec, port: int, server: Server) -> Engine:
    url = f"http://127.0.0.1:{port}"
    began_s = time.monotonic()
    async with aiohttp.ClientSession() as session:
        while (waited_s := time.monotonic() - began_s) < START_LIMIT_S:
            server.require_running()
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return Engine(spec, url, waited_s)
            except aiohttp.ClientConnectionError:
                pass  # not listening yet
            await asyncio.sleep(0.2)
    raise server.error(f"was not healthy after {START_LIMIT_S:.0f} s")


async def settle(engines: Mapping[str, Engine]) -> None:
    """Wait until the engines are idle, and empty their prefix caches.

    A run then meets neither another's last requests nor its prompts.  Raises ServerError if an
    engine is still busy after ``_SETTLE_LIMIT_S``.
    """
    for engine in engines.values():
        until_s = time.monotonic() + _SETTLE_LIMIT_S
        while not (await _is_idle(engine.url) and await _reset_prefix_cache(engine.url)):
            if time.monotonic() > until_s:
                raise ServerError(f"engine {engine.spec.name} is busy without requests")
            await asyncio.sleep(0.1)


async def _is_idle(url: str) -> bool:
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return not any([await read_metric(url, gauge) for gauge in gauges])


async def _reset_prefix_cache(url: str) -> bool:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/reset_prefix_cache") as a:
        return bool((await a.json())["success"])


async def read_metric(url: str, name: str) -> float:
    """Value of one of an engine's Prometheus metrics, such as ``vllm:num_preemptions_total``.

    Raises ServerError if the engine does not report it.
    """
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name + "{")]
    if not values:
        raise ServerError(f"{url}/metrics does not report {name}")
    return sum(map(float, values))
