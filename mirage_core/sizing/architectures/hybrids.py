"""Models with mixers that keep a state, alone or beside attention."""

from __future__ import annotations

from mirage_core.sizing.architectures.experts import qwen_expert_layers, qwen_experts
from mirage_core.sizing.architectures.shared import (
    Parts,
    attention,
    final_norm,
    hidden_size,
    layer_count,
    repeated,
    vocabulary,
)
from mirage_core.sizing.blocks import Rank, Weights, experts_mlp, gated_mlp, layer, norms
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.mixers import DeltaNet, Mamba, Mamba2, ShortConvolution
from mirage_core.sizing.model import LayerSizing


def mamba(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    mixer = Mamba(
        hidden=hidden,
        inner=fields.count("intermediate_size", "d_inner", default=2 * hidden),
        state=fields.count("state_size"),
        kernel=fields.count("conv_kernel", default=4),
        step_rank=fields.count("time_step_rank", default=-(-hidden // 16)),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias", default=False),
    )
    each = layer((mixer.cache(rank),), norms(rank, hidden), mixer.weights(rank))
    return _all(fields, rank, repeated(each, layer_count(fields)), tied=True)


def mamba2(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    mixer = Mamba2(
        hidden=hidden,
        inner=fields.count("expand", default=2) * hidden,
        heads=fields.count("num_heads"),
        head_dim=fields.count("head_dim"),
        groups=fields.count("n_groups"),
        state=fields.count("state_size"),
        kernel=fields.count("conv_kernel", default=4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias", default=False),
    )
    each = layer((mixer.cache(rank),), norms(rank, hidden), mixer.weights(rank))
    return _all(fields, rank, repeated(each, layer_count(fields)))


def jamba(fields: Fields, rank: Rank) -> Parts:
    """Attention in every eighth layer, experts in every second."""
    hidden, inner = hidden_size(fields), fields.count("intermediate_size")
    heads = attention(fields)
    mixer = Mamba(
        hidden=hidden,
        inner=fields.count("mamba_expand", default=2) * hidden,
        state=fields.count("mamba_d_state", default=16),
        kernel=fields.count("mamba_d_conv", default=4),
        step_rank=fields.count("mamba_dt_rank"),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        inner_norms=True,
    )
    experts = fields.count("num_experts", default=16)
    sparse = experts_mlp(rank, hidden, inner, experts, fields.count("num_experts_per_tok"))
    attends = _periodic(fields, "attn_layer_period", "attn_layer_offset")
    has_experts = _periodic(fields, "expert_layer_period", "expert_layer_offset")

    def sized(index: int) -> LayerSizing:
        part = heads if attends[index] else mixer
        mlp = sparse if has_experts[index] else gated_mlp(rank, hidden, inner)
        return layer((part.cache(rank),), norms(rank, hidden, 2), part.weights(rank), mlp)

    return _all(fields, rank, tuple(sized(index) for index in range(layer_count(fields))))


def falcon_h1(fields: Fields, rank: Rank) -> Parts:
    """Attention and Mamba 2 side by side in every layer."""
    hidden = hidden_size(fields)
    heads, mixer = attention(fields), _mamba2_of_hybrid(fields, "mamba_d_ssm")
    each = layer(
        (heads.cache(rank), mixer.cache(rank)),
        norms(rank, hidden, 2),
        heads.weights(rank),
        mixer.weights(rank),
        gated_mlp(rank, hidden, fields.count("intermediate_size")),
    )
    return _all(fields, rank, repeated(each, layer_count(fields)))


def granite_hybrid(fields: Fields, rank: Rank) -> Parts:
    """Mamba 2 with attention in a few layers; experts and an MLP for all in each."""
    hidden = hidden_size(fields)
    heads, mixer = attention(fields), _mamba2_of_hybrid(fields, "mamba_d_inner")
    mlp: Weights = ()
    if experts := fields.count("num_local_experts", default=0, least=0):
        used = fields.count("num_experts_per_tok")
        mlp = experts_mlp(rank, hidden, fields.count("intermediate_size"), experts, used)
    if shared := fields.count("shared_intermediate_size", default=0, least=0):
        mlp = (*mlp, *gated_mlp(rank, hidden, shared, prefix="shared."))

    def sized(kind: str) -> LayerSizing:
        part = heads if kind == "attention" else mixer
        return layer((part.cache(rank),), norms(rank, hidden, 2), part.weights(rank), mlp)

    return _all(fields, rank, tuple(sized(kind) for kind in fields.items("layer_types")))


def lfm2(fields: Fields, rank: Rank) -> Parts:
    """Short convolutions with attention in a few layers."""
    hidden, layers = hidden_size(fields), layer_count(fields)
    heads = attention(fields)
    convolution = ShortConvolution(
        hidden=hidden,
        width=fields.count("conv_dim", default=hidden),
        kernel=fields.count("conv_L_cache", default=3),
        bias=fields.flag("conv_bias", default=False),
    )
    mlp = gated_mlp(rank, hidden, _lfm2_inner(fields))
    attends = fields.items("full_attn_idxs", default=[])

    def sized(index: int) -> LayerSizing:
        if index in attends:
            return layer(
                (heads.cache(rank),),
                norms(rank, hidden, 2),
                rank.fixed("qk_norms", 2 * heads.head_dim),
                heads.weights(rank),
                mlp,
            )
        return layer(
            (convolution.cache(rank),), norms(rank, hidden, 2), convolution.weights(rank), mlp
        )

    return _all(fields, rank, tuple(sized(index) for index in range(layers)), tied=True)


def qwen3_next(fields: Fields, rank: Rank) -> Parts:
    """Gated delta nets; every fourth layer attends, its output gated; experts in each."""
    hidden = hidden_size(fields)
    heads = attention(fields)
    gate = rank.share(heads.heads, "attention heads") * heads.head_dim
    mixer = DeltaNet(
        hidden=hidden,
        key_heads=fields.count("linear_num_key_heads"),
        value_heads=fields.count("linear_num_value_heads"),
        key_dim=fields.count("linear_key_head_dim"),
        value_dim=fields.count("linear_value_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", default=4),
    )
    sparse = qwen_experts(fields, rank)
    has_experts = qwen_expert_layers(fields)
    period = fields.count("full_attention_interval", default=4)

    def sized(index: int) -> LayerSizing:
        mlp = sparse
        if not has_experts[index]:
            mlp = gated_mlp(rank, hidden, fields.count("intermediate_size"))
        if (index + 1) % period:
            return layer((mixer.cache(rank),), norms(rank, hidden, 2), mixer.weights(rank), mlp)
        qkv, output = heads.weights(rank)
        wider = rank.linear(qkv.name, hidden, qkv.params // hidden + gate).of_half(qkv.half)
        return layer(
            (heads.cache(rank),),
            norms(rank, hidden, 2),
            rank.fixed("qk_norms", 2 * heads.head_dim),
            (wider, output),
            mlp,
        )

    return _all(fields, rank, tuple(sized(index) for index in range(layer_count(fields))))


def _mamba2_of_hybrid(fields: Fields, inner_name: str) -> Mamba2:
    hidden = hidden_size(fields)
    inner = fields.count(inner_name, default=fields.count("mamba_expand", default=2) * hidden)
    heads = fields.count("mamba_n_heads")
    return Mamba2(
        hidden=hidden,
        inner=inner,
        heads=heads,
        head_dim=fields.count("mamba_d_head", default=inner // heads),
        groups=fields.count("mamba_n_groups", default=1),
        state=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv", default=4),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias", default=False),
        gated_norm=fields.flag("mamba_rms_norm", default=True),
    )


def _lfm2_inner(fields: Fields) -> int:
    inner = fields.count("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return inner
    inner = int(fields.number("block_ffn_dim_multiplier", default=1.0) * (2 * inner // 3))
    multiple = fields.count("block_multiple_of", default=256)
    return -(-inner // multiple) * multiple


def _periodic(fields: Fields, period: str, offset: str) -> list[bool]:
    every, first = fields.count(period), fields.count(offset, least=0)
    return [layer % every == first for layer in range(layer_count(fields))]


def _all(
    fields: Fields, rank: Rank, layers: tuple[LayerSizing, ...], *, tied: bool = False
) -> Parts:
    tied = fields.flag("tie_word_embeddings", default=tied)
    return Parts(layers, (*vocabulary(fields, rank, tied=tied), final_norm(fields, rank)))
