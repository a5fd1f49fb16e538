"""vLLM's own BlockPool over the granule queue: only mapped blocks, fullest granules first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("vllm")

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

from mirage_core.engines.vllm.blocks import GranuleBlockQueue, make_elastic
from mirage_core.kv.geometry import PoolGeometry
from mirage_core.model import GranuleId

GRANULES = 6
GRANULE_BLOCKS = 4


def elastic_pool(mapped: int, caching: bool = True) -> tuple[BlockPool, GranuleBlockQueue]:
    geometry = PoolGeometry.compact(
        layers=2, block_bytes=1 << 10, page_bytes=1 << 12, blocks=GRANULES * GRANULE_BLOCKS
    )
    assert geometry.granule_blocks == GRANULE_BLOCKS
    pool = BlockPool(geometry.blocks, caching, hash_block_size=16)
    return pool, make_elastic(pool, geometry, mapped)


def granules_of(blocks: list) -> set[int]:
    return {b.block_id // GRANULE_BLOCKS for b in blocks}


def test_unmapped_blocks_are_never_handed_out() -> None:
    pool, queue = elastic_pool(mapped=2)
    assert pool.get_num_free_blocks() == 7  # less vLLM's null block
    assert granules_of(pool.get_new_blocks(7)) == {0, 1}
    with pytest.raises(ValueError, match="Cannot get 1"):
        pool.get_new_blocks(1)
    queue.check()


def test_new_blocks_come_from_the_fullest_granule() -> None:
    pool, queue = elastic_pool(mapped=3)
    held = pool.get_new_blocks(11)
    pool.free_blocks([b for b in held if b.block_id in (4, 5, 6, 8)])
    assert granules_of(pool.get_new_blocks(1)) == {2}
    assert granules_of(pool.get_new_blocks(3)) == {1}
    queue.check()


def test_freed_block_of_a_draining_granule_is_set_aside() -> None:
    pool, queue = elastic_pool(mapped=2)
    held = pool.get_new_blocks(7)
    queue.drain(GranuleId(1))
    pool.free_blocks(held)
    assert pool.get_num_free_blocks() == 3
    assert queue.live(GranuleId(1)) == 0
    assert pool.get_usage() == 0.0
    queue.check()


def test_draining_granule_keeps_no_prefix_that_a_request_could_share() -> None:
    pool, queue = elastic_pool(mapped=2)
    blocks = pool.get_new_blocks(7)
    keys = []
    for block in blocks:
        key = make_block_hash_with_group_id(BlockHash(bytes([block.block_id])), 0)
        pool._insert_block_hash(key, block, num_tokens=16)
        keys.append(key)
    pool.free_blocks(blocks[:4])
    queue.drain(GranuleId(1))
    shared = {b.block_id for k in keys if (b := pool.cached_block_hash_to_block.get_one_block(k))}
    assert granules_of([pool.blocks[b] for b in shared]) == {0}
    queue.check()


def test_prefix_cache_reset_succeeds_while_a_granule_drains() -> None:
    pool, queue = elastic_pool(mapped=2)
    held = pool.get_new_blocks(7)
    queue.drain(GranuleId(1))
    assert not pool.reset_prefix_cache()
    pool.free_blocks(held)
    assert pool.reset_prefix_cache()


class AnyUse(RuleBasedStateMachine):
    """Requests allocate, cache, share and free; granules come, drain, stay and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.queue = elastic_pool(mapped=2)
        self.mapped = {0, 1}
        self.held: list = []
        self.hash = 0

    @rule(count=st.integers(1, 6))
    def allocate(self, count: int) -> None:
        count = min(count, self.pool.get_num_free_blocks())
        self.held += self.pool.get_new_blocks(count)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.held)))
        self.pool.free_blocks(self.held[:count])
        del self.held[:count]

    @precondition(lambda self: any(b.block_hash is None for b in self.held))
    @rule()
    def fill(self) -> None:
        block = next(b for b in self.held if b.block_hash is None)
        self.hash += 1
        key = make_block_hash_with_group_id(BlockHash(self.hash.to_bytes(8, "big")), 0)
        self.pool._insert_block_hash(key, block, num_tokens=16)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        cached = [b for b in self.pool.blocks if b.block_hash is not None]
        if cached:
            block = data.draw(st.sampled_from(cached))
            self.pool.touch([block])
            self.held.append(block)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset_prefix_cache() == (not self.held)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.pool.evict_blocks({data.draw(st.integers(0, GRANULES * GRANULE_BLOCKS - 1))})

    @precondition(lambda self: len(self.mapped) < GRANULES)
    @rule()
    def map(self) -> None:
        granule = min(set(range(GRANULES)) - self.mapped)
        self.queue.add(GranuleId(granule))
        self.mapped.add(granule)

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        candidates = self.queue.emptiest()
        if candidates:
            self.queue.drain(data.draw(st.sampled_from(candidates)))

    @rule()
    def unmap(self) -> None:
        for granule in self.queue.draining():
            self.queue.forget_hashes(granule)
            if self.queue.live(granule) == 0:
                self.queue.remove_granule(granule)
                self.mapped.discard(int(granule))

    @invariant()
    def books_agree(self) -> None:
        self.queue.check()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
