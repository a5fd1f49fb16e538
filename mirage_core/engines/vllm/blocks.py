"""vLLM's block pool made elastic: only mapped blocks are handed out, the fullest granule first.

``GranuleBlockQueue`` takes the place of ``BlockPool.free_block_queue``.  It keeps vLLM's order of
eviction (blocks without a prefix-cache hash first, then cached ones, least recently used first)
and adds two things: among blocks without a hash it prefers those of the fullest granules, so that
the others empty; and a block of a draining granule that is freed is set aside, never handed out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from mirage_core.kv.geometry import PoolGeometry
from mirage_core.model import BlockId, GranuleId

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class GranuleBlockQueue:
    """Free blocks of the mapped granules; the interface of vLLM's FreeKVCacheBlockQueue."""

    def __init__(self, pool: BlockPool, geometry: PoolGeometry) -> None:
        self._pool = pool
        self._geometry = geometry
        self._cached = FreeKVCacheBlockQueue([])
        """Free blocks with a hash, in vLLM's order of eviction."""
        self._plain: dict[GranuleId, dict[int, KVCacheBlock]] = {}
        """Free blocks without a hash of each mapped granule; the last one in goes out first."""
        self._fullest: list[tuple[int, GranuleId]] = []
        """Heap of (free blocks, granule); entries that no longer hold are skipped."""
        self._live: dict[GranuleId, int] = {}
        """Blocks in use of each mapped or draining granule."""
        self._draining: set[GranuleId] = set()
        self.num_free_blocks = 0

    # ---- granules

    def add(self, granule: GranuleId) -> None:
        """Put the blocks of a granule that was just mapped into the pool."""
        blocks = [self._pool.blocks[b] for b in self._geometry.blocks_of(granule)]
        usable = {b.block_id: b for b in blocks if not b.is_null}
        self._plain[granule] = usable
        self._live[granule] = 0
        self.num_free_blocks += len(usable)
        self._pool.num_gpu_blocks += len(blocks)
        self._note(granule)

    def drain(self, granule: GranuleId) -> None:
        """Hand out no block of ``granule`` from now on, and forget what it caches."""
        self._draining.add(granule)
        self.forget_hashes(granule)
        free = self._plain.pop(granule)
        self.num_free_blocks -= len(free)
        self._pool.num_gpu_blocks -= len(free)

    def forget_hashes(self, granule: GranuleId) -> None:
        """No request may start to share a block of ``granule``, live ones included."""
        hashed = set()
        for index in self._geometry.blocks_of(granule):
            block = self._pool.blocks[index]
            if block.prev_free_block is not None:
                # In line to be evicted: perhaps without a hash by now (a cache reset takes it).
                self._cached.remove(block)
                self._plain[granule][block.block_id] = block
            if block.block_hash is not None:
                hashed.add(block.block_id)
        if hashed:
            self._pool.evict_blocks(hashed)

    def remove_granule(self, granule: GranuleId) -> None:
        """A drained granule is being unmapped; it has no live block."""
        assert self._live[granule] == 0, f"granule {granule} has live blocks"
        self._draining.remove(granule)
        del self._live[granule]

    def live(self, granule: GranuleId) -> int:
        return self._live[granule]

    def granules_without_live_blocks(self) -> list[GranuleId]:
        """Mapped, not draining, nothing in use; those that cache least come first."""
        idle = [g for g, n in self._live.items() if n == 0 and g not in self._draining]
        return sorted(idle, key=lambda g: (-len(self._plain[g]), -g))

    def draining(self) -> list[GranuleId]:
        return sorted(self._draining)

    def emptiest(self) -> list[GranuleId]:
        """Mapped, not draining, fewest live blocks first; never the granule of block 0."""
        mapped = [g for g in self._live if g not in self._draining and g != 0]
        return sorted(mapped, key=lambda g: (self._live[g], -g))

    def check(self) -> None:
        """DESIGN §8.2: no block outside the mapped part is free or in use; counts agree."""
        free = self.get_all_free_blocks()
        ids = [b.block_id for b in free]
        assert len(ids) == len(set(ids)) == self.num_free_blocks, "a block is free twice"
        for block in free:
            granule = self._geometry.granule_of(BlockId(block.block_id))
            assert granule in self._live, f"free block {block.block_id} is not mapped"
            assert granule not in self._draining, f"free block {block.block_id} drains"
            assert block.ref_cnt == 0, f"free block {block.block_id} is in use"
        live: dict[GranuleId, int] = {}
        for block in self._pool.blocks:
            if block.ref_cnt > 0 and not block.is_null:
                granule = self._geometry.granule_of(BlockId(block.block_id))
                assert granule in self._live, f"block {block.block_id} in use is not mapped"
                live[granule] = live.get(granule, 0) + 1
        counted = {g: n for g, n in self._live.items() if n}
        assert live == counted, f"live blocks {live} are counted as {counted}"
        assert self._pool.num_gpu_blocks == len(free) + sum(live.values()) + 1

    # ---- the interface of FreeKVCacheBlockQueue

    def popleft(self) -> KVCacheBlock:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        if n > self.num_free_blocks:
            raise ValueError(f"{n} blocks wanted, {self.num_free_blocks} free")
        taken: list[KVCacheBlock] = []
        while len(taken) < n and (granule := self._fullest_granule()) is not None:
            free = self._plain[granule]
            count = min(n - len(taken), len(free))
            taken.extend(free.popitem()[1] for _ in range(count))
            self._live[granule] += count
            self._note(granule)
        rest = self._cached.popleft_n(n - len(taken))
        for block in rest:
            self._live[self._granule(block)] += 1
        self.num_free_blocks -= n
        return taken + rest

    def remove(self, block: KVCacheBlock) -> None:
        """A cached free block is used again (a prefix hit)."""
        granule = self._granule(block)
        if block.prev_free_block is not None:
            self._cached.remove(block)
        else:
            del self._plain[granule][block.block_id]
            self._note(granule)
        self._live[granule] += 1
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Freed blocks that keep their hash: evicted last."""
        self._cached.append_n(self._returned(blocks))

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Freed blocks without a hash: reused first."""
        for block in self._returned(blocks):
            granule = self._granule(block)
            self._plain[granule][block.block_id] = block
            self._note(granule)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        plain = [b for free in self._plain.values() for b in free.values()]
        return plain + self._cached.get_all_free_blocks()

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[Any]:
        return self._cached.iter_blocks_after(cursor)

    # ---- inside

    def _granule(self, block: KVCacheBlock) -> GranuleId:
        return self._geometry.granule_of(BlockId(block.block_id))

    def _returned(self, blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
        """Count freed blocks out of use; set those of draining granules aside."""
        kept: list[KVCacheBlock] = []
        for block in blocks:
            granule = self._granule(block)
            self._live[granule] -= 1
            if granule not in self._draining:
                kept.append(block)
                continue
            self._pool.num_gpu_blocks -= 1
            if block.block_hash is not None:
                self._pool.evict_blocks({block.block_id})
        self.num_free_blocks += len(kept)
        return kept

    def _note(self, granule: GranuleId) -> None:
        free = len(self._plain[granule])
        if free:
            heapq.heappush(self._fullest, (free, granule))

    def _fullest_granule(self) -> GranuleId | None:
        while self._fullest:
            free, granule = self._fullest[0]
            if len(self._plain.get(granule, ())) == free:
                return granule
            heapq.heappop(self._fullest)
        return None


def make_elastic(pool: BlockPool, geometry: PoolGeometry, mapped: int) -> GranuleBlockQueue:
    """Give ``pool``, which counts every virtual block as free, only its first granules."""
    assert pool.get_num_free_blocks() == len(pool.blocks) - 1, "the pool is in use already"
    for block in pool.free_block_queue.get_all_free_blocks():
        pool.free_block_queue.remove(block)
    queue = GranuleBlockQueue(pool, geometry)
    pool.num_gpu_blocks = 0
    pool.free_block_queue = queue
    for granule in range(mapped):
        queue.add(GranuleId(granule))
    return queue
