"""The grain follows from what a layer takes to compute and to fetch (§5.3)."""

from __future__ import annotations

import pytest

from mirage_core.engines.vllm.architectures import layer_shape
from mirage_core.engines.vllm.grain import PICK_UP_S, LinearTimes, grain_of
from mirage_core.model import UnitGrain

SHAPE = layer_shape("LlamaForCausalLM")
NAMES = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
PAGE_BYTES = 64 << 10


def linears(size_bytes: int, compute_s: float, transfer_s: float) -> dict[str, LinearTimes]:
    """Four equal linears."""
    return dict.fromkeys(NAMES, LinearTimes(size_bytes, compute_s, transfer_s))


@pytest.mark.parametrize("r", [0.2, 2.0, 4.6])
def test_single_linears_move_where_slots_of_layers_waste_too_much(r: float) -> None:
    found = grain_of(linears(8 << 20, 10e-3, r * 10e-3), SHAPE, layers=40, page_bytes=PAGE_BYTES)
    assert found is UnitGrain.LINEAR


def test_nothing_is_split_where_no_transfer_can_hide() -> None:
    found = grain_of(linears(8 << 20, 1e-6, 1.0), SHAPE, layers=16, page_bytes=PAGE_BYTES)
    assert found is UnitGrain.LAYER


def test_linears_smaller_than_a_page_move_together() -> None:
    """Alone each would own a whole page."""
    found = grain_of(linears(4 << 10, 1e-3, 1e-4), SHAPE, layers=16, page_bytes=PAGE_BYTES)
    assert found is UnitGrain.LAYER


def test_a_fetch_has_its_fixed_cost() -> None:
    """Where bytes are nearly free, many small fetches are not."""
    slow_pick_up = linears(1 << 20, PICK_UP_S / 8, 1e-9)
    found = grain_of(slow_pick_up, SHAPE, layers=32, page_bytes=PAGE_BYTES)
    assert found is UnitGrain.LAYER
