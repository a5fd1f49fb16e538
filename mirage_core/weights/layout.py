"""Where the bytes of a model's weights lie: tensors in units, units in pages, the static part.

    unit 0 (qkv, o of layer 0)              unit 1 (gate_up, down of layer 0)
    |--------|--------|--------|            |--------|--------|--------|--------|
     qkv.weight  o.weight  ####              gate_up.weight    down.weight  ####
     ^ each tensor at a multiple of 64 bytes of its unit, #### unused end of the last page

A unit has its own span of places in the weights' range, at addresses that never change; which
pages lie there is the placement's business (``placement``).  In a host copy the units follow
each other by bytes, not by pages.  The digest names the layout: two engines whose layouts have
the same digest can share one host copy.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from mirage_core.errors import ConfigError
from mirage_core.model import Unit, UnitId

TENSOR_ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector of a CPU."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the device holds it (packed and quantized forms have shapes of their own)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors that lie together: a unit, or the static part."""

    name: str
    tensors: tuple[Tensor, ...]
    offsets_bytes: tuple[int, ...]
    """where each tensor starts in the part"""
    size_bytes: int
    pages: int

    def offset_bytes(self, tensor: str) -> int:
        for placed, offset in zip(self.tensors, self.offsets_bytes, strict=True):
            if placed.name == tensor:
                return offset
        raise KeyError(f"{self.name} has no tensor {tensor}")


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Units of a model in order of execution, and its static part; made by ``lay_out``."""

    page_bytes: int
    parts: tuple[Part, ...]
    """by UnitId"""
    static: Part

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(
            Unit(UnitId(index), part.name, part.size_bytes, part.pages)
            for index, part in enumerate(self.parts)
        )

    @property
    def unit_pages(self) -> tuple[int, ...]:
        """Pages of each unit, by UnitId."""
        return tuple(part.pages for part in self.parts)

    @property
    def first_places(self) -> tuple[int, ...]:
        """First place of each unit's span in the weights' range, by UnitId."""
        return tuple(accumulate(self.unit_pages, initial=0))[:-1]

    @property
    def places(self) -> int:
        """Places of all units' spans."""
        return sum(self.unit_pages)

    @property
    def host_offsets_bytes(self) -> tuple[int, ...]:
        """Where each unit starts in the units' part of a host copy, by UnitId."""
        return tuple(accumulate(map(_aligned, self._sizes_bytes()), initial=0))[:-1]

    @property
    def host_size_bytes(self) -> int:
        """Bytes of all units in a host copy."""
        return sum(map(_aligned, self._sizes_bytes()))

    @property
    def digest(self) -> str:
        """Names, dtypes, shapes and sizes of all parts; page size does not enter."""
        parts = [
            [part.name, [asdict(tensor) for tensor in part.tensors]]
            for part in (*self.parts, self.static)
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def _sizes_bytes(self) -> list[int]:
        return [part.size_bytes for part in self.parts]


def lay_out(
    page_bytes: int, units: Sequence[tuple[str, Sequence[Tensor]]], static: Sequence[Tensor]
) -> WeightLayout:
    """Lay out the named units, in order of execution, and the static part.

    Raises ConfigError if there is no unit, a unit is empty, or a name occurs twice.
    """
    if not units:
        raise ConfigError("a model needs one unit or more")
    parts = tuple(_lay_out_part(page_bytes, name, tensors) for name, tensors in units)
    empty = [part.name for part in parts if part.size_bytes == 0]
    if empty:
        raise ConfigError(f"units without bytes: {', '.join(empty)}")
    static_part = _lay_out_part(page_bytes, "static", static)
    _require_distinct([part.name for part in parts])
    _require_distinct([t.name for part in (*parts, static_part) for t in part.tensors])
    return WeightLayout(page_bytes, parts, static_part)


def _lay_out_part(page_bytes: int, name: str, tensors: Sequence[Tensor]) -> Part:
    offsets: list[int] = []
    end = 0
    for tensor in tensors:
        offsets.append(_aligned(end))
        end = offsets[-1] + tensor.size_bytes
    return Part(name, tuple(tensors), tuple(offsets), end, -(-end // page_bytes))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // TENSOR_ALIGNMENT_BYTES) * TENSOR_ALIGNMENT_BYTES


def _require_distinct(names: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigError(f"names that occur twice: {', '.join(twice)}")
