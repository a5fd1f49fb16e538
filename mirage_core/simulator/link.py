"""Host links: two directions apart, shared by the devices of one domain.

A domain (two GB200 GPUs on one Grace; the MIG slices of a GPU) has a rate for all its devices
together, and each device its own.  Streams that go on for many steps (a remap plan's fetches)
share fairly: the domain's rate over the streaming devices, a device's share over its streams.
"""

from __future__ import annotations

from enum import Enum

from mirage_core.simulator.config import LinkSpec


class Direction(Enum):
    TO_DEVICE = "h2d"
    TO_HOST = "d2h"


class LinkDomain:
    """The streams of one domain; rates change only when a stream opens or closes."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self._streams: dict[Direction, dict[tuple[str, str], None]] = {d: {} for d in Direction}

    def open_stream(self, device: str, stream: str, direction: Direction) -> None:
        """Begin (or go on) to stream; idempotent."""
        self._streams[direction][device, stream] = None

    def close_stream(self, device: str, stream: str, direction: Direction) -> None:
        """Stop; idempotent."""
        self._streams[direction].pop((device, stream), None)

    def rate_bytes_per_s(self, device: str, direction: Direction) -> float:
        """What one stream of ``device`` gets with the streams there are (one, if it has none)."""
        spec = self.spec
        domain, own = (
            (spec.h2d_bytes_per_s, spec.device_h2d_bytes_per_s)
            if direction is Direction.TO_DEVICE
            else (spec.d2h_bytes_per_s, spec.device_d2h_bytes_per_s)
        )
        streams = self._streams[direction]
        devices = {d for d, _ in streams} | {device}
        mine = max(1, sum(d == device for d, _ in streams))
        return min(own, domain / len(devices)) / mine
