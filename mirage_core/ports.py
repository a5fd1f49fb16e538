"""Protocols between MIRAGE's parts and the world: implemented by mechanisms, used by loops.

A *device* owns physical pages; a *range* is a span of reserved virtual addresses of one process
into which pages are mapped.  The contract is that of CUDA's virtual memory management, so that
code proven on the host device is right on a GPU:

- sizes and offsets are whole pages (granularity);
- a mapped page may not be touched before ``set_access`` (cuMemSetAccess);
- several ranges, or several places of one range, may map one page (aliasing);
- unmapping needs a fence: the caller states that no work in flight touches the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mirage_core.model import DeviceGeometry, PageId


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back; its zero means nothing."""
        ...


class Fence(Protocol):
    """Proof that no work in flight touches a span that is about to be unmapped."""

    def passed(self) -> bool: ...


class AddressRange(Protocol):
    """Reserved virtual addresses of ``pages`` pages, unmapped at first."""

    @property
    def base(self) -> int:
        """First address, aligned to the page size; constant for the range's life."""
        ...

    @property
    def pages(self) -> int: ...

    def map(self, index: int, pages: Sequence[PageId]) -> None:
        """Map ``pages`` at places ``index, index+1, ...``.

        Raises MisuseError if a place is out of the range or already mapped, DeviceError if the
        kernel refuses; on any error nothing is mapped.
        """
        ...

    def set_access(self, index: int, count: int) -> None:
        """Allow reads and writes of ``count`` mapped places from ``index``."""
        ...

    def unmap(self, index: int, count: int, fence: Fence) -> tuple[PageId, ...]:
        """Unmap and return the pages of ``count`` places from ``index``.

        Raises MisuseError if a place is not mapped or the fence has not passed.
        """
        ...

    def mapped(self, index: int) -> PageId | None: ...

    def close(self) -> None:
        """Give the addresses back; MisuseError while a place is mapped."""
        ...


class Device(Protocol):
    """One device as one process sees it; it maps pages but does not say who owns them."""

    @property
    def geometry(self) -> DeviceGeometry: ...

    def reserve(self, pages: int) -> AddressRange: ...

    def close(self) -> None: ...
