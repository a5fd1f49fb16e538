"""A leader, a standby and one agent, all real, for the commands to talk to."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.control.agents import SimulatedAgent, Watched, device_of
from benchmarks.control.generator import MonotonicClock
from cluster.cli.root import main
from cluster.clocks import BootClock, SystemWallClock
from cluster.config import load_config
from cluster.controller.controller import Controller
from cluster.store.redis_store import RedisStore
from cluster.store.server import embedded_redis

TOKENS = {"operate": "operator-token", "view": "viewer-token"}


@dataclass(frozen=True, slots=True)
class Plane:
    leader: str
    standby: str
    redis: str
    device: str
    folder: Path

    def token_file(self, role: str) -> str:
        return str(self.folder / role)


class _Running:
    """The plane's event loop, in a thread of its own, since commands are synchronous."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.plane: Plane | None = None
        # Redis ends with the thread that started it.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()
        if self._fault is not None:
            raise self._fault

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._fault = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        tokens = [
            {"name": role, "role": role, "sha256": hashlib.sha256(token.encode()).hexdigest()}
            for role, token in TOKENS.items()
        ]
        (self._folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": tokens}))
        for role, token in TOKENS.items():
            (self._folder / role).write_text(token + "\n")
        redis, url = embedded_redis(self._folder)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(redis)
            leader = await self._controller(stack, url)
            while leader.term is None:
                await asyncio.sleep(0.01)
            standby = await self._controller(stack, url)
            agent = SimulatedAgent(0, [leader.addresses.agents], None, MonotonicClock(), Watched())
            task = asyncio.create_task(agent.uplink.run())
            while not agent.uplink.counters.connected or not standby.leader().admin:
                await asyncio.sleep(0.01)
            self.plane = Plane(
                leader.addresses.admin, standby.addresses.admin, url, device_of(0), self._folder
            )
            self._ready.set()
            await self._stop.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _controller(self, stack: AsyncExitStack, url: str) -> Controller:
        config = load_config(
            None,
            {
                "store": {"url": url},
                "admin_listen": "127.0.0.1:0",
                "agent_listen": "127.0.0.1:0",
                "tokens": self._folder / "tokens.yaml",
            },
        )
        controller = Controller(
            config, RedisStore(config.store), BootClock(), SystemWallClock(), uuid.uuid4().hex
        )
        await controller.start()
        running = asyncio.create_task(controller.run())

        async def stop() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await controller.stop()

        stack.push_async_callback(stop)
        return controller


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    running = _Running(tmp_path_factory.mktemp("plane"))
    assert running.plane is not None
    yield running.plane
    running.end()


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return yaml.safe_load(self.out)


Mirage = Callable[..., Ran]


@pytest.fixture
def bare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Mirage:
    """``mirage`` with nothing set."""
    monkeypatch.setenv("MIRAGE_CONFIG", str(tmp_path / "none.yaml"))

    def run(*words: str) -> Ran:
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        return Ran(int(end.value.code or 0), out, err)

    return run


@pytest.fixture
def mirage(bare: Mirage, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Mirage:
    """``mirage`` as an operator has it."""
    monkeypatch.setenv("MIRAGE_SERVER", plane.leader)
    monkeypatch.setenv("MIRAGE_TOKEN_FILE", plane.token_file("operate"))
    return bare


@pytest.fixture
def model(mirage: Mirage) -> str:
    """A model that is registered for this test."""
    name = f"m-{uuid.uuid4().hex[:8]}"
    ran = mirage("model", "register", name, "--weights", "1MiB", "--weights-digest", "ab")
    assert ran.code == 0, ran.err
    return name
