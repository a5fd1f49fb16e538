"""Decoders whose MLPs are experts: Mixtral, Qwen, OLMoE, gpt-oss, Llama 4, DeepSeek."""

from __future__ import annotations

from mirage_core.sizing.architectures.shared import (
    Parts,
    attention,
    expert_layers,
    final_norm,
    hidden_size,
    layer_count,
    repeated,
    vocabulary,
    windows,
)
from mirage_core.sizing.blocks import (
    FLOAT32_BYTES,
    LatentAttention,
    Rank,
    Weights,
    experts_mlp,
    gated_mlp,
    layer,
    norms,
    of_half,
)
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.model import LayerSizing
from mirage_core.sizing.weights import Half


def mixtral(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    window = windows(fields, lambda layer: False)[0]
    heads = attention(fields, window_tokens=window)
    mlp = experts_mlp(
        rank,
        hidden,
        fields.count("intermediate_size"),
        fields.count("num_local_experts"),
        fields.count("num_experts_per_tok"),
    )
    each = layer((heads.cache(rank),), norms(rank, hidden, 2), heads.weights(rank), mlp)
    return _all(fields, rank, repeated(each, layer_count(fields)))


def olmoe(fields: Fields, rank: Rank) -> Parts:
    """Queries and keys are normed over all heads, by every rank."""
    hidden = hidden_size(fields)
    heads = attention(fields)
    mlp = experts_mlp(
        rank,
        hidden,
        fields.count("intermediate_size"),
        fields.count("num_experts"),
        fields.count("num_experts_per_tok"),
    )
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2),
        rank.fixed("qk_norms", (heads.heads + heads.kv_heads) * heads.head_dim),
        heads.weights(rank),
        mlp,
    )
    return _all(fields, rank, repeated(each, layer_count(fields)))


def qwen2_moe(fields: Fields, rank: Rank) -> Parts:
    return _qwen_moe(fields, rank, qkv_bias=fields.flag("qkv_bias", default=True), normed=False)


def qwen3_moe(fields: Fields, rank: Rank) -> Parts:
    return _qwen_moe(fields, rank, qkv_bias=False, normed=True)


def gpt_oss(fields: Fields, rank: Rank) -> Parts:
    """A learned sink a head; every other layer has a window."""
    hidden = hidden_size(fields)
    each_window = windows(fields, lambda layer: layer % 2 == 1)

    def sized(window_tokens: int | None) -> LayerSizing:
        heads = attention(fields, window_tokens=window_tokens, qkv_bias=True, o_bias=True)
        return layer(
            (heads.cache(rank),),
            norms(rank, hidden, 2),
            rank.fixed("sinks", rank.share(heads.heads, "attention heads")),
            heads.weights(rank),
            experts_mlp(
                rank,
                hidden,
                fields.count("intermediate_size"),
                fields.count("num_local_experts"),
                fields.count("num_experts_per_tok"),
                bias=True,
            ),
        )

    return _all(fields, rank, tuple(sized(window) for window in each_window))


def llama4(fields: Fields, rank: Rank) -> Parts:
    """Three of four layers attend within a chunk; some layers may be dense."""
    hidden, layers = hidden_size(fields), layer_count(fields)
    chunk = fields.count("attention_chunk_size")
    period = fields.count("no_rope_layer_interval", default=4)
    with_experts = expert_layers(layers, (), fields.count("interleave_moe_layer_step"))
    inner = fields.count("intermediate_size")

    def sized(index: int) -> LayerSizing:
        full = (index + 1) % period == 0
        heads = attention(fields, window_tokens=None if full else chunk, chunked=True)
        mlp = gated_mlp(rank, hidden, fields.count("intermediate_size_mlp"))
        if with_experts[index]:
            mlp = (
                *experts_mlp(
                    rank,
                    hidden,
                    inner,
                    fields.count("num_local_experts"),
                    fields.count("num_experts_per_tok"),
                ),
                *gated_mlp(rank, hidden, inner, prefix="shared."),
            )
        return layer((heads.cache(rank),), norms(rank, hidden, 2), heads.weights(rank), mlp)

    return _all(fields, rank, tuple(sized(index) for index in range(layers)))


def deepseek(fields: Fields, rank: Rank) -> Parts:
    """Latent attention; the first layers are dense, the others have experts, some for all."""
    hidden, layers = hidden_size(fields), layer_count(fields)
    latent = LatentAttention(
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        q_rank=fields.count("q_lora_rank") if fields.has("q_lora_rank") else None,
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )
    inner = fields.count("moe_intermediate_size")
    experts = fields.count("n_routed_experts")
    corrected = fields.text("topk_method", default="") == "noaux_tc"
    correction = rank.fixed("router.bias", experts if corrected else 0, bytes_each=FLOAT32_BYTES)
    sparse: Weights = (
        *experts_mlp(rank, hidden, inner, experts, fields.count("num_experts_per_tok")),
        *of_half(Half.MLP, correction),
    )
    if shared := fields.count("n_shared_experts", default=0, least=0):
        sparse = (*sparse, *gated_mlp(rank, hidden, inner * shared, prefix="shared."))
    dense = gated_mlp(rank, hidden, fields.count("intermediate_size"))
    first = fields.count("first_k_dense_replace", default=0, least=0)
    step = fields.count("moe_layer_freq", default=1)

    def sized(mlp: Weights) -> LayerSizing:
        return layer((latent.cache(rank),), norms(rank, hidden, 2), latent.weights(rank), mlp)

    with_experts, without = sized(sparse), sized(dense)
    return _all(
        fields,
        rank,
        tuple(
            with_experts if index >= first and index % step == 0 else without
            for index in range(layers)
        ),
    )


def qwen_experts(fields: Fields, rank: Rank) -> Weights:
    """Experts, and where the config has one, an expert for all behind a gate of its own."""
    hidden = hidden_size(fields)
    weights = experts_mlp(
        rank,
        hidden,
        fields.count("moe_intermediate_size"),
        fields.count("num_experts"),
        fields.count("num_experts_per_tok"),
    )
    if shared := fields.count("shared_expert_intermediate_size", default=0, least=0):
        gate = rank.fixed("shared.gate", hidden)
        weights = (
            *weights,
            *of_half(Half.MLP, gate),
            *gated_mlp(rank, hidden, shared, prefix="shared."),
        )
    return weights


def qwen_expert_layers(fields: Fields) -> list[bool]:
    return expert_layers(
        layer_count(fields),
        fields.items("mlp_only_layers", default=[]),
        fields.count("decoder_sparse_step", default=1),
    )


def _qwen_moe(fields: Fields, rank: Rank, *, qkv_bias: bool, normed: bool) -> Parts:
    hidden = hidden_size(fields)
    heads = attention(fields, qkv_bias=qkv_bias)

    def sized(mlp: Weights) -> LayerSizing:
        return layer(
            (heads.cache(rank),),
            norms(rank, hidden, 2),
            rank.fixed("qk_norms", 2 * heads.head_dim if normed else 0),
            heads.weights(rank),
            mlp,
        )

    dense = sized(gated_mlp(rank, hidden, fields.count("intermediate_size")))
    sparse = sized(qwen_experts(fields, rank))
    return _all(fields, rank, tuple(sparse if has else dense for has in qwen_expert_layers(fields)))


def _all(fields: Fields, rank: Rank, layers: tuple[LayerSizing, ...]) -> Parts:
    return Parts(layers, (*vocabulary(fields, rank), final_norm(fields, rank)))
