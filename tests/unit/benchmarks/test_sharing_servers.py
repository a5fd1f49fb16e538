"""Processes: started, waited for, explained when they fail, and always gone afterwards."""

import asyncio
import os
import select
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.sharing.servers import (
    EngineSpec,
    Server,
    ServerError,
    ServerSpec,
    Stage,
    free_ports,
    settle,
)

HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
open(sys.argv[2], "w").write(str(child.pid))

class Handler(http.server.BaseHTTPRequestHandler):
    busy = 2
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())
    def do_GET(self):
        if self.path == "/metrics":
            Handler.busy -= 1
            self.answer('vllm:num_requests_running{e="0"} %d\\n'
                        'vllm:num_requests_waiting{e="0"} 0\\n' % max(Handler.busy, 0))
        else:
            self.answer("")
    def do_POST(self):
        self.answer('{"success": true}')
    def log_message(self, *args):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@dataclass(frozen=True)
class FakeEngine(EngineSpec):
    """An engine whose process is a script; it gets its port and a place for its child's pid."""

    script: str = HEALTHY

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.script, str(port), str(self.model)]


def engine(folder: Path, name: str = "small", script: str = HEALTHY) -> FakeEngine:
    return FakeEngine(
        name=name,
        model=folder / f"{name}.child",
        cores=(0,),
        kv_bytes=1 << 20,
        dtype="float32",
        block_size=32,
        max_num_seqs=8,
        max_model_len=256,
        eager=True,
        script=script,
    )


def ends(pid: int) -> bool:
    """Whether the process has ended, or does so once the kernel gets to it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def test_a_process_and_its_children_are_gone_after_the_stage(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with Stage() as stage:
            specs = [engine(tmp_path, "small"), engine(tmp_path, "large")]
            engines = await stage.switch((), specs, tmp_path)
            assert set(engines) == {"small", "large"}
            stage.require_running()
            children = [int(spec.model.read_text()) for spec in specs]
            for child in children:
                os.kill(child, 0)
            return children

    assert all(map(ends, asyncio.run(main())))


def test_switching_ends_what_ran_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with Stage() as stage:
            first, second = engine(tmp_path, "first"), engine(tmp_path, "second")
            await stage.switch((), (first,), tmp_path)
            assert stage.plays((), (first,))
            await stage.switch((), (second,), tmp_path)
            assert not stage.plays((), (first,))
            assert set(stage.engines) == {"second"}
            assert ends(int(first.model.read_text()))
            os.kill(int(second.model.read_text()), 0)

    asyncio.run(main())


def test_an_engine_that_does_not_start_is_explained_and_the_others_end(tmp_path: Path) -> None:
    broken = engine(tmp_path, "broken", "raise SystemExit('no such model')")
    sound = engine(tmp_path, "sound")

    async def main() -> None:
        async with Stage() as stage:
            await stage.switch((), (sound, broken), tmp_path)

    with pytest.raises(ServerError, match=r"engine broken ended with status 1(.|\n)*no such model"):
        asyncio.run(main())
    if sound.model.exists():
        assert ends(int(sound.model.read_text()))


def test_an_engine_waits_for_what_comes_before_it(tmp_path: Path) -> None:
    ready = tmp_path / "agent.sock"
    agent = ServerSpec(
        name="agent",
        command=("sh", "-c", f"touch {ready}; exec sleep 1000"),
        log=tmp_path / "agent.log",
        ready=ready,
    )
    needs_agent = f"import os\nassert os.path.exists({str(ready)!r})\n{HEALTHY}"

    async def main() -> None:
        async with Stage() as stage:
            await stage.switch((agent,), (engine(tmp_path, script=needs_agent),), tmp_path)

    asyncio.run(main())


def test_an_agent_that_ends_early_is_explained(tmp_path: Path) -> None:
    agent = ServerSpec(
        name="agent",
        command=("sh", "-c", "echo the device is too small; exit 3"),
        log=tmp_path / "agent.log",
        ready=tmp_path / "never",
    )

    async def main() -> None:
        async with Stage() as stage:
            await stage.switch((agent,), (), tmp_path)

    with pytest.raises(ServerError, match=r"agent ended with status 3(.|\n)*device is too small"):
        asyncio.run(main())


def test_a_process_that_ignores_the_request_to_end_is_killed_on_cancellation(
    tmp_path: Path,
) -> None:
    started = tmp_path / "started"
    stubborn = ServerSpec(
        name="stubborn",
        command=("sh", "-c", f"trap '' TERM; touch {started}; sleep 1000; sleep 1000"),
        log=tmp_path / "stubborn.log",
        ready=started,
    )

    async def main() -> int:
        stage = Stage()
        await stage.switch((stubborn,), (), tmp_path)
        (server,) = stage._servers
        clearing = asyncio.create_task(stage.clear())
        await asyncio.sleep(0)
        clearing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await clearing
        await server._process.wait()
        return server.pid

    assert ends(asyncio.run(main()))


def test_stopping_twice_is_harmless(tmp_path: Path) -> None:
    async def main() -> None:
        spec = ServerSpec("short", ("sleep", "1000"), tmp_path / "log")
        server = await Server.start(spec)
        await server.stop()
        await server.stop()
        with pytest.raises(ServerError, match="ended with status"):
            server.require_running()

    asyncio.run(main())


def test_settling_waits_until_an_engine_is_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with Stage() as stage:
            await settle(await stage.switch((), (engine(tmp_path),), tmp_path))

    asyncio.run(main())


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_the_command_names_each_engine_s_pool_and_its_own_cores(tmp_path: Path) -> None:
    spec = EngineSpec(
        name="small",
        model=tmp_path,
        cores=(1, 3),
        kv_bytes=123 << 20,
        dtype="float32",
        block_size=32,
        max_num_seqs=8,
        max_model_len=256,
        eager=False,
        extra_arguments=("--worker-cls", "some.Worker"),
        extra_environment={"EXTRA": "1"},
    )
    command = spec.command(8123)
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--port") + 1] == "8123"
    assert command[command.index("--kv-cache-memory-bytes") + 1] == str(123 << 20)
    assert "--enforce-eager" not in command
    assert command[-2:] == ["--worker-cls", "some.Worker"]
    assert spec.environment()["VLLM_CPU_OMP_THREADS_BIND"] == "1,3"
    assert spec.environment()["EXTRA"] == "1"
    assert "EXTRA" not in os.environ
