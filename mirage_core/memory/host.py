"""The host device: pages of a sealed memory file, mapped into ranges of reserved addresses.

    memory file (one for a device, made by the agent, its descriptor passed to every engine)
      | page 0 | page 1 | page 2 | page 3 | ...
            \\          ______/         \\
    range    | page 0 | page 2 |  ----  | page 2 |       ---- reserved, nothing mapped
      place       0        1        2        3           places 1 and 3 alias page 2

The seals keep the file's size fixed, so that no process can take memory from under another's
mapping (which would be SIGBUS).  A page is mapped without access first and made accessible by
``set_access``: not needed here, but it is CUDA's contract, and code that forgets it must fail
here too.

The kernel joins neighbouring places into one mapping when both are unmapped, or when their pages
are consecutive and equally accessible.  A process may have ``vm.max_map_count`` mappings, and at
that limit even unmapping fails; so a device counts its own and refuses to map beyond a part of
the limit, never to unmap.  One thread maps and unmaps; any thread may touch the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from mirage_core.errors import ConfigError, DeviceError, MisuseError, ProtocolError
from mirage_core.memory import libc
from mirage_core.memory.file import (
    create_memory_file,
    duplicate,
    seal_memory_file,
    seals_of,
)
from mirage_core.memory.limits import observe_max_mappings
from mirage_core.memory.runs import runs_of
from mirage_core.model import DeviceGeometry, DeviceId, PageId
from mirage_core.ports import Fence

_SEALS = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_SEAL

_MAPPING_SHARE = 0.75
"""Part of vm.max_map_count that one device may use; the rest is for the process itself and for
the splits that unmapping makes."""


class HostDevice:
    """One process's view of a host device, made by ``create`` (agent) or ``open`` (engine)."""

    def __init__(self, fd: int, geometry: DeviceGeometry) -> None:
        self._fd = fd
        self._geometry = geometry
        self._ranges: set[HostRange] = set()
        self._max_mappings = int(observe_max_mappings() * _MAPPING_SHARE)
        self._closed = False

    @classmethod
    def create(cls, geometry: DeviceGeometry) -> HostDevice:
        """Make a device of fresh, zeroed memory that is all allocated on return.

        Raises ConfigError if the geometry is no geometry or the machine lacks the room, and
        DeviceError if the kernel gives out while allocating; either leaves nothing behind.
        """
        if not _is_page_size(geometry.page_bytes):
            raise ConfigError(
                f"the page size must be a power of two of at least {libc.OS_PAGE_BYTES} bytes, "
                f"got {geometry.page_bytes}"
            )
        if geometry.pages < 1:
            raise ConfigError(f"a device needs one page or more, got {geometry.pages}")
        purpose = f"host device {geometry.device}"
        fd = create_memory_file("mirage-device", geometry.size_bytes, purpose)
        try:
            seal_memory_file(fd, _SEALS)
        except DeviceError:
            os.close(fd)
            raise
        return cls(fd, geometry)

    @classmethod
    def open(cls, fd: int, device_id: DeviceId, page_bytes: int) -> HostDevice:
        """View the device behind a descriptor that the agent passed; ``fd`` stays the caller's.

        Raises ProtocolError if it is not a sealed memory file of whole pages, DeviceError if the
        kernel refuses to duplicate it.
        """
        if not _is_page_size(page_bytes):
            raise ProtocolError(
                f"device {device_id} was announced with pages of {page_bytes} bytes"
            )
        seals = seals_of(fd)
        if seals & _SEALS != _SEALS:
            raise ProtocolError(f"the memory file of device {device_id} may still change its size")
        if seals & (libc.F_SEAL_WRITE | libc.F_SEAL_FUTURE_WRITE):
            raise ProtocolError(f"the memory file of device {device_id} is read-only")
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0 or size_bytes % page_bytes:
            raise ProtocolError(
                f"device {device_id} has {size_bytes} bytes, no whole number of pages of "
                f"{page_bytes} bytes"
            )
        geometry = DeviceGeometry(device_id, page_bytes, size_bytes // page_bytes)
        return cls(duplicate(fd), geometry)

    @property
    def geometry(self) -> DeviceGeometry:
        return self._geometry

    @property
    def fd(self) -> int:
        """The memory file, to be passed beside a message (SCM_RIGHTS)."""
        return self._fd

    @property
    def mappings(self) -> int:
        """Mappings of this process that the device's ranges need at most."""
        return sum(open_range.mappings for open_range in self._ranges)

    def reserve(self, pages: int) -> HostRange:
        """Reserve addresses of ``pages`` places; they cost no memory."""
        if self._closed:
            raise MisuseError(f"device {self._geometry.device} is closed")
        if pages < 1:
            raise MisuseError(f"a range needs one place or more, got {pages}")
        self.require_mappings(1)
        page_bytes = self._geometry.page_bytes
        try:
            base = libc.reserve_addresses(pages * page_bytes, page_bytes)
        except OSError as error:
            raise DeviceError(f"cannot reserve {pages} places: {error.strerror}") from error
        reserved = HostRange(self, base, pages)
        self._ranges.add(reserved)
        return reserved

    def close(self) -> None:
        """Let the memory file go; MisuseError while a range is open.  Closing twice is fine."""
        if self._ranges:
            raise MisuseError(f"{len(self._ranges)} ranges are open")
        if not self._closed:
            os.close(self._fd)
            self._closed = True

    def require_mappings(self, more: int) -> None:
        """For ranges: raise DeviceError unless ``more`` mappings fit below the kernel's limit."""
        if more > 0 and self.mappings + more > self._max_mappings:
            raise DeviceError(
                f"{more} more mappings would pass {self._max_mappings}, this device's part of "
                "vm.max_map_count: raise that limit, or use larger pages"
            )

    def forget_range(self, closed: HostRange) -> None:
        """For ranges: ``closed`` has given its addresses back."""
        self._ranges.discard(closed)


class _Mapped(NamedTuple):
    """What a mapped place holds."""

    page: PageId
    access: bool


class HostRange:
    """A ``RawRange`` of one process, made by ``HostDevice.reserve``."""

    def __init__(self, device: HostDevice, base: int, pages: int) -> None:
        self._device = device
        self._base = base
        self._page_bytes = device.geometry.page_bytes
        self._places: list[_Mapped | None] = [None] * pages
        self._mapped_count = 0
        self._closed = False
        self.mappings = 1
        """Mappings of the kernel that this range needs, joins with other ranges not counted."""

    @property
    def base(self) -> int:
        return self._base

    @property
    def pages(self) -> int:
        return len(self._places)

    def map(self, index: int, pages: Sequence[PageId]) -> None:
        self._require_span(index, len(pages))
        for offset, page in enumerate(pages):
            if not 0 <= page < self._device.geometry.pages:
                raise MisuseError(f"page {page} of a device of {self._device.geometry.pages}")
            if self._places[index + offset] is not None:
                raise MisuseError(f"place {index + offset} is mapped")
        after: list[_Mapped | None] = [_Mapped(page, access=False) for page in pages]
        growth = self._growth(index, after)
        self._device.require_mappings(growth)
        done = 0
        try:
            for position, first, count in runs_of(pages):
                libc.map_file_at(
                    self._address(index + position),
                    count * self._page_bytes,
                    self._device.fd,
                    first * self._page_bytes,
                )
                done = position + count
        except OSError as error:
            # Should this fail too, what stays mapped is without access and mapped over next time.
            with contextlib.suppress(OSError):
                if done:
                    libc.map_nothing_at(self._address(index), done * self._page_bytes)
            raise DeviceError(f"cannot map {len(pages)} pages: {error.strerror}") from error
        self._replace(index, after, growth)
        self._mapped_count += len(pages)

    def set_access(self, index: int, count: int) -> None:
        """Allow reads and writes of mapped places, and enter them into the page tables now."""
        before = self._require_mapped(index, count)
        after: list[_Mapped | None] = [_Mapped(place.page, access=True) for place in before]
        growth = self._growth(index, after)
        self._device.require_mappings(growth)
        address, size_bytes = self._address(index), count * self._page_bytes
        try:
            libc.protect(address, size_bytes, libc.PROT_READ_WRITE)
            libc.populate(address, size_bytes)
        except OSError as error:
            for offset, place in enumerate(before):
                # Should this fail too, a place is more permissive than its entry says.
                with contextlib.suppress(OSError):
                    if not place.access:
                        place_address = self._address(index + offset)
                        libc.protect(place_address, self._page_bytes, libc.PROT_NONE)
            raise DeviceError(f"cannot give access to {count} pages: {error.strerror}") from error
        self._replace(index, after, growth)

    def unmap(self, index: int, count: int, fence: Fence) -> tuple[PageId, ...]:
        before = self._require_mapped(index, count)
        if not fence.passed():
            raise MisuseError(f"work in flight may touch places {index} to {index + count - 1}")
        growth = self._growth(index, [None] * count)
        try:
            libc.map_nothing_at(self._address(index), count * self._page_bytes)
        except OSError as error:
            raise DeviceError(f"cannot unmap {count} pages: {error.strerror}") from error
        self._replace(index, [None] * count, growth)
        self._mapped_count -= count
        return tuple(place.page for place in before)

    def mapped(self, index: int) -> PageId | None:
        self._require_span(index, 1)
        place = self._places[index]
        return None if place is None else place.page

    def zero(self, index: int, count: int) -> None:
        self.fill(index, count, 0)

    def fill(self, index: int, count: int, byte: int) -> None:
        self._require_access(index, count)
        libc.fill(self._address(index), count * self._page_bytes, byte)

    def is_zero(self, index: int, count: int) -> bool:
        self._require_access(index, count)
        return libc.is_filled_with(self._address(index), count * self._page_bytes, 0)

    def buffer(self, offset_bytes: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
        end_bytes = self.pages * self._page_bytes
        if self._closed or size_bytes < 0 or not 0 <= offset_bytes <= end_bytes - size_bytes:
            raise MisuseError(f"bytes {offset_bytes} to {offset_bytes + size_bytes} of {end_bytes}")
        return libc.bytes_at(self._base + offset_bytes, size_bytes)

    def close(self) -> None:
        if self._closed:
            return
        if self._mapped_count:
            raise MisuseError(f"{self._mapped_count} places are mapped")
        try:
            libc.unmap(self._base, self.pages * self._page_bytes)
        except OSError as error:
            raise DeviceError(f"cannot give addresses back: {error.strerror}") from error
        self._closed = True
        self._device.forget_range(self)

    def _address(self, index: int) -> int:
        return self._base + index * self._page_bytes

    def _require_span(self, index: int, count: int) -> None:
        if self._closed:
            raise MisuseError("the range is closed")
        if count < 1 or not 0 <= index <= self.pages - count:
            raise MisuseError(f"{count} places from {index} of a range of {self.pages}")

    def _require_mapped(self, index: int, count: int) -> list[_Mapped]:
        self._require_span(index, count)
        places = [place for place in self._places[index : index + count] if place is not None]
        if len(places) < count:
            raise MisuseError(f"of places {index} to {index + count - 1} not all are mapped")
        return places

    def _require_access(self, index: int, count: int) -> None:
        if not all(place.access for place in self._require_mapped(index, count)):
            raise MisuseError(f"of places {index} to {index + count - 1} not all have access")

    def _growth(self, index: int, after: Sequence[_Mapped | None]) -> int:
        """Mappings gained (negative: lost) when the places from ``index`` become ``after``."""
        end = index + len(after)
        left = self._places[max(0, index - 1) : index]
        right = self._places[end : end + 1]
        before = self._places[index:end]
        return _seams([*left, *after, *right]) - _seams([*left, *before, *right])

    def _replace(self, index: int, after: Sequence[_Mapped | None], growth: int) -> None:
        self._places[index : index + len(after)] = after
        self.mappings += growth


def _seams(places: Sequence[_Mapped | None]) -> int:
    """Neighbours that the kernel does not join into one mapping."""
    seams = 0
    for left, right in pairwise(places):
        if left is None or right is None:
            seams += left is not right
        else:
            seams += right.page != left.page + 1 or left.access != right.access
    return seams


def _is_page_size(page_bytes: int) -> bool:
    return page_bytes >= libc.OS_PAGE_BYTES and page_bytes & (page_bytes - 1) == 0
