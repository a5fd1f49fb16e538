"""The worker's side of an elastic KV pool: granules get pages from the reserve and give them back.

Answers are values, because an exception in a worker kills its engine: either everything asked for
happened, or nothing did.  A granule is zeroed before it is announced, since attention also reads
masked blocks (DESIGN §4, §8.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_core.errors import DeviceError, MisuseError, OwnershipError
from mirage_core.kv.geometry import Places, PoolGeometry
from mirage_core.memory.outcome import Refused
from mirage_core.memory.raw import POISON_BYTE, UNSHARED, RawRange
from mirage_core.memory.table import RESERVE, Owner, PageTable, granule_owner
from mirage_core.model import GranuleId, PageId
from mirage_core.ports import Fence


@dataclass(frozen=True, slots=True)
class Mapped:
    """The granules' pages are mapped, accessible and zero."""

    granules: tuple[GranuleId, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """The granules' pages are in the reserve."""

    granules: tuple[GranuleId, ...]
    pages: tuple[PageId, ...]


class PoolMapper:
    """Maps granules of one pool's range; ``poison`` fills pages that leave it (debug mode)."""

    def __init__(
        self, pool: RawRange, geometry: PoolGeometry, table: PageTable, *, poison: bool = False
    ) -> None:
        if pool.pages < geometry.places:
            raise MisuseError(f"a pool of {geometry.places} places in a range of {pool.pages}")
        self._pool = pool
        self._geometry = geometry
        self._table = table
        self._poison = poison

    def map(self, granules: Sequence[GranuleId]) -> Mapped | Refused:
        """Map granules that are not mapped, with pages of the reserve.

        Refused if the reserve is too small or the kernel refuses.
        """
        runs = self._places(granules, mapped=False)
        needed = len(set(granules)) * self._geometry.granule_pages
        if needed > self._table.reserve_pages:
            return Refused(
                f"{needed} pages needed for {len(granules)} granules, the reserve has "
                f"{self._table.reserve_pages}"
            )
        pages = self._table.choose(needed)
        refused = self._map_zeroed(runs, pages)
        if refused is not None:
            return refused
        owners = self._owners(runs, pages)
        self._table.reassign({page: (RESERVE, owner) for page, owner in owners.items()})
        return Mapped(tuple(granules))

    def unmap(self, granules: Sequence[GranuleId], fence: Fence) -> Unmapped | Refused:
        """Unmap mapped granules, whose blocks nobody uses; their pages go to the reserve.

        Refused if the fence has not passed or the kernel refuses.
        """
        runs = self._places(granules, mapped=True)
        if not fence.passed():
            return Refused("work in flight touches the pool")
        if self._poison:
            for run in runs:
                self._pool.fill(run.index, run.count, POISON_BYTE)
        pages: list[PageId] = []
        done: list[Places] = []
        for run in runs:
            try:
                pages.extend(self._pool.unmap(run.index, run.count, fence))
            except DeviceError as error:
                return self._undo_unmap(done, pages, runs, error)
            done.append(run)
        owners = self._owners(runs, pages)
        self._table.reassign({page: (owner, RESERVE) for page, owner in owners.items()})
        return Unmapped(tuple(granules), tuple(pages))

    def check(self) -> None:
        """Raise OwnershipError unless range and table agree on every place of the pool."""
        mapped: set[PageId] = set()
        for number in range(self._geometry.granules):
            granule = GranuleId(number)
            pages = [
                self._pool.mapped(run.index + offset)
                for run in self._geometry.places_of(granule)
                for offset in range(run.count)
            ]
            owned = self._table.pages(granule_owner(granule))
            if sorted(page for page in pages if page is not None) != list(owned):
                raise OwnershipError(f"granule {granule} owns {owned} and maps {pages}")
            if len(owned) not in (0, self._geometry.granule_pages):
                raise OwnershipError(f"granule {granule} owns {len(owned)} pages")
            if mapped.intersection(owned):
                raise OwnershipError(f"granule {granule} shares a page")
            mapped.update(owned)

    def _places(self, granules: Sequence[GranuleId], *, mapped: bool) -> tuple[Places, ...]:
        """Places of all granules, each wholly mapped or wholly unmapped as the caller needs."""
        if not granules or len(set(granules)) < len(granules):
            raise MisuseError(f"no granule, or one named twice: {granules}")
        for granule in granules:
            if bool(self._table.pages(granule_owner(granule))) != mapped:
                raise MisuseError(f"granule {granule} is {'not ' if mapped else ''}mapped")
        return self._geometry.places_of_all(granules)

    def _map_zeroed(self, runs: Sequence[Places], pages: Sequence[PageId]) -> Refused | None:
        """Map ``pages`` at the places of ``runs`` in turn, accessible and zero, or nothing."""
        done: list[Places] = []
        start = 0
        try:
            for run in runs:
                self._pool.map(run.index, pages[start : start + run.count])
                done.append(run)
                self._pool.set_access(run.index, run.count)
                self._pool.zero(run.index, run.count)
                start += run.count
        except DeviceError as error:
            for run in done:
                self._pool.unmap(run.index, run.count, UNSHARED)
            return Refused(str(error))
        return None

    def _undo_unmap(
        self,
        done: Sequence[Places],
        pages: Sequence[PageId],
        runs: Sequence[Places],
        error: DeviceError,
    ) -> Refused:
        """Map again what was unmapped, and zero all, since poisoned blocks may be used again."""
        refused = self._map_zeroed(done, pages)
        if refused is not None:
            raise DeviceError(
                f"{error}; and mapping the granules again failed: {refused.reason}"
            ) from error
        for run in runs:
            self._pool.zero(run.index, run.count)
        return Refused(str(error))

    def _owners(self, runs: Sequence[Places], pages: Sequence[PageId]) -> dict[PageId, Owner]:
        """Which granule each page belongs to, the pages lying at the places of ``runs`` in turn."""
        places = (run.index + offset for run in runs for offset in range(run.count))
        return {
            page: granule_owner(self._geometry.granule_at(place))
            for place, page in zip(places, pages, strict=True)
        }
