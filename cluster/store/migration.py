"""Bringing a store of an older schema to this one.

A step rewrites the data of schema n as n + 1.  It may be interrupted and run again, so each must be
able to meet data that it has already rewritten.  No controller leads meanwhile: the migration holds
the lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redis.asyncio import Redis

from cluster.store.calls import Caller
from cluster.store.scripts import SCHEMA, Keys
from cluster.store.settings import StoreSettings, connect
from mirage_core.errors import ConfigError, SchemaError

Step = Callable[[Redis, Keys], Awaitable[None]]

STEPS: Mapping[int, Step] = {}
"""Step n leads from schema n to n + 1.  Schema 1 is the first."""

_HOLDER = "migration"
_LEASE = f"0 {_HOLDER} -"
_LEASE_S = 600


async def migrate(settings: StoreSettings, *, steps: Mapping[int, Step] = STEPS) -> tuple[int, int]:
    """Rewrite the store's data in the schema of this MIRAGE; (schema found, schema now).

    Stop all controllers first, and copy the server's data: there is no way back.

    Raises ConfigError if there is no store or a controller leads it, SchemaError if no steps lead
    from its schema to this one.
    """
    caller = Caller(connect(settings), Keys(settings.cluster), settings)
    try:
        return await caller.guard(lambda: _migrate(caller, steps))
    finally:
        await caller.client.aclose(close_connection_pool=True)


async def _migrate(caller: Caller, steps: Mapping[int, Step]) -> tuple[int, int]:
    client, keys, where = caller.client, caller.keys, caller.settings.where
    found: Any = await client.hget(keys.meta, "schema")
    if found is None:
        raise ConfigError(
            f"{where} holds no store of cluster {caller.settings.cluster!r}: check the address and"
            " the cluster's name"
        )
    schema = int(found)
    if schema > SCHEMA or any(version not in steps for version in range(schema, SCHEMA)):
        raise SchemaError(
            f"{where} holds schema {schema}, which this MIRAGE (schema {SCHEMA}) cannot migrate:"
            " use the MIRAGE that wrote it, or a newer one"
        )
    if schema == SCHEMA:
        return schema, schema
    taken = await client.set(keys.lease, _LEASE, nx=True, ex=_LEASE_S)
    if not taken and await client.get(keys.lease) != _LEASE.encode():
        raise ConfigError(f"a controller leads on {where}: stop all controllers, then migrate")
    for version in range(schema, SCHEMA):
        await steps[version](client, keys)
        await client.hset(keys.meta, "schema", str(version + 1))
    await client.delete(keys.lease)
    return schema, SCHEMA
