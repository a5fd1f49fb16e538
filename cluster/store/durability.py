"""How a Redis server keeps accepted writes: what its settings say, held against what is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from cluster.store.port import Durability
from cluster.store.settings import StoreSettings
from mirage_core.errors import StoreUnreachableError

_READ = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")


async def observe_durability(client: Redis, settings: StoreSettings) -> Durability:
    """Ask the server for its settings; a user that may not read them cannot know."""
    server: dict[Any, Any] = {}
    try:
        for name in _READ:
            server.update(await client.config_get(name))
    except ResponseError:
        return Durability(
            ("the server's settings cannot be read: allow this user CONFIG GET (+config|get)",)
        )
    except (RedisError, OSError) as error:
        raise StoreUnreachableError(f"cannot reach {settings.where}: {error}") from error
    text = {_text(key): _text(value) for key, value in server.items()}
    return Durability(tuple(weaknesses(text, settings)))


def weaknesses(server: Mapping[str, str], settings: StoreSettings) -> list[str]:
    """Each way to lose an accepted write, with the setting that ends it."""
    found = []
    if server.get("appendonly") != "yes":
        found.append("a restart of Redis loses writes since its last dump: set appendonly yes")
    elif server.get("appendfsync") != "always":
        found.append(
            "a crash of the machine loses about the last second of writes: set appendfsync always"
        )
    evicts = server.get("maxmemory-policy") != "noeviction"
    if server.get("maxmemory") != "0" and evicts:
        found.append("Redis may evict records: set maxmemory-policy noeviction")
    if settings.sentinels and not settings.wait_replicas:
        found.append("a failover loses writes that no replica has: set wait_replicas")
    if settings.sentinels and server.get("min-replicas-to-write", "0") == "0":
        found.append("a cut-off master goes on taking writes: set min-replicas-to-write 1")
    return found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
