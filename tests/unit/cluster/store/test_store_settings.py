"""Settings of the store and errors at its edge: each says what to change, none says a secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis

from cluster.store.durability import weaknesses
from cluster.store.port import Put, Request
from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from mirage_core.errors import (
    ConfigError,
    SchemaError,
    StoreAuthError,
    StoreRefusedError,
    StoreUnreachableError,
)
from tests.contract.redis_deployments import embedded, free_port, make_certificates, tcp_server
from tests.contract.redis_deployments import tls_with_acl as tls_with_acl_server

SECRET = "open-sesame"
PUT = [Put("model", "a", b"", None)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def password_file(folder: Path, password: str = SECRET) -> Path:
    file = folder / "password-file"
    file.write_text(password + "\n")
    return file


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either url or sentinels"),
        ({"url": "http://x"}, "redis://"),
        ({"url": f"redis://user:{SECRET}@x"}, "password_file"),
        ({"url": f"redis://x?password={SECRET}"}, "password_file"),
        ({"url": "redis://x", "sentinels": ["x:1"]}, "either url or sentinels"),
        ({"sentinels": ["x"]}, "HOST:PORT"),
        ({"url": "redis://x", "cluster": "a{b}"}, "cluster"),
        ({"url": "redis://x", "certificate": "c.pem"}, "belong together"),
        ({"url": "redis://x", "wait_replica": 1}, "wait_replica"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError) as error:
        StoreSettings.model_validate(settings)
    (fault,) = error.value.errors(include_input=False)
    told = f"{fault['loc']}: {fault['msg']}"
    assert says in told
    assert SECRET not in told


@pytest.mark.parametrize("setting", ["password_file", "ca_file"])
def test_missing_file_is_named_before_anything_is_connected(setting: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=str(missing)):
        RedisStore(StoreSettings.model_validate({"url": "rediss://x", setting: missing}))


def test_empty_password_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first line is the password"):
        RedisStore(StoreSettings(url="redis://x", password_file=password_file(tmp_path, "")))


@pytest.mark.anyio
async def test_unreachable_server_is_named_with_what_to_check() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnreachableError, match=f"cannot reach Redis at {url}.*server runs"):
        await RedisStore(StoreSettings(url=url)).open()


@pytest.mark.anyio
async def test_unreachable_sentinels_are_named() -> None:
    sentinel = f"127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnreachableError, match=f"'mirage' of Sentinels {sentinel}"):
        await RedisStore(StoreSettings(sentinels=(sentinel,))).open()


@pytest.mark.anyio
async def test_wrong_password_is_one_clear_error_and_never_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    port = free_port()
    settings = StoreSettings(url=f"redis://127.0.0.1:{port}")
    async with tcp_server(tmp_path / "redis", port, requirepass="another"):
        with pytest.raises(StoreAuthError, match="it wants a password: set password_file"):
            await RedisStore(settings).open()
        file = password_file(tmp_path)
        named = settings.model_copy(update={"password_file": file})
        with pytest.raises(StoreAuthError, match=f"check username and the content of {file}") as e:
            await RedisStore(named).open()
        assert SECRET not in f"{e.value} {e.value.__cause__} {caplog.text}"
        file.write_text("another\n")  # rotated: read again at the next connection
        store = RedisStore(named)
        await store.open()
        file.unlink()  # and for a moment there is none
        async with Redis(port=port, password="another") as admin:
            await admin.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StoreAuthError, match=f"content of {file}"):
            await store.read("model", "a")
        file.write_text("another\n")
        assert await store.read("model", "a") is None
        await store.close()


@pytest.mark.anyio
async def test_password_for_a_server_without_one_is_an_error_of_the_same_kind(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with tcp_server(tmp_path / "redis", port):
        with pytest.raises(StoreAuthError):
            await RedisStore(
                StoreSettings(
                    url=f"redis://127.0.0.1:{port}",
                    username="nobody",
                    password_file=password_file(tmp_path),
                )
            ).open()


@pytest.mark.anyio
async def test_user_without_a_needed_right_is_refused_at_the_start_not_in_the_middle(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with tcp_server(tmp_path / "redis", port), Redis(port=port) as admin:
        await admin.execute_command(
            "ACL", "SETUSER", "poor", "on", f">{SECRET}", "~*", "+@all", "-xadd"
        )
        store = RedisStore(
            StoreSettings(
                url=f"redis://127.0.0.1:{port}",
                username="poor",
                password_file=password_file(tmp_path),
            )
        )
        with pytest.raises(StoreAuthError, match=r"denies user 'poor' .*ACL SETUSER poor .*\+xadd"):
            await store.open()
        assert await admin.keys() == []
        await store.close()


@pytest.mark.anyio
async def test_certificate_of_a_stranger_is_refused(tmp_path: Path) -> None:
    strangers = make_certificates(tmp_path / "strangers")
    async with tls_with_acl_server(tmp_path, "default") as settings:
        with pytest.raises(StoreUnreachableError, match=r"(?i)certificate.*TLS settings"):
            await RedisStore(settings.model_copy(update={"ca_file": strangers.ca})).open()


@pytest.mark.anyio
async def test_server_out_of_memory_takes_no_writes_and_loses_none(tmp_path: Path) -> None:
    port = free_port()
    async with tcp_server(tmp_path, port), Redis(port=port) as admin:
        store = RedisStore(StoreSettings(url=f"redis://127.0.0.1:{port}"))
        await store.open()
        await admin.config_set("maxmemory", 1)
        with pytest.raises(StoreRefusedError, match="raise maxmemory"):
            await store.commit(PUT, Request("r", "someone"))
        await admin.config_set("maxmemory", 0)
        assert (await store.commit(PUT, Request("r", "someone"))).revision == 1
        await store.close()


@pytest.mark.anyio
async def test_store_of_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    async with embedded(tmp_path) as settings:
        async with Redis(unix_socket_path=settings.url.removeprefix("unix://")) as client:
            await client.hset("{mirage:default}:meta", "schema", "7")
        store = RedisStore(settings)
        with pytest.raises(SchemaError, match=r"holds schema 7 .* speaks 1: run `mirage store"):
            await store.open()
        await store.close()


# ---- durability

SAFE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "min-replicas-to-write": "1",
}
ALONE = StoreSettings(url="redis://x")
WATCHED = StoreSettings(sentinels=("x:1",), wait_replicas=1)


@pytest.mark.parametrize(
    ("server", "settings", "says"),
    [
        ({"appendonly": "no"}, ALONE, "set appendonly yes"),
        ({"appendfsync": "everysec"}, ALONE, "set appendfsync always"),
        (
            {"maxmemory": "1000", "maxmemory-policy": "allkeys-lru"},
            ALONE,
            "set maxmemory-policy noeviction",
        ),
        ({"min-replicas-to-write": "0"}, WATCHED, "set min-replicas-to-write 1"),
        ({}, WATCHED.model_copy(update={"wait_replicas": 0}), "set wait_replicas"),
    ],
)
def test_each_way_to_lose_a_write_is_told_with_its_cure(
    server: dict[str, str], settings: StoreSettings, says: str
) -> None:
    (weakness,) = weaknesses(SAFE | server, settings)
    assert says in weakness


def test_safe_settings_have_no_weakness() -> None:
    assert weaknesses(SAFE, ALONE) == []
    assert weaknesses(SAFE, WATCHED) == []


@pytest.mark.anyio
async def test_durability_is_what_the_server_says_of_itself(tmp_path: Path) -> None:
    port = free_port()
    async with embedded(tmp_path / "embedded") as settings:
        store = RedisStore(settings)
        await store.open()
        assert not (await store.durability()).weak
        await store.close()
    async with tcp_server(tmp_path / "weak", port, appendfsync="everysec") as _:
        store = RedisStore(StoreSettings(url=f"redis://127.0.0.1:{port}"))
        await store.open()
        (weakness,) = (await store.durability()).weaknesses
        assert "appendfsync always" in weakness
        await store.close()
