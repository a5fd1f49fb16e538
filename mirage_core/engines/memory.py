"""All device memory of one engine: its weights, its KV pool and the reserve between them.

It lives in the process that computes and is touched by its one computing thread, at step
boundaries.  ``perform`` does what the scheduler ordered and answers with values.
"""

from __future__ import annotations

import ctypes
import logging

from mirage_core.control.operations import (
    Accept,
    ApplyPlan,
    FetchReport,
    Inspect,
    MapGranules,
    Operation,
    Outcome,
    Release,
    UnmapGranules,
    WorkerReport,
)
from mirage_core.errors import ConfigError, DeviceError
from mirage_core.kv.geometry import PoolGeometry
from mirage_core.kv.mapper import PoolMapper
from mirage_core.memory.host import HostDevice
from mirage_core.memory.outcome import Refused
from mirage_core.memory.raw import UNSHARED
from mirage_core.memory.table import PageTable
from mirage_core.model import RESIDENT, GranuleId, PageId, UnitId
from mirage_core.transfer.engine import TransferEngine, UnitSpan
from mirage_core.transfer.fetcher import SlotFetcher
from mirage_core.weights.executor import WeightStore
from mirage_core.weights.host_copy import HostCopy
from mirage_core.weights.layout import WeightLayout

_log = logging.getLogger("mirage.memory")


class EngineMemory:
    """Weights on ``device`` under a plan, fetched from ``host_copy``, beside an elastic pool."""

    def __init__(
        self,
        device: HostDevice,
        layout: WeightLayout,
        host_copy: HostCopy,
        transfer: TransferEngine,
        *,
        verify: bool = False,
    ) -> None:
        self.table = PageTable()
        self._device = device
        self._host_copy = host_copy
        self._transfer = transfer
        self._verify = verify
        self.weights = WeightStore(device, layout, self.table, poison=verify)
        self._pool: PoolMapper | None = None

    # ---- start

    def receive(self, pages: tuple[PageId, ...]) -> None:
        """Pages of the agent, or of a private device, become the reserve."""
        self.table.receive(pages)

    def start_weights(self) -> None:
        """Bring all units onto the device; the static part is mapped, its bytes the caller's."""
        layout = self.weights.layout
        self._transfer.register_units(
            [
                UnitSpan(
                    ctypes.addressof(self.weights.unit_buffer(UnitId(unit))),
                    self._host_copy.address(UnitId(unit)),
                    part.size_bytes,
                )
                for unit, part in enumerate(layout.parts)
            ]
        )
        outcome = self.weights.start(RESIDENT, SlotFetcher(self._transfer))
        if isinstance(outcome, Refused):
            raise ConfigError(f"the device is too small for this model: {outcome.reason}")

    def open_pool(self, geometry: PoolGeometry) -> ctypes.Array[ctypes.c_ubyte]:
        """Reserve the pool's addresses and return a view of all of them, nothing mapped yet."""
        reserved = self._device.reserve(geometry.places)
        self._pool = PoolMapper(reserved, geometry, self.table, poison=self._verify)
        size_bytes = geometry.layers * geometry.layer_stride_bytes
        return reserved.buffer(0, size_bytes)

    def map_first(self, granules: int) -> None:
        """Map the granules that the pool never goes below."""
        outcome = self._mapper.map([GranuleId(g) for g in range(granules)])
        if isinstance(outcome, Refused):
            raise ConfigError(f"the device is too small for this KV pool: {outcome.reason}")

    # ---- at step boundaries

    def perform(self, operations: tuple[Operation, ...]) -> tuple[Outcome, ...]:
        """Perform each in order; one that cannot be done now changes nothing and says why."""
        return tuple(self._perform(operation) for operation in operations)

    def report(self, outcomes: tuple[Outcome, ...]) -> WorkerReport:
        stats = self._transfer.stats()
        return WorkerReport(
            outcomes=outcomes,
            reserve_pages=self.table.reserve_pages,
            plan=self.weights.plan,
            fetch=FetchReport(
                fetches=stats.fetches,
                fetched_bytes=stats.fetched_bytes,
                busy_s=stats.busy_s,
                stalls=stats.stalls,
                stall_s=stats.stall_s,
                retries=stats.retries,
                unit_compute_s=tuple(unit.compute_mean_s for unit in stats.units),
                unit_transfer_s=tuple(unit.transfer_mean_s for unit in stats.units),
            ),
        )

    def check(self) -> None:
        """Raise unless every invariant that a worker can see holds (DESIGN §8.1, §8.3)."""
        self.table.check()
        self.weights.check()
        self._mapper.check()
        if self._verify:
            self.weights.verify(self._host_copy.checksums)

    @property
    def _mapper(self) -> PoolMapper:
        assert self._pool is not None, "the pool was not opened"
        return self._pool

    def _perform(self, operation: Operation) -> Outcome:
        try:
            match operation:
                case Accept(pages):
                    self.table.receive(pages)
                    return Outcome(operation)
                case MapGranules(granules):
                    return _outcome(operation, self._mapper.map(granules))
                case UnmapGranules(granules):
                    return _outcome(operation, self._mapper.unmap(granules, UNSHARED))
                case ApplyPlan(plan):
                    return _outcome(operation, self.weights.apply(plan))
                case Release(count):
                    if count > self.table.reserve_pages:
                        return Outcome(
                            operation,
                            f"{count} pages wanted of {self.table.reserve_pages}",
                        )
                    pages = self.table.choose(count)
                    self.table.give_back(pages)
                    return Outcome(operation, pages=pages)
                case Inspect():
                    self.check()
                    return Outcome(operation, holdings=self.table.holdings())
        except DeviceError as error:
            _log.exception("the device refused %s", type(operation).__name__)
            return Outcome(operation, str(error))


def _outcome(operation: Operation, result: object) -> Outcome:
    return Outcome(operation, result.reason if isinstance(result, Refused) else None)
