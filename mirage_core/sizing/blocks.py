"""The parts that models are built from, each sized as one rank holds it.

Sharding is vLLM's: heads and the inner width of MLPs are split, key-value heads are copied where
there are more ranks than heads, vocabularies are filled up to a multiple of 64 and split, biases
of output projections and all norms are copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_core.errors import ConfigError
from mirage_core.sizing.caches import Cache, CacheKind
from mirage_core.sizing.model import LayerSizing
from mirage_core.sizing.weights import Dtype, Half, Weight

VOCABULARY_MULTIPLE = 64
FLOAT32_BYTES = 4
Weights = tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of ``ranks``: types of the layers' linears, of all other weights, and of caches."""

    ranks: int
    linear_dtype: Dtype
    dtype: Dtype
    kv_dtype: Dtype

    def share(self, whole: int, what: str) -> int:
        """This rank's part of ``whole``; ConfigError if the ranks do not divide it."""
        if whole % self.ranks:
            raise ConfigError(f"{whole} {what} cannot be split over {self.ranks} ranks")
        return whole // self.ranks

    def kv_heads(self, heads: int) -> int:
        """Key-value heads of this rank: a part of them, or a copy of one."""
        if heads >= self.ranks:
            return self.share(heads, "key-value heads")
        if self.ranks % heads:
            raise ConfigError(f"{heads} key-value heads cannot be copied to {self.ranks} ranks")
        return 1

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Weight:
        """A linear that moves; inputs and outputs are this rank's."""
        params = inputs * outputs + (outputs if bias else 0)
        return Weight(name, params, params * self.linear_dtype.size_bytes, moves=True)

    def experts(
        self, name: str, experts: int, used: int, inputs: int, outputs: int, *, bias: bool = False
    ) -> Weight:
        """One linear of each of ``experts`` experts; a token uses ``used`` of them."""
        params = experts * (inputs * outputs + (outputs if bias else 0))
        size_bytes = params * self.linear_dtype.size_bytes
        return Weight(name, params, size_bytes, None, True, experts, used)

    def fixed(
        self, name: str, params: int, *, multiplies: bool = True, bytes_each: int = 0
    ) -> Weight:
        """Weights that never move: norms, biases, routers, states' matrices."""
        size_bytes = params * (bytes_each or self.dtype.size_bytes)
        return Weight(name, params, size_bytes, multiplies=multiplies)

    def vocabulary(self, name: str, rows: int, width: int, *, multiplies: bool) -> Weight:
        """An embedding, or a head: rows are filled up and split."""
        filled = -(-rows // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        share = self.share(filled, "rows of the vocabulary")
        padding = (filled - rows) * width
        params = share * width
        size_bytes = params * self.dtype.size_bytes
        return Weight(
            name, params, size_bytes, multiplies=multiplies, padding_params=padding // self.ranks
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """Shape of one attention: heads of queries and of keys and values, width of a head."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    window_tokens: int | None = None
    chunked: bool = False
    qkv_bias: bool = False
    o_bias: bool = False

    def cache(self, rank: Rank, kind: CacheKind | None = None) -> Cache:
        if kind is None:
            kind = CacheKind.FULL
            if self.window_tokens is not None:
                kind = CacheKind.CHUNKED if self.chunked else CacheKind.SLIDING
        heads = rank.share(self.heads, "attention heads")
        return Cache(
            kind,
            token_bytes=2 * rank.kv_heads(self.kv_heads) * self.head_dim * rank.kv_dtype.size_bytes,
            window_tokens=self.window_tokens,
            pair_flops=4 * heads * self.head_dim,
        )

    def weights(self, rank: Rank) -> Weights:
        """Fused queries, keys and values, then the output."""
        heads = rank.share(self.heads, "attention heads")
        kv_heads = rank.kv_heads(self.kv_heads)
        width = (heads + 2 * kv_heads) * self.head_dim
        return of_half(
            Half.MIXER,
            rank.linear("qkv", self.hidden, width, bias=self.qkv_bias),
            rank.linear("o", heads * self.head_dim, self.hidden, bias=self.o_bias),
        )


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one latent vector a token for all heads."""

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def cache(self, rank: Rank) -> Cache:
        """Kept whole on every rank; queries are compared with it in its own space."""
        heads = rank.share(self.heads, "attention heads")
        width = self.kv_rank + self.rope_dim
        return Cache(
            CacheKind.MLA,
            token_bytes=width * rank.kv_dtype.size_bytes,
            pair_flops=2 * heads * (width + self.kv_rank),
        )

    def weights(self, rank: Rank) -> Weights:
        heads = rank.share(self.heads, "attention heads")
        queries = heads * (self.nope_dim + self.rope_dim)
        latent = self.kv_rank + self.rope_dim
        down: Weights
        if self.q_rank is None:
            down = (
                rank.linear("q", self.hidden, queries),
                rank.linear("kv_a", self.hidden, latent),
            )
        else:
            down = (
                rank.linear("qkv_a", self.hidden, self.q_rank + latent),
                rank.fixed("q_a_norm", self.q_rank),
                rank.linear("q_b", self.q_rank, queries),
            )
        return of_half(
            Half.MIXER,
            *down,
            rank.fixed("kv_a_norm", self.kv_rank),
            rank.linear("kv_b", self.kv_rank, heads * (self.nope_dim + self.value_dim)),
            rank.linear("o", heads * self.value_dim, self.hidden),
        )


def gated_mlp(
    rank: Rank, hidden: int, inner: int, *, prefix: str = "", bias: bool = False
) -> Weights:
    """Gate and up fused, then down."""
    share = rank.share(inner, "columns of the MLP")
    return of_half(
        Half.MLP,
        rank.linear(f"{prefix}gate_up", hidden, 2 * share, bias=bias),
        rank.linear(f"{prefix}down", share, hidden, bias=bias),
    )


def plain_mlp(rank: Rank, hidden: int, inner: int, *, bias: bool) -> Weights:
    share = rank.share(inner, "columns of the MLP")
    return of_half(
        Half.MLP,
        rank.linear("up", hidden, share, bias=bias),
        rank.linear("down", share, hidden, bias=bias),
    )


def experts_mlp(
    rank: Rank, hidden: int, inner: int, experts: int, used: int, *, bias: bool = False
) -> Weights:
    """A router, and all experts' gated MLPs; every rank holds a part of each expert."""
    share = rank.share(inner, "columns of an expert")
    return of_half(
        Half.MLP,
        rank.fixed("router", hidden * experts + (experts if bias else 0)),
        rank.experts("experts.gate_up", experts, used, hidden, 2 * share, bias=bias),
        rank.experts("experts.down", experts, used, share, hidden, bias=bias),
    )


def norms(rank: Rank, width: int, count: int = 1, *, bias: bool = False) -> Weight:
    """``count`` norms over ``width``."""
    return rank.fixed("norms", count * width * (2 if bias else 1))


def layer(caches: tuple[Cache, ...], *parts: Weights | Weight) -> LayerSizing:
    weights: list[Weight] = []
    for part in parts:
        weights.extend(part if isinstance(part, tuple) else (part,))
    return LayerSizing(tuple(weights), caches)


def of_half(half: Half, *weights: Weight) -> Weights:
    return tuple(weight.of_half(half) for weight in weights)
