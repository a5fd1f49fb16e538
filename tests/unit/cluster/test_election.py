"""Elections on a real redis-server; time is the candidate's own, and moved by the test."""

from __future__ import annotations

import asyncio
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster.election import Candidate, Following, Leading, Role, Timing
from cluster.store.port import Fence, Put, Request
from cluster.store.redis_store import RedisStore
from cluster.store.server import RedisProcess, embedded_redis
from cluster.store.settings import StoreSettings
from mirage_core.errors import ConfigError, FencedError, HistoryLostError, StoreUnreachableError

pytestmark = pytest.mark.anyio
LONG = Timing(lease_s=60.0, renew_s=10.0, margin_s=5.0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class HandClock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class LoopClock:
    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[RedisProcess, str]]:
    process, url = embedded_redis(tmp_path)
    async with process:
        yield process, url


@pytest.fixture
async def store(server: tuple[RedisProcess, str]) -> AsyncIterator[RedisStore]:
    store = RedisStore(StoreSettings(url=server[1], timeout_s=0.5))
    await store.open()
    yield store
    await store.close()


def candidate(store: RedisStore, clock: HandClock, name: str, timing: Timing = LONG) -> Candidate:
    return Candidate(store, clock, holder=name, address=f"{name}:1", timing=timing)


async def write(store: RedisStore, fence: Fence) -> None:
    await store.commit(
        [Put("model", "a", b"", None)], Request(uuid.uuid4().hex, "leader"), fence=fence
    )


async def test_one_of_two_leads_and_the_other_knows_where(store: RedisStore) -> None:
    clock = HandClock()
    one, two = candidate(store, clock, "one"), candidate(store, clock, "two")
    assert one.role == Following(None)
    assert isinstance(await one.step(), Leading)
    known = await two.step()
    assert isinstance(known, Following)
    assert (known.leader, known.epoch) == ("one:1", one.fence.epoch if one.fence else 0)
    assert known.renewed_s == pytest.approx(clock.now_s, abs=1.0)
    assert two.fence is None


async def test_leader_steps_down_by_its_own_clock_before_its_lease_ends(
    store: RedisStore,
) -> None:
    clock = HandClock()
    one = candidate(store, clock, "one")
    await one.step()
    begin_s = clock.now_s
    clock.now_s = begin_s + LONG.lease_s - LONG.margin_s - 0.01
    assert isinstance(one.role, Leading)
    clock.now_s = begin_s + LONG.lease_s - LONG.margin_s
    assert isinstance(one.role, Following)
    assert one.role.leader is None
    assert one.fence is None
    lease = await store.leader()
    assert lease is not None  # nobody else can have been elected yet
    assert lease.holder == "one"


async def test_renewal_counts_from_before_it_was_asked_and_keeps_the_epoch(
    store: RedisStore,
) -> None:
    clock = HandClock()
    one = candidate(store, clock, "one")
    first = await one.step()
    clock.now_s += 20
    second = await one.step()
    assert isinstance(first, Leading)
    assert isinstance(second, Leading)
    assert second.fence == first.fence
    assert second.until_s == first.until_s + 20


async def test_leader_that_was_stopped_past_its_lease_writes_nothing(store: RedisStore) -> None:
    clock = HandClock()
    one = candidate(store, clock, "one", Timing(lease_s=0.2, renew_s=0.05, margin_s=0.05))
    await one.step()
    fence = one.fence  # looked at just before the process was stopped
    assert fence is not None
    two = candidate(store, clock, "two")
    while not isinstance(await two.step(), Leading):
        pass
    with pytest.raises(FencedError):
        await write(store, fence)
    clock.now_s += 1
    assert one.fence is None
    known = await one.step()
    assert two.fence is not None
    assert isinstance(known, Following)
    assert (known.leader, known.epoch) == ("two:1", two.fence.epoch)
    await write(store, two.fence)


async def test_leader_keeps_leading_while_the_store_is_gone_but_not_beyond_its_lease(
    server: tuple[RedisProcess, str], store: RedisStore
) -> None:
    clock = HandClock()
    one = candidate(store, clock, "one")
    await one.step()
    await server[0].kill()
    clock.now_s += 10
    with pytest.raises(StoreUnreachableError):
        await one.step()
    assert isinstance(one.role, Leading)
    clock.now_s += LONG.lease_s
    assert isinstance(one.role, Following)
    assert one.role.leader is None


async def test_next_leader_follows_at_once_when_one_resigns(store: RedisStore) -> None:
    roles: list[tuple[str, Role]] = []
    led = {"one": asyncio.Event(), "two": asyncio.Event()}

    def told(name: str, role: Role) -> None:
        roles.append((name, role))
        if isinstance(role, Leading):
            led[name].set()

    def start(name: str) -> asyncio.Task[None]:
        timing = Timing(lease_s=60.0, renew_s=0.02, margin_s=1.0)
        runner = Candidate(
            store,
            LoopClock(),
            holder=name,
            address=f"{name}:1",
            timing=timing,
            on_change=lambda role: told(name, role),
        )
        return asyncio.create_task(runner.run())

    one = start("one")
    await led["one"].wait()
    two = start("two")
    one.cancel()
    await led["two"].wait()
    two.cancel()
    await asyncio.gather(one, two, return_exceptions=True)
    assert await store.leader() is None
    epochs = [role.fence.epoch for _, role in roles if isinstance(role, Leading)]
    assert epochs == sorted(set(epochs))
    ones = [role for name, role in roles if name == "one"]
    assert [type(role) for role in ones] == [Following, Leading, Following]


async def test_candidate_that_agents_wait_for_goes_first_and_others_go_in_the_end(
    store: RedisStore,
) -> None:
    elected: list[str] = []

    def start(name: str, attended: bool) -> asyncio.Task[None]:
        def told(role: Role) -> None:
            if isinstance(role, Leading):
                elected.append(name)

        runner = Candidate(
            store,
            LoopClock(),
            holder=name,
            address=f"{name}:1",
            timing=Timing(lease_s=0.5, renew_s=0.1, margin_s=0.1),
            attended=lambda: attended,
            on_change=told,
        )
        return asyncio.create_task(runner.run())

    async def leaders(count: int) -> None:
        async with asyncio.timeout(20):
            while len(elected) < count:
                await asyncio.sleep(0.01)

    await store.campaign("dead", "dead:1", lease_s=0.5)
    tasks = {"alone": start("alone", False), "attended": start("attended", True)}
    await leaders(1)
    assert elected == ["attended"]
    tasks["attended"].cancel()
    await leaders(2)
    assert elected == ["attended", "alone"]
    tasks["alone"].cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


async def test_silent_store_does_not_keep_a_leader_from_stepping_down(
    server: tuple[RedisProcess, str], store: RedisStore
) -> None:
    stepped_down, led = asyncio.Event(), asyncio.Event()

    def told(role: Role) -> None:
        if isinstance(role, Leading):
            led.set()
        elif led.is_set():
            stepped_down.set()

    patient = RedisStore(StoreSettings(url=server[1], timeout_s=600))
    await patient.open()
    runner = Candidate(
        patient,
        LoopClock(),
        holder="one",
        address="one:1",
        timing=Timing(lease_s=0.5, renew_s=0.1, margin_s=0.2),
        on_change=told,
    )
    task = asyncio.create_task(runner.run())
    await led.wait()
    server[0].send(signal.SIGSTOP)
    await stepped_down.wait()
    server[0].send(signal.SIGCONT)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_lost_history_is_declared_before_anybody_is_elected(tmp_path: Path) -> None:
    before, url = embedded_redis(tmp_path)
    store = RedisStore(StoreSettings(url=url))
    async with before:
        incarnation = (await store.open()).incarnation
        await store.campaign("old", "old:1", lease_s=60)
    shutil.rmtree(tmp_path / "redis")
    led = asyncio.Event()
    errors: list[HistoryLostError] = []

    async def declare(error: HistoryLostError) -> None:
        errors.append(error)
        await store.declare_lost_history(event=b"StoreHistoryLost")

    after, _ = embedded_redis(tmp_path)
    async with after:
        runner = Candidate(
            store,
            LoopClock(),
            holder="one",
            address="one:1",
            timing=Timing(),
            on_change=lambda role: led.set() if isinstance(role, Leading) else None,
            on_history_lost=declare,
        )
        task = asyncio.create_task(runner.run())
        await led.wait()
        assert len(errors) == 1
        assert (await store.lineage()).retired == (incarnation,)
        assert [event.payload for event in await store.events(after=0)] == [b"StoreHistoryLost"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def test_timing_that_leaves_no_time_to_renew_is_refused() -> None:
    with pytest.raises(ConfigError, match="raise lease_s"):
        Timing(lease_s=2.0, renew_s=1.0, margin_s=0.5)
    with pytest.raises(ConfigError):
        Timing(lease_s=1.0, renew_s=0.1, margin_s=1.0)
