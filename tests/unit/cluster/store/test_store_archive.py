"""Export, import and migration on a real redis-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cluster.store.archive import export_store, import_store
from cluster.store.migration import migrate
from cluster.store.port import Delete, Put, Request
from cluster.store.redis_store import RedisStore
from cluster.store.scripts import Keys
from cluster.store.settings import StoreSettings
from mirage_core.errors import ConfigError, SchemaError
from tests.contract.redis_deployments import embedded

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[StoreSettings]:
    async with embedded(tmp_path_factory.mktemp("redis")) as settings:
        yield settings


def of_cluster(server: StoreSettings, name: str) -> StoreSettings:
    return server.model_copy(update={"cluster": name})


def raw(server: StoreSettings) -> Redis:
    return Redis(unix_socket_path=server.url.removeprefix("unix://"))


async def filled(settings: StoreSettings) -> RedisStore:
    store = RedisStore(settings)
    await store.open()
    await store.commit([Put("model", "ü", bytes(range(256)), None)], Request("1", "alice"))
    await store.commit([Put("device", "d", b"", None)], Request("2", "bob\nbob"))
    await store.commit([Put("model", "gone", b"", None)], Request("3", "alice"))
    await store.commit([Delete("model", "gone", None)], Request("4", "alice"))
    return store


async def test_imported_store_is_the_exported_one_under_a_new_incarnation(
    server: StoreSettings, tmp_path: Path
) -> None:
    file = tmp_path / "export"
    store = await filled(of_cluster(server, "from"))
    assert await export_store(store, file) == 2
    target = of_cluster(server, "to")
    assert await import_store(target, file) == 2
    copy = RedisStore(target)
    lineage = await copy.open()
    before = await store.snapshot()
    assert (await copy.snapshot()).records == before.records
    assert lineage.retired == (before.position.incarnation,)
    assert lineage.incarnation != before.position.incarnation
    assert lineage.revision == before.position.revision + 1
    page = await copy.list("model")
    written = await copy.commit(
        [Put("model", "ü", b"", page.records[0].revision)], Request("5", "alice")
    )
    assert written.revision == lineage.revision + 1
    for each in (store, copy):
        await each.close()


async def test_import_into_a_store_that_holds_records_or_has_a_leader_is_refused(
    server: StoreSettings, tmp_path: Path
) -> None:
    file = tmp_path / "export"
    store = await filled(of_cluster(server, "full"))
    await export_store(store, file)
    with pytest.raises(ConfigError, match="not empty"):
        await import_store(of_cluster(server, "full"), file)
    led = RedisStore(of_cluster(server, "led"))
    await led.open()
    await led.campaign("one", "host:1", lease_s=60)
    with pytest.raises(ConfigError, match="stop its controllers"):
        await import_store(of_cluster(server, "led"), file)
    await led.resign("one")
    before = await led.lineage()
    assert await import_store(of_cluster(server, "led"), file) == 2
    assert before.incarnation in (await led.open()).retired
    for each in (store, led):
        await each.close()


async def test_damaged_file_changes_nothing_and_is_named(
    server: StoreSettings, tmp_path: Path
) -> None:
    file = tmp_path / "export"
    store = await filled(of_cluster(server, "damaged"))
    await export_store(store, file)
    await store.close()
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    target = of_cluster(server, "damaged-to")
    for damaged, says in (
        ("".join(lines[:-1]), "line 3: records"),
        ("".join(lines[:1] + lines[2:]), "damaged or not whole"),
        (whole.replace('"revision":1', '"revision":9'), "damaged or not whole"),
        (whole.replace("mirage-store", "another"), "no export of a store"),
        ("", "not whole"),
        ("x\n" * 3, "line 1"),
    ):
        file.write_text(damaged)
        with pytest.raises(ConfigError, match=says):
            await import_store(target, file)
    file.write_text(whole.replace('"store_schema":1', '"store_schema":2'))
    with pytest.raises(SchemaError, match="of schema 2"):
        await import_store(target, file)
    with pytest.raises(ConfigError, match="cannot read"):
        await import_store(target, tmp_path / "missing")
    async with raw(server) as client:
        assert await client.exists(Keys("damaged-to").meta) == 0


async def test_export_that_cannot_be_written_is_an_error_and_leaves_no_file(
    server: StoreSettings, tmp_path: Path
) -> None:
    store = RedisStore(of_cluster(server, "unwritable"))
    await store.open()
    with pytest.raises(ConfigError, match="cannot write"):
        await export_store(store, tmp_path / "missing" / "export")
    assert list(tmp_path.iterdir()) == []
    await store.close()


# ---- migration


async def add_actor(client: Redis, keys: Keys) -> None:
    """A step from a schema whose records had no actor; it leaves migrated ones alone."""
    for name, value in (await client.hgetall(keys.records("model"))).items():
        head, _, payload = value.partition(b"\n")
        if len(head.split()) == 2:
            await client.hset(keys.records("model"), name, head + b" 0\n" + payload)


async def old_store(server: StoreSettings, cluster: str, schema: int) -> StoreSettings:
    keys = Keys(cluster)
    async with raw(server) as client:
        await client.hset(keys.meta, mapping={"schema": schema, "incarnation": "i", "revision": 3})
        await client.hset(keys.records("model"), "a", b"3 1000\nold")
        await client.zadd(keys.index("model"), {"a": 0})
        await client.sadd(keys.kinds, "model")
    return of_cluster(server, cluster)


async def test_older_store_is_refused_until_it_is_migrated(server: StoreSettings) -> None:
    settings = await old_store(server, "old", 0)
    store = RedisStore(settings)
    with pytest.raises(SchemaError, match="holds schema 0"):
        await store.open()
    assert await migrate(settings, steps={0: add_actor}) == (0, 1)
    assert (await store.open()).revision == 3
    record = await store.read("model", "a")
    assert record is not None
    assert replace(record, unix_ms=0).payload == b"old"
    assert await migrate(settings, steps={}) == (1, 1)
    await store.campaign("one", "host:1", lease_s=60)  # the migration's own lease is gone
    await store.close()


async def test_migration_that_was_cut_off_is_run_again(server: StoreSettings) -> None:
    settings = await old_store(server, "cut", 0)

    async def die(client: Redis, keys: Keys) -> None:
        await add_actor(client, keys)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await migrate(settings, steps={0: die})
    store = RedisStore(settings)
    with pytest.raises(SchemaError):
        await store.open()
    assert await migrate(settings, steps={0: add_actor}) == (0, 1)
    await store.open()
    await store.close()


async def test_migration_refuses_what_it_cannot_do(server: StoreSettings) -> None:
    with pytest.raises(ConfigError, match="holds no store"):
        await migrate(of_cluster(server, "nothing"))
    with pytest.raises(SchemaError, match="schema 2"):
        await migrate(await old_store(server, "newer", 2))
    with pytest.raises(SchemaError, match="schema 0"):
        await migrate(await old_store(server, "too-old", 0))
    settings = await old_store(server, "in-use", 0)
    async with raw(server) as client:
        await client.set(Keys("in-use").lease, "7 one host:1", px=60_000)
    with pytest.raises(ConfigError, match="stop all controllers"):
        await migrate(settings, steps={0: add_actor})
