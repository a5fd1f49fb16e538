"""Processes of a run on their cores: redis-server and controllers on one, load on the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from benchmarks.control.agents import node_of
from benchmarks.control.certificates import Authority
from cluster.processes import end_with
from cluster.store.server import RedisProcess
from mirage_core.errors import MirageError

LOOPBACK = "127.0.0.1"
_LINE_BYTES = 64 << 20
_READY_S = 60.0
_READY = "mirage.controller operators: "


class StageError(MirageError):
    """A process of the benchmark did not do its part."""


@dataclass(frozen=True, slots=True)
class Cores:
    control: int
    load: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """Raises StageError if there are no two."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise StageError("two cores are needed: one for the controllers, one for the load")
        return cls(cores[0], cores[1])


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Process:
    """A process pinned to one core, that ends with this one."""

    def __init__(self, name: str, command: Sequence[str], log: Path, core: int) -> None:
        self.name = name
        self._command = ["taskset", "-c", str(core), *command]
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._starts = 0

    async def start(self, *, piped: bool = False) -> None:
        self._starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else log,
                stderr=log,
                limit=_LINE_BYTES,
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def fault(self, problem: str) -> StageError:
        tail = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return StageError(f"{self.name} {problem}; the end of {self.log}:\n{tail}")


class ControllerProcess(Process):
    """Real controllers with mTLS; ``prefix`` runs it elsewhere (a network namespace)."""

    def __init__(
        self,
        name: str,
        folder: Path,
        settings: Mapping[str, Any],
        core: int,
        prefix: Sequence[str] = (),
    ) -> None:
        self.admin: str = settings["admin_listen"]
        self.agents: str = settings["agent_listen"]
        self.metrics_port: int = settings["metrics_port"]
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(dict(settings)))
        command = [*prefix, sys.executable, "-m", "cluster.controller", "--config", str(config)]
        super().__init__(name, command, folder / f"{name}.log", core)

    async def await_ready(self) -> None:
        """Until its log says that its ports are open (its metrics may be in another network)."""
        until_s = time.monotonic() + _READY_S
        while self.log.read_text(errors="replace").count(_READY) < self._starts:
            if not self.running or time.monotonic() > until_s:
                raise self.fault("is not ready")
            await asyncio.sleep(0.05)

    def metrics(self) -> dict[str, float]:
        url = f"http://{LOOPBACK}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
        return {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in lines
            if not line.startswith("#")
        }

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def rss_mb(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)


class GeneratorProcess(Process):
    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        core: int,
        prefix: Sequence[str] = (),
    ) -> None:
        command = [*prefix, sys.executable, "-m", "benchmarks.control.generator"]
        command.append(json.dumps(dict(settings)))
        super().__init__("generator", command, folder / "generator.log", core)

    async def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """One command; its answer.  Raises StageError if the generator fails."""
        assert self._process is not None
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        writer.write((json.dumps({"do": what, **arguments}) + "\n").encode())
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise self.fault(f"failed at {what}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Stage:
    """Redis, controllers and a generator; leaving ends all of them."""

    def __init__(self, folder: Path, cores: Cores, *, agents: int, controllers: int = 1) -> None:
        """``agents``: certificates are made for so many."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cores = cores
        self.certificates = folder / "certificates"
        authority = Authority(self.certificates)
        authority.issue("controller", addresses=[LOOPBACK])
        authority.issue("operator")
        for number in range(agents):
            authority.issue(node_of(number))
        ports = free_ports(1 + 3 * controllers)
        self.redis_port = ports[0]
        self.redis = pinned_redis(
            folder / "redis", {"bind": LOOPBACK, "port": str(ports[0])}, cores
        )
        self.redis_url = f"redis://{LOOPBACK}:{ports[0]}"
        self._ports = [ports[1 + 3 * i : 4 + 3 * i] for i in range(controllers)]
        self.controllers: list[ControllerProcess] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.redis)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start(self, redis_url: str | None = None) -> GeneratorProcess:
        """Controllers, then the generator; ``redis_url``: the way to Redis, if not straight."""
        for number, (admin, agents, metrics) in enumerate(self._ports):
            settings = controller_settings(
                redis_url or self.redis_url,
                f"{LOOPBACK}:{admin}",
                f"{LOOPBACK}:{agents}",
                metrics,
                self.certificates,
            )
            controller = ControllerProcess(
                f"controller-{number}", self.folder, settings, self.cores.control
            )
            await controller.start()
            self._stack.push_async_callback(controller.kill)
            await controller.await_ready()
            self.controllers.append(controller)
        generator = GeneratorProcess(
            self.folder,
            {
                "admins": [each.admin for each in self.controllers],
                "agents": [each.agents for each in self.controllers],
                "certificates": str(self.certificates),
            },
            self.cores.load,
        )
        await generator.start(piped=True)
        self._stack.push_async_callback(generator.kill)
        return generator

    def leader(self, admin: str) -> ControllerProcess:
        return next(each for each in self.controllers if each.admin == admin)


def pinned_redis(folder: Path, settings: Mapping[str, str], cores: Cores) -> RedisProcess:
    """Durable, as ``mirage up`` has it, on the controllers' core."""
    durable = {"appendonly": "yes", "appendfsync": "always", "save": ""}
    pinned = {"server_cpulist": str(cores.control), "bio_cpulist": str(cores.control)}
    return RedisProcess(folder, {**durable, **pinned, **settings})


def controller_settings(
    redis_url: str, admin: str, agents: str, metrics_port: int, certificates: Path
) -> dict[str, Any]:
    """The product's defaults, but for limits of single callers, since one operator does all."""
    tls = {
        "certificate": str(certificates / "controller.pem"),
        "key": str(certificates / "controller.key"),
        "client_ca": str(certificates / "ca.pem"),
    }
    return {
        "store": {"url": redis_url, "changes_kept": 1_000_000},
        "admin_listen": admin,
        "agent_listen": agents,
        "admin_tls": tls,
        "agent_tls": tls,
        "metrics_port": metrics_port,
        "limits": {"calls_per_s": 100_000.0, "calls_burst": 100_000},
    }
