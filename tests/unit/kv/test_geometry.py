"""Blocks, granules, pages and places of a KV pool."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import ConfigError, MisuseError
from mirage_core.kv.geometry import Places, PoolGeometry, round_up_blocks
from mirage_core.model import BlockId, GranuleId


def test_block_smaller_than_a_page() -> None:
    pool = PoolGeometry.compact(layers=4, block_bytes=64 << 10, page_bytes=256 << 10, blocks=9)
    assert (pool.granule_blocks, pool.granule_layer_pages, pool.granule_pages) == (4, 1, 4)
    assert (pool.blocks, pool.granules, pool.places) == (12, 3, 12)
    assert pool.places_of(GranuleId(1)) == (
        Places(1, 1),
        Places(4, 1),
        Places(7, 1),
        Places(10, 1),
    )


def test_block_larger_than_a_page() -> None:
    pool = PoolGeometry.compact(layers=2, block_bytes=512 << 10, page_bytes=256 << 10, blocks=3)
    assert (pool.granule_blocks, pool.granule_layer_pages, pool.granule_pages) == (1, 2, 4)
    assert pool.places_of(GranuleId(2)) == (Places(4, 2), Places(10, 2))


def test_block_that_is_no_part_of_a_page_makes_the_drawn_granule() -> None:
    pool = PoolGeometry.compact(layers=2, block_bytes=3072, page_bytes=4096, blocks=8)
    assert (pool.granule_blocks, pool.granule_layer_pages) == (4, 3)
    assert pool.places_of(GranuleId(0)) == (Places(0, 3), Places(6, 3))
    assert list(pool.blocks_of(GranuleId(1))) == [4, 5, 6, 7]


def test_layers_may_lie_further_apart_than_their_blocks() -> None:
    pool = PoolGeometry(2, 4096, 3 * 4096, 4096, 2)
    assert pool.places_of(GranuleId(1)) == (Places(1, 1), Places(4, 1))
    with pytest.raises(MisuseError):
        pool.granule_at(2)


def test_neighbouring_granules_join_within_and_across_layers() -> None:
    pool = PoolGeometry.compact(layers=2, block_bytes=4096, page_bytes=4096, blocks=4)
    assert pool.places_of_all([GranuleId(1), GranuleId(0)]) == (Places(0, 2), Places(4, 2))
    everything = [GranuleId(granule) for granule in range(4)]
    assert pool.places_of_all(everything) == (Places(0, 8),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4096, 4096, 4096, 1), "positive"),
        ((1, 4096, 8192, 8192, 1), "make it 2"),
        ((1, 4096, 4097, 4096, 1), "no whole number of pages"),
        ((1, 4096, 4096, 4096, 2), "less than 2 blocks"),
    ],
)
def test_sizes_that_make_no_pool_are_refused(
    arguments: tuple[int, int, int, int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PoolGeometry(*arguments)


def test_what_lies_outside_the_pool_is_misuse() -> None:
    pool = PoolGeometry.compact(layers=2, block_bytes=4096, page_bytes=4096, blocks=4)
    for ask in (
        lambda: pool.granule_of(BlockId(4)),
        lambda: pool.granule_of(BlockId(-1)),
        lambda: pool.places_of(GranuleId(4)),
        lambda: pool.blocks_of(GranuleId(-1)),
        lambda: pool.granule_at(8),
    ):
        with pytest.raises(MisuseError):
            ask()


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 5),
    block_bytes=st.integers(1, 200).map(lambda count: count * 96),
    blocks=st.integers(1, 60),
    gap_pages=st.integers(0, 3),
)
def test_granules_cover_their_blocks_and_no_others(
    layers: int, block_bytes: int, blocks: int, gap_pages: int
) -> None:
    page_bytes = 4096
    blocks = round_up_blocks(blocks, block_bytes, page_bytes)
    stride = blocks * block_bytes + gap_pages * page_bytes
    pool = PoolGeometry(layers, block_bytes, stride, page_bytes, blocks)
    covered: set[int] = set()
    for number in range(pool.granules):
        granule = GranuleId(number)
        places = {
            p for run in pool.places_of(granule) for p in range(run.index, run.index + run.count)
        }
        assert len(places) == pool.granule_pages
        assert not places & covered
        covered |= places
        assert all(pool.granule_at(place) == granule for place in places)
        for block in pool.blocks_of(granule):
            assert pool.granule_of(BlockId(block)) == granule
            for layer in range(layers):
                first = layer * stride + block * block_bytes
                touched = range(first // page_bytes, (first + block_bytes - 1) // page_bytes + 1)
                assert places.issuperset(touched)
    assert len(covered) == pool.granules * pool.granule_pages
    everything = [GranuleId(granule) for granule in range(pool.granules)]
    joined = pool.places_of_all(everything)
    assert sum(run.count for run in joined) == len(covered)
    assert len(joined) == (layers if gap_pages else 1)
