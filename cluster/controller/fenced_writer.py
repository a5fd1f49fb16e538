"""A leader's writes: fenced, and repeated until it is known what came of them.

After a store that did not answer nobody knows whether a write was done.  It is repeated with the
same request, which the store answers from what it kept, so it is done once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from cluster.metrics import ControllerMetrics
from cluster.records import DIRECTIVE, MODEL, directive_name, encode_directive
from cluster.store.port import Delete, Fence, Operation, Put, RecordStore, Request
from mirage_core.cluster_model import StoreIncarnation
from mirage_core.control.reconciler_events import Purge, Write
from mirage_core.errors import (
    NotReplicatedError,
    StaleRevisionError,
    StoreError,
    StoreRefusedError,
    StoreUnreachableError,
)

_log = logging.getLogger("mirage.term")

T = TypeVar("T")

_RETRY_S, _RETRY_MAX_S = 0.05, 1.0


class FencedWriter:
    def __init__(
        self,
        store: RecordStore,
        fence: Fence,
        incarnation: StoreIncarnation,
        holder: str,
        metrics: ControllerMetrics,
        still: Callable[[], None],
    ) -> None:
        """``still`` is called between tries, and ends the term if it is over."""
        self._store = store
        self.fence = fence
        self._incarnation = incarnation
        self._holder = holder
        self._metrics = metrics
        self._still = still
        self._requests = 0

    async def commit(self, writes: Sequence[Write]) -> int:
        """Store directives, all at once; the revision at which they are."""
        operations = [self._operation(write) for write in writes]
        request = self._request()
        with self._metrics.commit_s.time():
            written = await self._insist(
                lambda: self._store.commit(operations, request, fence=self.fence)
            )
        self._metrics.directives_written.inc(len(operations))
        return written.revision

    def _operation(self, write: Write) -> Operation:
        name = directive_name(write.device, write.key)
        if write.body is None:
            return Delete(DIRECTIVE, name, None)
        payload = encode_directive(
            write.operation, write.body, self._incarnation, self.fence.epoch, write.traceparent
        )
        return Put(DIRECTIVE, name, payload, None)

    async def purge(self, purge: Purge) -> bool:
        """Delete a model's record; False if somebody wished something of it meanwhile."""
        operation, request = Delete(MODEL, purge.model, purge.revision), self._request()
        try:
            await self._insist(lambda: self._store.commit([operation], request, fence=self.fence))
        except StaleRevisionError:
            return False
        return True

    async def append_events(self, payloads: Sequence[bytes]) -> None:
        """An event may be stored twice after an unknown outcome, rather than not at all."""
        await self._insist(lambda: self._store.append_events(payloads, fence=self.fence))

    async def observe(self, kind: str, values: Mapping[str, bytes | None]) -> None:
        await self._insist(lambda: self._store.observe(kind, values, fence=self.fence))

    async def _insist(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do it until it is known to be done.  Raises what repeating does not help."""
        pause_s = _RETRY_S
        while True:
            try:
                return await action()
            except (StoreUnreachableError, NotReplicatedError, StoreRefusedError) as error:
                self._metrics.store_errors.labels(type(error).__name__).inc()
                _log.warning("the store: %s", error)
            except StoreError as error:
                self._metrics.store_errors.labels(type(error).__name__).inc()
                raise
            self._still()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)

    def _request(self) -> Request:
        self._requests += 1
        name = f"{self._holder}-{self.fence.epoch}-{self._requests}"
        return Request(name, f"controller/{self._holder}")
