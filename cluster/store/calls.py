"""Scripts run on a server: retried where that is safe, waited for, with MIRAGE's errors.

Every script first compares the store with what this process has seen of it, so a store that lost
its history is found out by the next call, whatever it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from cluster.store.port import Position
from cluster.store.scripts import Keys, Script, acl_rules, load_script
from cluster.store.settings import StoreSettings
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.errors import (
    FencedError,
    HistoryLostError,
    NotReplicatedError,
    StoreAuthError,
    StoreError,
    StoreRefusedError,
    StoreUnreachableError,
)

T = TypeVar("T")

_REFUSALS = {
    "OOM": "it is out of memory: raise maxmemory",
    "MISCONF": "it cannot save to its disk: see its log",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write)",
}


async def _cancellable(action: Callable[[], Awaitable[T]]) -> T:
    """``asyncio.wait_for`` of Python 3.11, with which redis-py sends, drops a cancellation that
    meets the end of what it waits for; a task that was cancelled must not go on all the same."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await action()
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class Caller:
    """One server, one client pool, and what this process has seen of the store's history."""

    def __init__(self, client: Redis, keys: Keys, settings: StoreSettings) -> None:
        self.client = client
        self.keys = keys
        self.settings = settings
        self.seen = Position(StoreIncarnation(""), 0)
        # First come, first served; redis-py's own blocking pool lets late callers overtake.
        self._turns = asyncio.Semaphore(settings.connections)
        self._scripts: dict[str, Script] = {}

    def see(self, revision: int) -> None:
        """This process knows now that the store has been at ``revision``."""
        if revision > self.seen.revision:
            self.seen = Position(self.seen.incarnation, revision)

    async def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        replicate: bool = False,
        repeatable: bool = True,
        seen: Position | None = None,
    ) -> list[Any]:
        """Run a script that takes the prelude's arguments first; its reply.

        replicate   wait until as many replicas as the settings say have it
        repeatable  running it twice is as good as once, so a broken connection is tried again
        """
        seen = seen or self.seen
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = load_script(name)
        replicas = self.settings.wait_replicas if replicate else 0
        command = (
            len(keys) + 1,
            self.keys.meta,
            *keys,
            seen.incarnation,
            seen.revision,
            *args,
        )

        async def once() -> list[Any]:
            reply, confirmed = await self._evaluate(script, command, replicas)
            if confirmed < replicas and reply[0] in (b"ok", b"replayed"):
                raise NotReplicatedError(
                    f"{self.settings.where}: {confirmed} of {replicas} replicas confirmed the"
                    f" write within {self.settings.wait_s:g} s; repeat it with the same request"
                )
            return reply

        # A connection that a restarted server left behind fails once, at its next use.
        reply = await self.guard(once, attempts=2 if repeatable else 1)
        if reply[0] == b"lost":
            raise HistoryLostError(
                f"{self.settings.where} was at revision {seen.revision} of history"
                f" {seen.incarnation} and is now at {int(reply[2])} of"
                f" {reply[1].decode() or 'none'}"
            )
        if reply[0] == b"fenced":
            raise FencedError(
                f"no longer the leader: {reply[2].decode()} is, with epoch {reply[1].decode()}"
                if reply[1]
                else "no longer the leader: the lease has ended"
            )
        return reply

    async def _evaluate(
        self, script: Script, command: Sequence[Any], replicas: int
    ) -> tuple[list[Any], int]:
        """The reply, and how many replicas have it (0 if none is waited for)."""
        try:
            if not replicas:
                reply = await self.client.execute_command(  # type: ignore[no-untyped-call]
                    "EVALSHA", script.sha, *command
                )
                return reply, 0
            # WAIT speaks of its own connection's writes, so both go through one.
            pipe = self.client.pipeline(transaction=False)
            pipe.execute_command("EVALSHA", script.sha, *command)
            pipe.execute_command("WAIT", replicas, int(self.settings.wait_s * 1000))
            reply, confirmed = await pipe.execute()
            return reply, confirmed
        except redis_errors.NoScriptError:
            await self.client.script_load(script.text)
        return await self._evaluate(script, command, replicas)

    async def guard(self, action: Callable[[], Awaitable[T]], *, attempts: int = 1) -> T:
        """What ``action`` returns, when it is its turn, its errors told as MIRAGE's."""
        async with self._turns:
            return await self.guard_out_of_turn(action, attempts=attempts)

    async def guard_out_of_turn(
        self, action: Callable[[], Awaitable[T]], *, attempts: int = 1
    ) -> T:
        """The same without waiting for a turn: for calls that wait on the server's side."""
        while True:
            attempts -= 1
            try:
                return await _cancellable(action)
            except (redis_errors.RedisError, OSError) as error:
                translated = self._translate(error)
                if not attempts or not isinstance(translated, StoreUnreachableError):
                    raise translated from error

    def _translate(self, error: Exception) -> StoreError:
        where, text = self.settings.where, str(error)
        user = self.settings.username or "default"
        # In a script Redis 6.2 says it in words.
        if "NOPERM" in text or "user executing the script can't" in text:
            return StoreAuthError(
                f"{where} denies user {user!r} a command or key. What it needs: ACL SETUSER {user}"
                f" {acl_rules(self.settings.cluster)}"
            )
        if isinstance(error, redis_errors.AuthenticationError) or any(
            word in text for word in ("NOAUTH", "WRONGPASS", "AUTH <password> called")
        ):
            change = (
                f"check username and the content of {self.settings.password_file}"
                if self.settings.password_file
                else "it wants a password: set password_file (and username)"
            )
            return StoreAuthError(f"{where} did not accept user {user!r}: {change}")
        if isinstance(error, redis_errors.TimeoutError | TimeoutError):
            return StoreUnreachableError(
                f"{where} did not answer within {self.settings.timeout_s:g} s: check that it runs"
                " and can be reached from here"
            )
        if isinstance(error, redis_errors.ConnectionError | OSError | redis_errors.ReadOnlyError):
            return StoreUnreachableError(
                f"cannot reach {where}: {text or type(error).__name__}; check the address, that"
                " the server runs, and TLS settings"
            )
        if "READONLY" in text:
            return StoreUnreachableError(f"{where} is a replica: the master has moved")
        if isinstance(error, redis_errors.OutOfMemoryError):  # redis-py drops the code word
            text = f"OOM {text}"
        for word, change in _REFUSALS.items():
            if word in text:
                return StoreRefusedError(f"{where} takes no writes: {change}")
        return StoreError(f"{where}: {text}")
