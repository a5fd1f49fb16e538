"""One model, sized: its units, what never moves, KV bytes, arithmetic; on one rank.

layer 0   | qkv | o | gate_up | down |  norms        grain LAYER: one unit
           '-- attention --'-- mlp --'  static             HALF: two units
static    embeddings, head, encoder, and all norms         LINEAR: four units
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mirage_core.model import UnitGrain
from mirage_core.sizing.caches import Cache, CacheKind
from mirage_core.sizing.weights import Dtype, Half, Weight


@dataclass(frozen=True, slots=True)
class UnitSizing:
    """One movable part of a model (``model.Unit`` before there are pages)."""

    name: str
    layer: int
    weights: tuple[Weight, ...]

    @property
    def size_bytes(self) -> int:
        return sum(weight.size_bytes for weight in self.weights)


@dataclass(frozen=True, slots=True)
class LayerSizing:
    """One decoder layer on one rank."""

    weights: tuple[Weight, ...]
    caches: tuple[Cache, ...]

    @property
    def params(self) -> int:
        return sum(weight.params for weight in self.weights)

    @property
    def size_bytes(self) -> int:
        return sum(weight.size_bytes for weight in self.weights)


@dataclass(frozen=True)
class ModelSizing:
    """One model on one rank of ``ranks`` tensor-parallel ones; made by ``size_model``.

    static          weights outside the decoder layers; none of them moves
    dtype           of the layers' linears; weights that models keep in float32 are counted so
    kv_dtype        of keys and values
    context_tokens  most tokens of a request; None: the model sets no limit
    encoder_tokens  tokens of an encoder's output that cross-attention keeps, of one request
    """

    name: str
    architecture: str
    ranks: int
    dtype: Dtype
    kv_dtype: Dtype
    layers: tuple[LayerSizing, ...]
    static: tuple[Weight, ...]
    context_tokens: int | None
    encoder_tokens: int = 0

    @cached_property
    def params(self) -> int:
        """Elements that a rank holds, vocabulary padding and copies on every rank included."""
        return sum(weight.params for weight in self.weights())

    @cached_property
    def published_params(self) -> int:
        """Elements without vocabulary padding: on one rank, those of the checkpoint."""
        return sum(weight.params - weight.padding_params for weight in self.weights())

    @cached_property
    def weight_bytes(self) -> int:
        return sum(weight.size_bytes for weight in self.weights())

    @cached_property
    def movable_bytes(self) -> int:
        return sum(weight.size_bytes for weight in self.weights() if weight.moves)

    @property
    def static_bytes(self) -> int:
        """Bytes that never move, the norms of the layers among them."""
        return self.weight_bytes - self.movable_bytes

    @cached_property
    def token_flops(self) -> int:
        """Operations of one token through all weights, attention over its context apart."""
        return sum(weight.token_flops for weight in self.weights())

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """KV bytes that a new token takes in all layers (a window drops as many later)."""
        return sum(
            cache.token_bytes for cache in self.caches() if cache.kind is not CacheKind.CROSS
        )

    @cached_property
    def state_bytes_per_request(self) -> int:
        """Bytes that a request takes whatever its length: states, and the encoder's output."""
        return sum(
            cache.state_bytes + cache.token_bytes * self.encoder_tokens
            for cache in self.caches()
            if cache.kind in (CacheKind.STATE, CacheKind.CROSS)
        )

    def kv_block_bytes(self, block_tokens: int) -> int:
        """Bytes of a block of ``block_tokens`` tokens in all layers."""
        return self.kv_bytes_per_token * block_tokens

    def request_bytes(self, context_tokens: int, block_tokens: int = 1) -> int:
        """Bytes that a request of ``context_tokens`` tokens holds, in whole blocks."""
        return sum(
            cache.request_bytes(context_tokens, block_tokens, self.encoder_tokens)
            for cache in self.caches()
        )

    def units(self, grain: UnitGrain) -> tuple[UnitSizing, ...]:
        """What moves as one, in order of execution."""
        return tuple(
            UnitSizing(f"{index}.{name}" if name else str(index), index, tuple(weights))
            for index, layer in enumerate(self.layers)
            for name, weights in _split(layer.weights, grain)
            if weights
        )

    def weights(self) -> Iterator[Weight]:
        for layer in self.layers:
            yield from layer.weights
        yield from self.static

    def caches(self) -> Iterator[Cache]:
        for layer in self.layers:
            yield from layer.caches


def _split(weights: Iterable[Weight], grain: UnitGrain) -> list[tuple[str, list[Weight]]]:
    moving = [weight for weight in weights if weight.moves]
    if grain is UnitGrain.LAYER:
        return [("", moving)]
    if grain is UnitGrain.HALF:
        return [(half.value, [weight for weight in moving if weight.half is half]) for half in Half]
    return [(weight.name, [weight]) for weight in moving]
