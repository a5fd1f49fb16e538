"""The granule of a model's KV pool, with the layer outermost as vLLM's CPU backend lays it out."""

from __future__ import annotations

from mirage_core.errors import ConfigError
from mirage_core.kv.geometry import blocks_of_a_granule
from mirage_core.simulator.config import EngineSpec


def granule_of(spec: EngineSpec, page_bytes: int) -> tuple[int, int]:
    """Pages and blocks of a granule: the least blocks that cover whole pages in every layer."""
    layer_block_bytes, rest = divmod(spec.block_bytes, spec.kv_layers)
    if layer_block_bytes < 1 or rest:
        raise ConfigError(
            f"{spec.model}: block_bytes is {spec.block_bytes}, must be a multiple of"
            f" kv_layers ({spec.kv_layers})"
        )
    blocks = blocks_of_a_granule(layer_block_bytes, page_bytes)
    return spec.kv_layers * blocks * layer_block_bytes // page_bytes, blocks
