"""What the families have in common: fields under their usual names, windows, vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_core.sizing.blocks import Attention, Rank, norms
from mirage_core.sizing.fields import Fields
from mirage_core.sizing.model import LayerSizing
from mirage_core.sizing.weights import Weight


@dataclass(frozen=True, slots=True)
class Parts:
    """A model taken apart: decoder layers in order of execution, and what never moves."""

    layers: tuple[LayerSizing, ...]
    static: tuple[Weight, ...]
    encoder_tokens: int = 0


Family = Callable[[Fields, Rank], Parts]


def hidden_size(fields: Fields) -> int:
    return fields.count("hidden_size", "n_embd", "d_model")


def layer_count(fields: Fields) -> int:
    return fields.count("num_hidden_layers", "n_layer", "n_layers")


def attention(
    fields: Fields,
    *,
    window_tokens: int | None = None,
    chunked: bool = False,
    qkv_bias: bool = False,
    o_bias: bool = False,
) -> Attention:
    """Attention by the fields that most configs use."""
    hidden = hidden_size(fields)
    heads = fields.count("num_attention_heads", "n_head")
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", default=heads),
        head_dim=fields.count("head_dim", default=hidden // heads),
        window_tokens=window_tokens,
        chunked=chunked,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
    )


def windows(fields: Fields, full: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window: by ``layer_types`` where the config has it, else None if ``full``."""
    layers = layer_count(fields)
    if not fields.has("sliding_window"):
        return [None] * layers
    window = fields.count("sliding_window")
    types = fields.items("layer_types", default=[])
    if types:
        return [None if kind == "full_attention" else window for kind in types]
    return [None if full(layer) else window for layer in range(layers)]


def vocabulary(fields: Fields, rank: Rank, *, tied: bool | None = None) -> tuple[Weight, ...]:
    """Embedding and head, which are one tensor if ``tied`` (by default as the config says)."""
    rows, width = fields.count("vocab_size"), hidden_size(fields)
    if tied is None:
        tied = fields.flag("tie_word_embeddings", default=False)
    embedding = rank.vocabulary("embedding", rows, width, multiplies=tied)
    if tied:
        return (embedding,)
    head = rank.vocabulary("head", rows, width, multiplies=True)
    return (embedding, head)


def final_norm(fields: Fields, rank: Rank, *, bias: bool = False) -> Weight:
    return norms(rank, hidden_size(fields), bias=bias)


def repeated(layer: LayerSizing, count: int) -> tuple[LayerSizing, ...]:
    return (layer,) * count


def expert_layers(layers: int, dense: Sequence[int], step: int) -> list[bool]:
    """Which layers have experts: every ``step``-th but those that are ``dense``."""
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
