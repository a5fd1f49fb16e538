"""A real agent process on a real host device, and fake engines as processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirage_core.wire.link import connect

WAIT_S = 60.0
PAGE_BYTES = 65536
PAGES = 100
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """Poll another process's state; a test fails, and never hangs, when it does not come."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        result = holds()
        if result:
            return result
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


class AgentProcess:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "agent.sock"
        self.event_log = folder / "events.jsonl"
        self.timeline = folder / "timeline.jsonl"
        self.log = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "node_agent"]
        command += ["--socket", str(self.socket), "--state-dir", str(self.folder / "state")]
        command += ["--device-bytes", str(PAGES * PAGE_BYTES), "--page-bytes", str(PAGE_BYTES)]
        command += ["--event-log", str(self.event_log), "--timeline", str(self.timeline)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *options], stderr=log)
        wait_until(self._listens, "the agent listens")

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            connect(str(self.socket)).close()
        except Exception:
            return False
        return True

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class EngineProcess:
    def __init__(self, agent: AgentProcess, **spec: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE_ENGINE), str(agent.socket), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the engine has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, command: str, **values: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **values}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def until(self, holds: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        status: dict[str, Any] = {}

        def look() -> Any:
            status.clear()
            status.update(self.do("status"))
            return holds(status)

        try:
            wait_until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen {status}") from None
        return dict(status)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Node:
    """The agent, its engines, and what must hold between them."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder)
        self.engines: list[EngineProcess] = []

    def launch(self, **spec: Any) -> EngineProcess:
        engine = EngineProcess(self.agent, **spec)
        self.engines.append(engine)
        return engine

    def start_engine(self, **spec: Any) -> EngineProcess:
        engine = self.launch(**spec)
        started = engine.read()
        assert "started" in started, started
        engine.until(lambda s: s["limits"], "the agent knows the engine")
        return engine

    def kill(self, engine: EngineProcess) -> None:
        engine.kill()
        self.engines.remove(engine)

    def check(self) -> None:
        """Every page has one owner, and nobody's bytes were touched by another."""
        held: list[int] = []
        for engine in self.engines:
            if engine.process.poll() is None:
                status = engine.do("status")
                assert status["corrupt"] == 0
                held += status["pages"]
        assert len(held) == len(set(held))

    def close(self) -> None:
        for engine in self.engines:
            if engine.process.poll() is None:
                engine.kill()
        if self.agent.alive:
            self.agent.stop()


def raw_socket(agent: AgentProcess) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(agent.socket))
    sock.settimeout(WAIT_S)
    return sock
