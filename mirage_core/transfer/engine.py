"""The asynchronous transfer engine: brings cycled units from their host copies before they run.

The engine is native (``native/transfer_engine.h`` has the states and the threads): the computing
thread meets it inside ``mirage::linear``, ``unit_wait`` and ``unit_done``.  This adapter is what
the rest of MIRAGE sees of it.  One engine a process, for one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mirage_core import native
from mirage_core.model import UnitId


@dataclass(frozen=True, slots=True)
class UnitSpan:
    """Where one unit's bytes belong on the device and where its host copy is."""

    device_address: int
    host_address: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UnitStats:
    """Measured times of one unit; 0 until there is a sample.  Means are exponential, weight 1/8."""

    fetches: int
    transfer_last_s: float
    """Of the last fetch, from when the link was free for it to its landing."""
    transfer_mean_s: float
    queued_last_s: float
    """Of the last fetch, from its request to the start of its copy."""
    compute_last_s: float
    """From the end of the unit's wait to the end of its last linear."""
    compute_mean_s: float


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Totals since the engine started; ``units`` in order of execution."""

    fetches: int
    fetched_bytes: int
    busy_s: float
    """Time during which the link carried a fetch."""
    stalls: int
    """Waits that found their unit not landed."""
    stall_s: float
    retries: int
    failures: int
    """Fetches given up after all attempts."""
    step_compute_last_s: float
    """Of the last step, from the first unit's wait to the last unit's end, less its stalls."""
    step_compute_mean_s: float
    units: tuple[UnitStats, ...]


class TransferEngine:
    """A transfer thread and its tables of units; the process's one until ``close``.

    ``cpus``: the CPUs that the thread may use, None for the caller's own.  ``nice``: added
    niceness of the thread.  ``verify``: compare the device's bytes with the host copy's checksum
    after every copy (reads each unit once more).  ``attempts``: copies of a unit before its fetch
    has failed; then the operator that waits for it raises TransferError, and the model must stop
    serving rather than answer from wrong weights (DESIGN §9).

    Raises MisuseError if the process has an engine already or the kernel refuses the placement.
    """

    def __init__(
        self,
        *,
        cpus: Iterable[int] | None = None,
        nice: int = 0,
        verify: bool = False,
        attempts: int = 3,
    ) -> None:
        self._engine = native.load().TransferEngine(
            cpus=sorted(cpus or ()), nice=nice, verify=verify, attempts=attempts
        )

    def register_units(self, units: Sequence[UnitSpan]) -> None:
        """Set the model's units in order of execution; checksums are taken of the host copies.

        All units are taken as landed and resident.  Raises MisuseError while a fetch is under way.
        """
        self._engine.register_units(
            [(unit.device_address, unit.host_address, unit.size_bytes) for unit in units]
        )

    def set_slots(self, slots: Sequence[Sequence[UnitId]], landed: Iterable[UnitId]) -> None:
        """Adopt a remap plan's slots; call it between steps, after ``drain``.

        ``landed`` are the units whose bytes are at their device addresses now, at most one of each
        slot.  Each slot's first unit and each resident unit is requested unless it has landed.
        The pages behind the new plan must be mapped already.  Raises MisuseError, and changes
        nothing, if the slots overlap, do not ascend, or a fetch is under way.
        """
        self._engine.set_slots([list(members) for members in slots], set(landed))

    def fetch_now(self, unit: UnitId) -> None:
        """Request ``unit``, landed or not, and return; the slot it shares is its own from now.

        Call it between steps.  Raises MisuseError while a unit of its slot runs.
        """
        self._engine.fetch_now(unit)

    def drain(self) -> None:
        """Return when nothing is requested and nothing is being copied: a fence for unmapping."""
        self._engine.drain()

    def set_bandwidth_limit(self, bytes_per_s: float | None) -> None:
        """Make the link as slow as ``bytes_per_s``, so that it stands for another; None: no limit.

        A fetch then lands no sooner than size/limit after its request or the fetch before it.
        """
        self._engine.set_bandwidth_limit(bytes_per_s or 0.0)

    def landed_units(self) -> frozenset[UnitId]:
        """Units whose bytes are at their device addresses."""
        return frozenset(UnitId(unit) for unit in self._engine.landed_units())

    def mismatched_units(self) -> tuple[UnitId, ...]:
        """Landed units whose device bytes differ from the host copy's (DESIGN §8.3: none ever).

        Reads every landed unit; call it between steps, after ``drain``.
        """
        return tuple(UnitId(unit) for unit in self._engine.mismatched_units())

    def stats(self) -> TransferStats:
        stats = self._engine.stats()
        return TransferStats(
            fetches=stats.fetches,
            fetched_bytes=stats.fetched_bytes,
            busy_s=stats.busy_s,
            stalls=stats.stalls,
            stall_s=stats.stall_s,
            retries=stats.retries,
            failures=stats.failures,
            step_compute_last_s=stats.step_compute_last_s,
            step_compute_mean_s=stats.step_compute_mean_s,
            units=tuple(
                UnitStats(
                    fetches=unit.fetches,
                    transfer_last_s=unit.transfer_last_s,
                    transfer_mean_s=unit.transfer_mean_s,
                    queued_last_s=unit.queued_last_s,
                    compute_last_s=unit.compute_last_s,
                    compute_mean_s=unit.compute_mean_s,
                )
                for unit in stats.units
            ),
        )

    def close(self) -> None:
        """End the thread after the copy in progress; waits for what has not landed raise.

        Closing twice is fine.
        """
        self._engine.close()

    def debug_fail_copies(self, count: int) -> None:
        """For tests: the next ``count`` copies fail."""
        self._engine.debug_fail_copies(count)

    def debug_corrupt_copies(self, count: int) -> None:
        """For tests: the next ``count`` copies flip a byte on the device."""
        self._engine.debug_corrupt_copies(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
