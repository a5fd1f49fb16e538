"""Encoder and decoder with cross-attention between them: Whisper."""

from __future__ import annotations

from mirage_core.sizing.architectures.shared import Parts, repeated
from mirage_core.sizing.blocks import Attention, Rank, Weights, layer, norms, of_half, plain_mlp
from mirage_core.sizing.caches import CacheKind
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.weights import Half, Weight

CONVOLUTION_WIDTH = 3


def whisper(fields: Fields, rank: Rank) -> Parts:
    """The encoder runs once a request and does not move; its output is kept by cross-attention."""
    hidden, rows = fields.count("d_model"), fields.count("vocab_size")
    frames = fields.count("max_source_positions", default=1500)
    own = _attention(fields, "decoder")
    each = layer(
        (own.cache(rank), own.cache(rank, CacheKind.CROSS)),
        norms(rank, hidden, 3, bias=True),
        own.weights(rank),
        of_half(Half.MIXER, *_cross(own, rank)),
        plain_mlp(rank, hidden, fields.count("decoder_ffn_dim"), bias=True),
    )
    mel = fields.count("num_mel_bins", default=80)
    convolutions = (mel + hidden) * hidden * CONVOLUTION_WIDTH + 2 * hidden
    positions = frames + fields.count("max_target_positions", default=448)
    return Parts(
        repeated(each, fields.count("decoder_layers")),
        (
            rank.fixed("embedding", rows * hidden),
            rank.fixed("positions", positions * hidden, multiplies=False),
            norms(rank, hidden, bias=True),
            rank.fixed("encoder.convolutions", convolutions, multiplies=False),
            *_encoder(fields, rank, hidden),
        ),
        encoder_tokens=frames,
    )


def _attention(fields: Fields, side: str) -> Attention:
    """Its fused linear has a bias for keys too, which the checkpoint does not."""
    hidden = fields.count("d_model")
    heads = fields.count(f"{side}_attention_heads")
    return Attention(hidden, heads, heads, hidden // heads, qkv_bias=True, o_bias=True)


def _cross(own: Attention, rank: Rank) -> Weights:
    width = rank.share(own.heads, "attention heads") * own.head_dim
    return (
        rank.linear("cross.q", own.hidden, width, bias=True),
        rank.linear("cross.kv", own.hidden, 2 * width, bias=True),
        rank.linear("cross.o", width, own.hidden, bias=True),
    )


def _encoder(fields: Fields, rank: Rank, hidden: int) -> tuple[Weight, ...]:
    """Layers of the encoder, each weight of all layers as one; a decoding step reads none."""
    linears = (
        *_attention(fields, "encoder").weights(rank),
        *plain_mlp(rank, hidden, fields.count("encoder_ffn_dim"), bias=True),
        norms(rank, hidden, 2, bias=True),
    )
    layers = fields.count("encoder_layers")
    params = layers * sum(weight.params for weight in linears)
    return (rank.fixed("encoder.layers", params, multiplies=False), norms(rank, hidden, bias=True))
