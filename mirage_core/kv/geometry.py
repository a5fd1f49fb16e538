"""Geometry of an elastic KV pool: blocks, granules, pages and places.

The pool is one range with the layer outermost (vLLM's layout LBHNC): the bytes of layer ``l`` and
block ``b`` start at ``l * layer_stride_bytes + b * block_bytes``.  A granule is the least number
of whole blocks that covers whole pages in every layer, so that it can be mapped and unmapped
without touching another.  With blocks of 3/4 of a page, four of them cover three pages:

    place         0        1        2    |   3        4        5    | ...
    layer 0   |--------|--------|--------|--------|--------|--------|-- .. --|
    blocks     0     1     2     3        4     5     6     7
              '------- granule 0 -------''------- granule 1 -------'
    layer 1   |--------|--------|--------| ...
               (place layer_stride_bytes / page_bytes, the same blocks again)

    granule_blocks      = page_bytes / gcd(block_bytes, page_bytes)
    granule_layer_pages = granule_blocks * block_bytes / page_bytes
    granule_pages       = layers * granule_layer_pages

A range reserves places for all blocks that the pool could ever have; a granule takes pages only
while it is mapped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mirage_core.errors import ConfigError, MisuseError
from mirage_core.model import BlockId, GranuleId


@dataclass(frozen=True, slots=True)
class Places:
    """``count`` consecutive places of the pool's range from ``index``."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class PoolGeometry:
    """Sizes of one pool; ConfigError if they do not make whole granules.

    ``block_bytes`` is the stride of a block in one layer, ``blocks`` the most that the pool can
    have (block 0 included), ``layer_stride_bytes`` the distance from layer to layer.
    """

    layers: int
    block_bytes: int
    layer_stride_bytes: int
    page_bytes: int
    blocks: int

    def __post_init__(self) -> None:
        for name in ("layers", "block_bytes", "page_bytes", "blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a KV pool must be positive, got {self!r}")
        if self.blocks % self.granule_blocks:
            raise ConfigError(
                f"{self.blocks} blocks are no whole number of granules of {self.granule_blocks} "
                f"blocks: make it {round_up_blocks(self.blocks, self.block_bytes, self.page_bytes)}"
            )
        if self.layer_stride_bytes % self.page_bytes:
            raise ConfigError(
                f"the layer stride of {self.layer_stride_bytes} bytes is no whole number of pages "
                f"of {self.page_bytes} bytes"
            )
        if self.layer_stride_bytes < self.blocks * self.block_bytes:
            raise ConfigError(
                f"the layer stride of {self.layer_stride_bytes} bytes is less than {self.blocks} "
                f"blocks of {self.block_bytes} bytes"
            )

    @classmethod
    def compact(
        cls, *, layers: int, block_bytes: int, page_bytes: int, blocks: int
    ) -> PoolGeometry:
        """The pool of at least ``blocks`` blocks whose layers follow one another at once."""
        if min(layers, block_bytes, page_bytes, blocks) < 1:
            raise ConfigError("layers, block_bytes, page_bytes and blocks must be positive")
        rounded = round_up_blocks(blocks, block_bytes, page_bytes)
        return cls(layers, block_bytes, rounded * block_bytes, page_bytes, rounded)

    @property
    def granule_blocks(self) -> int:
        return blocks_of_a_granule(self.block_bytes, self.page_bytes)

    @property
    def granule_layer_pages(self) -> int:
        """Pages of a granule in one layer."""
        return self.granule_blocks * self.block_bytes // self.page_bytes

    @property
    def granule_pages(self) -> int:
        return self.layers * self.granule_layer_pages

    @property
    def granules(self) -> int:
        return self.blocks // self.granule_blocks

    @property
    def places(self) -> int:
        """Places that the pool's range needs."""
        return self.layers * self.layer_stride_bytes // self.page_bytes

    def granule_of(self, block: BlockId) -> GranuleId:
        if not 0 <= block < self.blocks:
            raise MisuseError(f"block {block} of a pool of {self.blocks}")
        return GranuleId(block // self.granule_blocks)

    def blocks_of(self, granule: GranuleId) -> range:
        """Blocks of a granule, ascending (numbers, to be read as BlockId)."""
        self._require(granule)
        first = granule * self.granule_blocks
        return range(first, first + self.granule_blocks)

    def places_of(self, granule: GranuleId) -> tuple[Places, ...]:
        """Places of a granule: one run a layer, ascending."""
        self._require(granule)
        stride = self.layer_stride_bytes // self.page_bytes
        first, count = granule * self.granule_layer_pages, self.granule_layer_pages
        return tuple(Places(layer * stride + first, count) for layer in range(self.layers))

    def places_of_all(self, granules: Iterable[GranuleId]) -> tuple[Places, ...]:
        """Places of several granules, ascending, with touching runs joined."""
        joined: list[Places] = []
        runs = (run for granule in set(granules) for run in self.places_of(granule))
        for run in sorted(runs, key=lambda run: run.index):
            if joined and joined[-1].index + joined[-1].count == run.index:
                joined[-1] = Places(joined[-1].index, joined[-1].count + run.count)
            else:
                joined.append(run)
        return tuple(joined)

    def granule_at(self, place: int) -> GranuleId:
        """The granule that covers a place; MisuseError for a place between layers."""
        inside = place % (self.layer_stride_bytes // self.page_bytes)
        granule = inside // self.granule_layer_pages
        if not 0 <= place < self.places or granule >= self.granules:
            raise MisuseError(f"no granule covers place {place} of {self!r}")
        return GranuleId(granule)

    def _require(self, granule: GranuleId) -> None:
        if not 0 <= granule < self.granules:
            raise MisuseError(f"granule {granule} of a pool of {self.granules}")


def blocks_of_a_granule(block_bytes: int, page_bytes: int) -> int:
    """The least number of blocks that cover whole pages in a layer."""
    return page_bytes // math.gcd(block_bytes, page_bytes)


def round_up_blocks(blocks: int, block_bytes: int, page_bytes: int) -> int:
    """The least number of blocks, at least ``blocks``, that makes whole granules.

    A pool of that many blocks also has whole pages a layer, so its virtual size is
    ``layers * result * block_bytes``.
    """
    granule = blocks_of_a_granule(block_bytes, page_bytes)
    return -(-blocks // granule) * granule
