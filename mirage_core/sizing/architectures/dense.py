"""Decoders with gated MLPs in every layer: Llama and what grew from it."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_core.sizing.architectures.shared import (
    Parts,
    attention,
    final_norm,
    hidden_size,
    layer_count,
    vocabulary,
    windows,
)
from mirage_core.sizing.blocks import Rank, gated_mlp, layer, norms
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.model import LayerSizing


@dataclass(frozen=True, slots=True)
class Style:
    """In what a family differs from Llama.

    layer_norms  norms over the hidden width in a layer
    head_norms   queries and keys are normed, a head at a time
    wide_norms   queries and keys are normed, all heads at once; every rank holds them whole
    tied         whether head and embedding are one by default
    """

    qkv_bias: bool = False
    layer_norms: int = 2
    head_norms: bool = False
    wide_norms: bool = False
    tied: bool = False


def llama(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(qkv_bias=fields.flag("attention_bias", default=False)))


def mistral(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(), windows(fields, lambda layer: False))


def qwen2(fields: Fields, rank: Rank) -> Parts:
    """Its window is off unless ``use_sliding_window`` says otherwise."""
    if fields.flag("use_sliding_window", default=False):
        first = fields.count("max_window_layers", least=0)
        return decoder(fields, rank, Style(True), windows(fields, lambda layer: layer < first))
    return decoder(fields, rank, Style(qkv_bias=True))


def qwen3(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(head_norms=True))


def gemma2(fields: Fields, rank: Rank) -> Parts:
    style = Style(layer_norms=4, tied=True)
    return decoder(fields, rank, style, windows(fields, lambda layer: layer % 2 == 1))


def gemma3(fields: Fields, rank: Rank) -> Parts:
    period = fields.count("sliding_window_pattern", default=6)
    style = Style(layer_norms=4, head_norms=True, tied=True)
    return decoder(fields, rank, style, windows(fields, lambda layer: (layer + 1) % period == 0))


def phi3(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(), windows(fields, lambda layer: False))


def glm(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(qkv_bias=fields.flag("attention_bias", default=False)))


def olmo2(fields: Fields, rank: Rank) -> Parts:
    return decoder(fields, rank, Style(wide_norms=True))


def cohere(fields: Fields, rank: Rank) -> Parts:
    """Attention and MLP side by side behind one norm."""
    return decoder(fields, rank, Style(layer_norms=1, tied=True))


def decoder(
    fields: Fields, rank: Rank, style: Style, layer_windows: list[int | None] | None = None
) -> Parts:
    """All layers, then embedding, final norm and head."""
    hidden = hidden_size(fields)
    biased_output = style.qkv_bias and fields.text("model_type", default="") == "llama"
    mlp_bias = fields.flag("mlp_bias", default=False)

    def sized(window_tokens: int | None) -> LayerSizing:
        heads = attention(
            fields, window_tokens=window_tokens, qkv_bias=style.qkv_bias, o_bias=biased_output
        )
        inner_norms = 0
        if style.head_norms:
            inner_norms = 2 * heads.head_dim
        elif style.wide_norms:
            inner_norms = (heads.heads + heads.kv_heads) * heads.head_dim
        return layer(
            (heads.cache(rank),),
            norms(rank, hidden, style.layer_norms),
            rank.fixed("qk_norms", inner_norms),
            heads.weights(rank),
            gated_mlp(rank, hidden, fields.count("intermediate_size"), bias=mlp_bias),
        )

    each = layer_windows or [None] * layer_count(fields)
    by_window = {window: sized(window) for window in set(each)}
    tied = fields.flag("tie_word_embeddings", default=style.tied)
    return Parts(
        layers=tuple(by_window[window] for window in each),
        static=(*vocabulary(fields, rank, tied=tied), final_norm(fields, rank)),
    )
