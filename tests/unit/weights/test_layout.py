"""Layout of weights in units and pages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_core.errors import ConfigError
from mirage_core.weights.layout import TENSOR_ALIGNMENT_BYTES, Tensor, WeightLayout, lay_out

PAGE_BYTES = 4096


def tensor(name: str, size_bytes: int) -> Tensor:
    return Tensor(name, "float32", (size_bytes // 4,), size_bytes)


def example(page_bytes: int = PAGE_BYTES) -> WeightLayout:
    return lay_out(
        page_bytes,
        [
            ("0.attention", [tensor("0.qkv", 4000), tensor("0.o", 100)]),
            ("0.mlp", [tensor("0.up", 8192)]),
        ],
        [tensor("embedding", 5000)],
    )


def test_tensors_are_aligned_and_units_are_whole_pages() -> None:
    layout = example()
    attention = layout.parts[0]
    assert attention.offsets_bytes == (0, 4032)
    assert attention.offset_bytes("0.o") == 4032
    assert (attention.size_bytes, attention.pages) == (4132, 2)
    assert layout.unit_pages == (2, 2)
    assert layout.first_places == (0, 2)
    assert layout.static.pages == 2
    assert [unit.name for unit in layout.units] == ["0.attention", "0.mlp"]


def test_host_copy_packs_units_by_bytes() -> None:
    layout = example()
    assert layout.host_offsets_bytes == (0, 4160)
    assert layout.host_size_bytes == 4160 + 8192


def test_digest_names_the_tensors_and_not_the_page_size() -> None:
    assert example().digest == example(page_bytes=8192).digest
    renamed = lay_out(PAGE_BYTES, [("0", [tensor("a", 64)])], [])
    reshaped = lay_out(PAGE_BYTES, [("0", [Tensor("a", "float32", (4, 4), 64)])], [])
    assert len({example().digest, renamed.digest, reshaped.digest}) == 3


def test_unknown_tensor_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        example().parts[0].offset_bytes("0.up")


@pytest.mark.parametrize(
    ("units", "static"),
    [
        ([], []),
        ([("0", [])], []),
        ([("0", [tensor("a", 0)])], []),
        ([("0", [tensor("a", 4)]), ("0", [tensor("b", 4)])], []),
        ([("0", [tensor("a", 4), tensor("a", 4)])], []),
        ([("0", [tensor("a", 4)])], [tensor("a", 4)]),
    ],
)
def test_model_that_has_no_layout_is_refused(
    units: list[tuple[str, list[Tensor]]], static: list[Tensor]
) -> None:
    with pytest.raises(ConfigError):
        lay_out(PAGE_BYTES, units, static)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9000), min_size=1, max_size=4), min_size=1, max_size=5))
def test_no_two_tensors_overlap(sizes: list[list[int]]) -> None:
    layout = lay_out(
        PAGE_BYTES,
        [
            (f"{u}", [tensor(f"{u}.{t}", size) for t, size in enumerate(of_unit)])
            for u, of_unit in enumerate(sizes)
        ],
        [],
    )
    for part in layout.parts:
        end = 0
        for placed, offset in zip(part.tensors, part.offsets_bytes, strict=True):
            assert offset % TENSOR_ALIGNMENT_BYTES == 0
            assert offset >= end
            end = offset + placed.size_bytes
        assert end == part.size_bytes
        assert (part.pages - 1) * PAGE_BYTES < end <= part.pages * PAGE_BYTES
