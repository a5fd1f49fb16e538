"""Redis killed, paused, emptied and failed over: nothing accepted is lost, or it is found out."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from cluster.store.port import ABSENT, Change, Fence, Lineage, Put, Request, StoredEvent
from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from mirage_core.errors import (
    FencedError,
    HistoryLostError,
    NotReplicatedError,
    OutOfRangeError,
    StaleRevisionError,
    StoreError,
    StoreUnreachableError,
)
from tests.chaos.reply_dropping_proxy import ReplyDroppingProxy
from tests.contract.redis_deployments import Replicated, free_port, replicated, tcp_server

WRITERS = 4

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Replicated]:
    async with replicated(tmp_path) as servers:
        yield servers


async def certainly(store: RedisStore, put: Put, request: Request) -> int:
    """The revision of a write that is repeated until its answer comes."""
    while True:
        try:
            return (await store.commit([put], request)).revision
        except StoreUnreachableError:
            await asyncio.sleep(0)


async def write_on(store: RedisStore, name: str, accepted: dict[str, int]) -> None:
    """Count up under ``name``; each write expects the one before, so a write that was lost, or
    applied twice, makes the next one stale."""
    revision = ABSENT
    for number in range(1_000_000):
        request = Request(f"{name}-{number}", name)
        revision = await certainly(store, Put("model", name, b"%d" % number, revision), request)
        accepted[request.id] = revision


async def test_no_accepted_write_is_lost_or_applied_twice_when_redis_dies(
    tmp_path: Path, rounds: int
) -> None:
    port = free_port()
    server = tcp_server(tmp_path, port)
    await server.start()
    accepted: dict[str, int] = {}
    async with ReplyDroppingProxy(("127.0.0.1", port)) as proxy:
        proxy.drop_every = 7
        store = RedisStore(
            StoreSettings(url=f"redis://127.0.0.1:{proxy.port}", changes_kept=1_000_000)
        )
        begin = (await opened(store)).position
        async with asyncio.TaskGroup() as group:
            writers = [
                group.create_task(write_on(store, f"m{writer}", accepted))
                for writer in range(WRITERS)
            ]
            for _ in range(rounds):
                goal = len(accepted) + 40
                while len(accepted) < goal:
                    await asyncio.sleep(0.01)
                await server.kill()
                await server.start()
            for writer in writers:
                writer.cancel()
        proxy.drop_every = 0
        last = (await opened(store)).revision
        changes: list[Change] = []
        async with aclosing(store.watch(begin)) as watch:
            async for change in watch:
                assert isinstance(change, Change)
                changes.append(change)
                if change.position.revision == last:
                    break
        await store.close()
    await server.stop()
    times = Counter(change.request_id for change in changes)
    assert max(times.values()) == 1
    assert accepted.items() <= {c.request_id: c.position.revision for c in changes}.items()
    assert len(accepted) >= 40 * rounds
    assert proxy.dropped


async def opened(store: RedisStore) -> Lineage:
    while True:
        try:
            return await store.open()
        except StoreUnreachableError:
            await asyncio.sleep(0)


async def test_lost_reply_is_told_from_a_lost_write_by_repeating_the_request(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with tcp_server(tmp_path, port), ReplyDroppingProxy(("127.0.0.1", port)) as proxy:
        store = RedisStore(StoreSettings(url=f"redis://127.0.0.1:{proxy.port}", timeout_s=0.5))
        await store.open()
        await store.commit([Put("model", "b", b"", None)], Request("loads the script", "someone"))
        proxy.drop_every = 1
        request = Request("r", "someone")
        with pytest.raises(StoreUnreachableError):
            await store.commit([Put("model", "a", b"1", ABSENT)], request)
        proxy.drop_every = 0
        written = await store.commit([Put("model", "a", b"1", ABSENT)], request)
        assert written.replayed
        assert (await store.lineage()).revision == written.revision == 2
        await store.close()


async def test_silent_network_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    port = free_port()
    async with tcp_server(tmp_path, port), ReplyDroppingProxy(("127.0.0.1", port)) as proxy:
        store = RedisStore(StoreSettings(url=f"redis://127.0.0.1:{proxy.port}", timeout_s=0.3))
        begin = (await store.open()).position
        watch = store.watch(begin)
        proxy.silent = True
        with pytest.raises(StoreUnreachableError):
            await store.read("model", "a")
        with pytest.raises(StoreUnreachableError):
            await anext(watch)
        proxy.silent = False
        assert await store.read("model", "a") is None
        await store.close()


async def test_leader_of_a_paused_redis_is_fenced_when_it_goes_on(tmp_path: Path) -> None:
    port = free_port()
    async with tcp_server(tmp_path, port) as server:
        store = RedisStore(StoreSettings(url=f"redis://127.0.0.1:{port}", timeout_s=0.2))
        await store.open()
        lease = await store.campaign("one", "host:1", lease_s=0.4)
        server.send(signal.SIGSTOP)
        write = [Put("model", "a", b"", None)]
        with pytest.raises(StoreUnreachableError):
            await store.commit(write, Request("r", "one"), fence=Fence(lease.epoch))
        await asyncio.sleep(0.4)  # the lease, which goes on while its server is stopped
        server.send(signal.SIGCONT)
        with pytest.raises(FencedError):
            await store.commit(write, Request("r2", "one"), fence=Fence(lease.epoch))
        assert (
            await store.read("model", "a") is None
        )  # what was sent before the pause came too late
        await store.close()


async def test_emptied_store_is_found_out_declared_and_told_to_operators(tmp_path: Path) -> None:
    port = free_port()
    settings = StoreSettings(url=f"redis://127.0.0.1:{port}")
    async with tcp_server(tmp_path / "before", port):
        store = RedisStore(settings)
        before = (await store.open()).incarnation
        await store.commit([Put("model", "a", b"1", None)], Request("r", "someone"))
        position = (await store.lineage()).position
    async with tcp_server(tmp_path / "after", port):
        for attempt in (
            lambda: store.read("model", "a"),
            lambda: store.commit([Put("model", "a", b"2", None)], Request("r2", "someone")),
            lambda: store.campaign("one", "host:1", lease_s=60),
            lambda: anext(store.watch(position)),
        ):
            with pytest.raises(HistoryLostError):
                await attempt()
        declared = await store.declare_lost_history(event=b"lost")
        assert declared.incarnation != before
        assert declared.retired == (before,)
        assert declared.revision > position.revision
        events = await store.events(after=0)
        assert events == [StoredEvent(1, b"lost", events[0].unix_ms)]
        with pytest.raises(OutOfRangeError):
            await anext(store.watch(position))
        assert await store.read("model", "a") is None
        await store.close()


# ---- Sentinel


async def after_failover(store: RedisStore, request: Request) -> StoreError | None:
    """Write until the new master answers; the error it answers with, if it is one."""
    while True:
        try:
            await store.commit([Put("model", "b", b"2", None)], request)
            return None
        except (StoreUnreachableError, NotReplicatedError):
            await asyncio.sleep(0.05)
        except StoreError as error:
            return error


async def test_failover_keeps_what_the_replica_confirmed(servers: Replicated) -> None:
    store = RedisStore(servers.settings)
    before = await store.open()
    await store.commit([Put("model", "a", b"1", ABSENT)], Request("r", "someone"))
    await servers.master.kill()
    alone = RedisStore(servers.settings.model_copy(update={"wait_replicas": 0}))
    assert (await opened(alone)).incarnation == before.incarnation
    assert await after_failover(alone, Request("r2", "someone")) is None
    with pytest.raises(StaleRevisionError):
        await alone.commit([Put("model", "a", b"1", ABSENT)], Request("r3", "someone"))
    assert (await alone.commit([Put("model", "a", b"1", ABSENT)], Request("r", "s"))).replayed
    for each in (store, alone):
        await each.close()


async def test_write_that_no_replica_confirms_is_never_reported_as_accepted(
    servers: Replicated,
) -> None:
    store = RedisStore(servers.settings.model_copy(update={"wait_s": 0.2}))
    await store.open()
    servers.replica.send(signal.SIGSTOP)
    put, request = Put("model", "a", b"1", ABSENT), Request("r", "someone")
    for _ in range(2):  # the retry is answered from memory, and is no better confirmed
        with pytest.raises(NotReplicatedError, match="0 of 1 replicas"):
            await store.commit([put], request)
    servers.replica.send(signal.SIGCONT)
    while True:
        try:
            written = await store.commit([put], request)
            break
        except NotReplicatedError:
            pass
    assert written.replayed
    await store.close()


async def test_failover_to_a_replica_that_is_behind_is_found_out(servers: Replicated) -> None:
    store = RedisStore(servers.settings.model_copy(update={"wait_replicas": 0}))
    before = await store.open()
    servers.link.silent = True
    await store.commit([Put("model", "a", b"1", ABSENT)], Request("r", "someone"))
    await servers.master.kill()
    error = await after_failover(store, Request("r2", "someone"))
    assert isinstance(error, HistoryLostError)
    assert before.incarnation in str(error)
    while True:
        try:
            declared = await store.declare_lost_history()
            break
        except StoreUnreachableError:
            await asyncio.sleep(0.05)
    assert declared.retired == (before.incarnation,)
    assert await store.read("model", "a") is None
    await store.close()
