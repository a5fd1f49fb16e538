"""The device protocols, extended by what whoever owns a page's bytes may do with them.

``AddressRange`` (ports) is enough to move pages.  Pools and weight stores also zero, poison and
look into the pages that they own, which needs the bytes themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

from mirage_core.model import DeviceGeometry, PageId
from mirage_core.ports import AddressRange

POISON_BYTE = 0xFF
"""All-ones is NaN in every float format in use: a poisoned page that is read shows at once."""


class RawRange(AddressRange, Protocol):
    """A range whose mapped and accessible places can be written and read by the caller.

    ``zero``, ``fill`` and ``is_zero`` raise MisuseError if one of the places has no access.
    """

    def zero(self, index: int, count: int) -> None: ...

    def fill(self, index: int, count: int, byte: int) -> None: ...

    def is_zero(self, index: int, count: int) -> bool:
        """Whether every byte of the places is zero."""
        ...

    def buffer(self, offset_bytes: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
        """A view of the addresses from ``offset_bytes`` (not a copy), for torch.frombuffer.

        The places need not be mapped yet, because addresses never change; whoever touches the
        view while they are not accessible dies of SIGSEGV.
        """
        ...


class RawDevice(Protocol):
    """A ``Device`` whose ranges are raw."""

    @property
    def geometry(self) -> DeviceGeometry: ...

    def reserve(self, pages: int) -> RawRange: ...

    def close(self) -> None: ...


class _Unshared:
    """Fence of pages that only the caller maps: it has just done all the work on them."""

    def passed(self) -> bool:
        return True


UNSHARED = _Unshared()


def poison(device: RawDevice, pages: Sequence[PageId]) -> None:
    """Fill pages that nobody reads with POISON_BYTE, through a range of its own (debug mode)."""
    if not pages:
        return
    scratch = device.reserve(len(pages))
    try:
        scratch.map(0, pages)
        try:
            scratch.set_access(0, len(pages))
            scratch.fill(0, len(pages), POISON_BYTE)
        finally:
            scratch.unmap(0, len(pages), UNSHARED)
    finally:
        scratch.close()
