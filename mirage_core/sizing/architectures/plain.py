"""Decoders with plain MLPs and biases: OPT, GPT-NeoX, BLOOM, Falcon, the StarCoders."""

from __future__ import annotations

from dataclasses import replace

from mirage_core.sizing.architectures.shared import (
    Parts,
    attention,
    final_norm,
    hidden_size,
    layer_count,
    repeated,
    vocabulary,
    windows,
)
from mirage_core.sizing.blocks import Attention, Rank, layer, norms, plain_mlp
from mirage_core.sizing.fields import Fields

OPT_POSITION_OFFSET = 2


def opt(fields: Fields, rank: Rank) -> Parts:
    """Learned positions; OPT-350m embeds narrower than it computes, and norms afterwards."""
    hidden = hidden_size(fields)
    width = fields.count("word_embed_proj_dim", default=hidden)
    bias = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    heads = attention(fields, qkv_bias=bias, o_bias=bias)
    positions = (fields.count("max_position_embeddings") + OPT_POSITION_OFFSET) * hidden
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2, bias=True),
        heads.weights(rank),
        plain_mlp(rank, hidden, fields.count("ffn_dim"), bias=bias),
    )
    projections = 2 * width * hidden if width != hidden else 0
    has_final_norm = before and not fields.flag("_remove_final_layer_norm", default=False)
    return Parts(
        repeated(each, layer_count(fields)),
        (
            rank.vocabulary("embedding", fields.count("vocab_size"), width, multiplies=True),
            rank.fixed("positions", positions, multiplies=False),
            rank.fixed("projections", projections),
            norms(rank, hidden, 1 if has_final_norm else 0, bias=True),
        ),
    )


def gpt_neox(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    bias = fields.flag("attention_bias", default=True)
    heads = attention(fields, qkv_bias=bias, o_bias=bias)
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2, bias=True),
        heads.weights(rank),
        plain_mlp(rank, hidden, fields.count("intermediate_size"), bias=True),
    )
    return Parts(
        repeated(each, layer_count(fields)),
        (*vocabulary(fields, rank), final_norm(fields, rank, bias=True)),
    )


def bloom(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    heads = attention(fields, qkv_bias=True, o_bias=True)
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2, bias=True),
        heads.weights(rank),
        plain_mlp(rank, hidden, 4 * hidden, bias=True),
    )
    return Parts(
        repeated(each, layer_count(fields)),
        (*vocabulary(fields, rank, tied=True), norms(rank, hidden, 2, bias=True)),
    )


def gpt_bigcode(fields: Fields, rank: Rank) -> Parts:
    """Multi-query attention: every rank holds the one key-value head.

    vLLM runs it through its Transformers backend, which leaves the MLPs whole on every rank.
    """
    hidden = hidden_size(fields)
    query_heads = fields.count("n_head")
    multi_query = fields.flag("multi_query", default=True)
    heads = Attention(
        hidden=hidden,
        heads=query_heads,
        kv_heads=1 if multi_query else query_heads,
        head_dim=hidden // query_heads,
        qkv_bias=True,
        o_bias=True,
    )
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2, bias=True),
        heads.weights(rank),
        plain_mlp(
            replace(rank, ranks=1), hidden, fields.count("n_inner", default=4 * hidden), bias=True
        ),
    )
    return Parts(
        repeated(each, layer_count(fields)),
        (
            *vocabulary(fields, rank, tied=True),
            rank.fixed("positions", fields.count("n_positions") * hidden, multiplies=False),
            final_norm(fields, rank, bias=True),
        ),
    )


def falcon(fields: Fields, rank: Rank) -> Parts:
    """Falcon-7b has one key-value head, Falcon-40b and its like a group of them.

    vLLM's class keeps keys and values in the weights' type, whatever the cache's is to be.
    """
    rank = replace(rank, kv_dtype=rank.dtype)
    hidden = hidden_size(fields)
    bias = fields.flag("bias", default=False)
    parallel = fields.flag("parallel_attn", default=True)
    grouped = fields.flag("new_decoder_architecture", default=False)
    query_heads = fields.count("num_attention_heads", "n_head")
    if grouped:
        kv_heads = fields.count("num_kv_heads", "n_head_kv")
    else:
        kv_heads = 1 if fields.flag("multi_query", default=True) else query_heads
    heads = Attention(
        hidden, query_heads, kv_heads, hidden // query_heads, qkv_bias=bias, o_bias=bias
    )
    one_norm = parallel and not (
        grouped and fields.count("num_ln_in_parallel_attn", default=2) == 2
    )
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 1 if one_norm else 2, bias=True),
        heads.weights(rank),
        plain_mlp(rank, hidden, fields.count("ffn_hidden_size", default=4 * hidden), bias=bias),
    )
    tied = fields.flag("tie_word_embeddings", default=True)
    return Parts(
        repeated(each, layer_count(fields)),
        (*vocabulary(fields, rank, tied=tied), final_norm(fields, rank, bias=True)),
    )


def starcoder2(fields: Fields, rank: Rank) -> Parts:
    hidden = hidden_size(fields)
    bias = fields.flag("use_bias", default=True)
    window = windows(fields, lambda layer: False)[0]
    heads = attention(fields, window_tokens=window, qkv_bias=bias, o_bias=bias)
    each = layer(
        (heads.cache(rank),),
        norms(rank, hidden, 2, bias=True),
        heads.weights(rank),
        plain_mlp(rank, hidden, fields.count("intermediate_size"), bias=bias),
    )
    tied = fields.flag("tie_word_embeddings", default=True)
    return Parts(
        repeated(each, layer_count(fields)),
        (*vocabulary(fields, rank, tied=tied), final_norm(fields, rank, bias=True)),
    )
