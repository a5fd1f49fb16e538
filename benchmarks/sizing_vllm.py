"""Sizes as vLLM 0.29.0 has them: its model classes on the meta device, their own KV cache specs.

No weights and no engine: a model is built as one rank of a group whose other ranks do not exist,
which is enough for shapes.  Everything below is about coaxing that out of vLLM in one process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_PLUGINS"] = ""  # stock models: MIRAGE's plug-in stays out
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    init_distributed_environment,
    initialize_model_parallel,
    parallel_state,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import bloom
from vllm.model_executor.models.registry import ModelRegistry
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from benchmarks.sizing import LayerCache, Sizes, Variant
from mirage_core.sizing.caches import CacheKind

KINDS: dict[type[KVCacheSpec], CacheKind] = {
    FullAttentionSpec: CacheKind.FULL,
    MLAAttentionSpec: CacheKind.MLA,
    SlidingWindowSpec: CacheKind.SLIDING,
    ChunkedLocalAttentionSpec: CacheKind.CHUNKED,
    CrossAttentionSpec: CacheKind.CROSS,
    MambaSpec: CacheKind.STATE,
}
LENGTH = 2048
"""Tokens of the longest request: a config's own would make vLLM check what the machine holds."""


def vllm_sizes(config: Mapping[str, Any], variant: Variant) -> Sizes:
    """Sizes of one rank of the model of a Hugging Face ``config``."""
    _one_process()
    _known_here(config["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        vllm_config = _vllm_config(folder, config, variant)
        with set_current_vllm_config(vllm_config), _rank_of(variant.ranks, vllm_config):
            return _sizes(vllm_config)


def _sizes(vllm_config: VllmConfig) -> Sizes:
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(vllm_config.model_config.dtype)
    try:
        with torch.device("meta"):
            parameters = list(initialize_model(vllm_config).parameters())
    finally:
        torch.set_default_dtype(dtype)
    modules = vllm_config.compilation_config.static_forward_context
    specs = {
        name: module.get_kv_cache_spec(vllm_config)
        for name, module in modules.items()
        if isinstance(module, AttentionLayerBase)
    }
    layers = vllm_config.model_config.hf_text_config.num_hidden_layers
    return Sizes(
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        sorted(_cache(name, spec, layers) for name, spec in specs.items() if spec is not None),
    )


def _cache(name: str, spec: KVCacheSpec, layers: int) -> LayerCache:
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return LayerCache(
        extract_layer_index(name) % layers,  # Falcon-H1 numbers its mixers on from the last layer
        KINDS[type(spec)].value,
        spec.block_size,
        spec.page_size_bytes,
        window or 0,
    )


def _vllm_config(folder: str, config: Mapping[str, Any], variant: Variant) -> VllmConfig:
    vllm_config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=config["dtype"],
        max_model_len=config.get("max_target_positions", LENGTH),
    ).create_engine_config()
    if variant.kv_dtype is not None:
        # Set afterwards: the CPU backend has no kernel for it, and refuses it when asked.
        vllm_config.cache_config.cache_dtype = variant.kv_dtype.value
    return vllm_config


@cache
def _one_process() -> None:
    """The groups of a single process; experts' too, which only a config without a model gets."""
    rendezvous = Path(tempfile.mkdtemp()) / "rendezvous"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{rendezvous}", 0, "gloo")
        initialize_model_parallel(1, 1)
    slopes = bloom._get_alibi_slopes

    def slopes_on_cpu(heads: int) -> torch.Tensor:
        """They are turned into a list, which a meta tensor cannot be."""
        with torch.device("cpu"):
            return slopes(heads)

    bloom._get_alibi_slopes = slopes_on_cpu


@cache
def _known_here(architecture: str) -> None:
    """Register the class itself: by its name, vLLM would look at it in a process of its own."""
    entry = ModelRegistry.models[architecture]
    ModelRegistry.register_model(architecture, entry.load_model_cls())


@contextmanager
def _rank_of(ranks: int, vllm_config: VllmConfig) -> Iterator[None]:
    """The first of ``ranks``, as far as layers ask when they are built."""
    group = parallel_state.get_tp_group()
    before = group.world_size
    group.world_size = ranks
    vllm_config.parallel_config.tensor_parallel_size = ranks
    try:
        yield
    finally:
        group.world_size = before
