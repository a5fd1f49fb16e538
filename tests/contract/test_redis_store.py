"""The Redis store against the contract, in each way that Redis is deployed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from cluster.store.redis_store import RedisStore
from cluster.store.settings import StoreSettings
from tests.contract.redis_deployments import embedded, replicated, tls_with_acl
from tests.contract.store_contract import OpenStore, StoreContract


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["embedded", "TLS and ACL user", "Sentinel"])
async def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[StoreSettings]:
    folder = tmp_path_factory.mktemp("redis")
    if request.param == "embedded":
        async with embedded(folder) as settings:
            yield settings
    elif request.param == "Sentinel":
        async with replicated(folder) as servers:
            yield servers.settings
    else:
        # The user's rights end at this prefix, so every test's cluster begins with it.
        async with tls_with_acl(folder, "trial*") as settings:
            yield settings


@pytest.fixture
async def open_store(deployment: StoreSettings) -> AsyncIterator[OpenStore]:
    cluster = f"trial{uuid.uuid4().hex}"
    async with AsyncExitStack() as stack:

        async def open_one(**settings: object) -> RedisStore:
            store = RedisStore(deployment.model_copy(update={"cluster": cluster, **settings}))
            stack.push_async_callback(store.close)
            await store.open()
            return store

        yield open_one


class TestRedisStore(StoreContract):
    """All of the contract."""
