"""Model families by the name that their config carries; ``size_model`` is the way in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_core.errors import UnsupportedError
from mirage_core.sizing.architectures import dense, encoders, experts, hybrids, plain
from mirage_core.sizing.architectures.shared import Family
from mirage_core.sizing.blocks import Rank
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.model import ModelSizing
from mirage_core.sizing.weights import Dtype, parse_dtype

FAMILIES: Mapping[str, Family] = {
    "BloomForCausalLM": plain.bloom,
    "CohereForCausalLM": dense.cohere,
    "DeepseekV2ForCausalLM": experts.deepseek,
    "DeepseekV3ForCausalLM": experts.deepseek,
    "FalconForCausalLM": plain.falcon,
    "FalconH1ForCausalLM": hybrids.falcon_h1,
    "GPTBigCodeForCausalLM": plain.gpt_bigcode,
    "GPTNeoXForCausalLM": plain.gpt_neox,
    "Gemma2ForCausalLM": dense.gemma2,
    "Gemma3ForCausalLM": dense.gemma3,
    "GlmForCausalLM": dense.glm,
    "GptOssForCausalLM": experts.gpt_oss,
    "GraniteMoeHybridForCausalLM": hybrids.granite_hybrid,
    "JambaForCausalLM": hybrids.jamba,
    "Lfm2ForCausalLM": hybrids.lfm2,
    "Llama4ForCausalLM": experts.llama4,
    "LlamaForCausalLM": dense.llama,
    "Mamba2ForCausalLM": hybrids.mamba2,
    "MambaForCausalLM": hybrids.mamba,
    "MistralForCausalLM": dense.mistral,
    "MixtralForCausalLM": experts.mixtral,
    "OPTForCausalLM": plain.opt,
    "Olmo2ForCausalLM": dense.olmo2,
    "OlmoeForCausalLM": experts.olmoe,
    "Phi3ForCausalLM": dense.phi3,
    "Qwen2ForCausalLM": dense.qwen2,
    "Qwen2MoeForCausalLM": experts.qwen2_moe,
    "Qwen3ForCausalLM": dense.qwen3,
    "Qwen3MoeForCausalLM": experts.qwen3_moe,
    "Qwen3NextForCausalLM": hybrids.qwen3_next,
    "Starcoder2ForCausalLM": plain.starcoder2,
    "WhisperForConditionalGeneration": encoders.whisper,
}


def size_model(
    config: Mapping[str, Any],
    *,
    name: str,
    ranks: int = 1,
    dtype: Dtype | None = None,
    kv_dtype: Dtype | None = None,
) -> ModelSizing:
    """The model of a Hugging Face ``config`` on one of ``ranks`` tensor-parallel ranks.

    ``dtype`` is the config's unless given.  One of a single byte is that of the linears of the
    layers alone, as quantization leaves the rest as it was; their scales, some bytes a linear, are
    not counted.  ``kv_dtype`` is that of what is not quantized.  Raises ConfigError for a field
    that is missing or wrong, or ranks that do not divide the model; UnsupportedError for an
    architecture or a quantization that is not sized.
    """
    fields = Fields(config, name)
    architecture = fields.first_text("architectures")
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedError(
            f"{name}: architecture {architecture} is not sized; these are: "
            + ", ".join(sorted(FAMILIES))
        )
    if fields.has("quantization_config"):
        raise UnsupportedError(
            f"{name}: quantization_config is not sized; leave it out and give dtype"
        )
    if ranks < 1:
        raise UnsupportedError(f"{name}: {ranks} ranks; a model has one or more")
    published = parse_dtype(fields.text("dtype", "torch_dtype", default="float32"))
    linears = dtype or published
    rest = published if linears.size_bytes == 1 else linears
    rank = Rank(ranks, linears, rest, kv_dtype or rest)
    parts = family(fields, rank)
    longest = ("max_position_embeddings", "n_positions", "seq_length", "max_target_positions")
    return ModelSizing(
        name=name,
        architecture=architecture,
        ranks=ranks,
        dtype=linears,
        kv_dtype=rank.kv_dtype,
        layers=parts.layers,
        static=parts.static,
        context_tokens=fields.count(*longest) if fields.has(*longest) else None,
        encoder_tokens=parts.encoder_tokens,
    )
