"""Mixers in attention's place: Mamba, Mamba 2, gated delta net, short convolution.

Each keeps a state of fixed size a request: the last inputs of its convolution, and what its
recurrence remembers.  Linears move; convolutions, state matrices and biases of steps do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_core.sizing.blocks import FLOAT32_BYTES, Rank, Weights, of_half
from mirage_core.sizing.caches import Cache, CacheKind
from mirage_core.sizing.weights import Half


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba 1; ``inner_norms`` are Jamba's over the step, B and C."""

    hidden: int
    inner: int
    state: int
    kernel: int
    step_rank: int
    conv_bias: bool
    bias: bool
    inner_norms: bool = False

    def cache(self, rank: Rank) -> Cache:
        share = rank.share(self.inner, "channels of the mixer")
        elements = share * (self.kernel - 1) + share * self.state
        return Cache(CacheKind.STATE, state_bytes=elements * rank.dtype.size_bytes)

    def weights(self, rank: Rank) -> Weights:
        share = rank.share(self.inner, "channels of the mixer")
        parts = self.step_rank + 2 * self.state
        return of_half(
            Half.MIXER,
            rank.linear("in", self.hidden, 2 * share, bias=self.bias),
            rank.fixed("conv", share * self.kernel + (share if self.conv_bias else 0)),
            rank.linear("x", share, parts),
            rank.linear("dt", self.step_rank, share, bias=True),
            rank.fixed("a", share * self.state, bytes_each=FLOAT32_BYTES),
            rank.fixed("d", share),
            rank.fixed("inner_norms", parts if self.inner_norms else 0),
            rank.linear("out", share, self.hidden, bias=self.bias),
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba 2: heads with one decay each; groups are copied where ranks do not divide them."""

    hidden: int
    inner: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    bias: bool
    gated_norm: bool = True

    def cache(self, rank: Rank) -> Cache:
        heads = rank.share(self.heads, "heads of the mixer")
        elements = self._channels(rank) * (self.kernel - 1) + heads * self.head_dim * self.state
        return Cache(CacheKind.STATE, state_bytes=elements * rank.dtype.size_bytes)

    def weights(self, rank: Rank) -> Weights:
        heads = rank.share(self.heads, "heads of the mixer")
        share = rank.share(self.inner, "channels of the mixer")
        channels = self._channels(rank)
        return of_half(
            Half.MIXER,
            rank.linear("in", self.hidden, share + channels + heads, bias=self.bias),
            rank.fixed("conv", channels * self.kernel + (channels if self.conv_bias else 0)),
            rank.fixed("a", heads, bytes_each=FLOAT32_BYTES),
            rank.fixed("d_dt", 2 * heads),
            rank.fixed("gated_norm", share if self.gated_norm else 0),
            rank.linear("out", share, self.hidden, bias=self.bias),
        )

    def _channels(self, rank: Rank) -> int:
        """Channels of the convolution: inputs, B and C."""
        groups = self.groups if self.groups % rank.ranks == 0 else rank.ranks
        return rank.share(self.inner + 2 * groups * self.state, "channels of the mixer")


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta net (Qwen3-Next): linear attention with a matrix a head as its state."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    def cache(self, rank: Rank) -> Cache:
        heads = rank.share(self.value_heads, "value heads")
        elements = self._channels(rank) * (self.kernel - 1) + heads * self.value_dim * self.key_dim
        return Cache(CacheKind.STATE, state_bytes=elements * rank.dtype.size_bytes)

    def weights(self, rank: Rank) -> Weights:
        heads = rank.share(self.value_heads, "value heads")
        values = heads * self.value_dim
        channels = self._channels(rank)
        return of_half(
            Half.MIXER,
            rank.linear("in_qkvz", self.hidden, channels + values),
            rank.linear("in_ba", self.hidden, 2 * heads),
            rank.fixed("conv", channels * self.kernel),
            rank.fixed("a", heads, bytes_each=FLOAT32_BYTES),
            rank.fixed("dt", heads),
            rank.fixed("gated_norm", self.value_dim),
            rank.linear("out", values, self.hidden),
        )

    def _channels(self, rank: Rank) -> int:
        keys = rank.share(self.key_heads, "key heads") * self.key_dim
        return 2 * keys + rank.share(self.value_heads, "value heads") * self.value_dim


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated convolution over the last ``kernel`` tokens (LFM2)."""

    hidden: int
    width: int
    kernel: int
    bias: bool

    def cache(self, rank: Rank) -> Cache:
        share = rank.share(self.width, "channels of the convolution")
        return Cache(CacheKind.STATE, state_bytes=share * (self.kernel - 1) * rank.dtype.size_bytes)

    def weights(self, rank: Rank) -> Weights:
        share = rank.share(self.width, "channels of the convolution")
        return of_half(
            Half.MIXER,
            rank.linear("in", self.hidden, 3 * share, bias=self.bias),
            rank.fixed("conv", share * self.kernel + (share if self.bias else 0)),
            rank.linear("out", share, self.hidden, bias=self.bias),
        )
