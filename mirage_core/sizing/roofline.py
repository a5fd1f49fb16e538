"""Time of a step: of each piece, the slower of what it reads and what it computes.

A piece is one linear (the experts of a layer count as one) or one layer's attention.  Each takes
max(bytes / bandwidth, operations / speed): while weights are read, the arithmetic of the same
linear runs beside, but attention waits for it.  This is a floor.  Launches, sampling, scheduling
and what ranks tell each other come on top of it, and rates in use should be those that kernels
reach (``Hardware.at``), not published ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mirage_core.errors import MisuseError
from mirage_core.model import UnitGrain
from mirage_core.sizing.caches import Cache
from mirage_core.sizing.hardware import Hardware
from mirage_core.sizing.model import LayerSizing, ModelSizing
from mirage_core.sizing.weights import Weight


class Part(NamedTuple):
    """``requests`` equal requests of one step.

    context_tokens  tokens that each has in its cache before the step
    new_tokens      tokens that each computes: 1 to decode, more to prefill a prompt or a chunk
    """

    requests: int
    context_tokens: float
    new_tokens: int = 1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step by layer, and of what follows the last one (norm and head)."""

    layers_s: tuple[float, ...]
    rest_s: float

    @property
    def step_s(self) -> float:
        return sum(self.layers_s) + self.rest_s


def step_times(model: ModelSizing, step: Sequence[Part], hardware: Hardware) -> StepTimes:
    """Times of one step of ``model`` with all weights on the device, and the device to itself."""
    rates = _Rates.of(hardware)
    tokens = sum(part.requests * part.new_tokens for part in step)
    requests = sum(part.requests for part in step)
    if tokens < 1 or min(min(part) for part in step) < 0:
        raise MisuseError(f"a step computes one token or more, got {step!r}")
    times = {
        id(layer): _layer_s(layer, step, tokens, model.encoder_tokens, rates)
        for layer in model.layers
    }
    return StepTimes(
        layers_s=tuple(times[id(layer)] for layer in model.layers),
        # Only a request's last token is turned into a next one.
        rest_s=sum(_weight_s(weight, requests, rates) for weight in model.static),
    )


def unit_times(
    model: ModelSizing, grain: UnitGrain, step: Sequence[Part], hardware: Hardware
) -> StepTimes:
    """As ``step_times``, by unit (``model.units(grain)``): what ``policy.cost.StepCost`` wants.

    A unit's time runs to the start of the next one: attention belongs to the layer's first unit,
    and so does what never moves.
    """
    rates = _Rates.of(hardware)
    tokens = sum(part.requests * part.new_tokens for part in step)
    whole = step_times(model, step, hardware)
    units = model.units(grain)
    times: list[float] = []
    for place, unit in enumerate(units):
        opens = place == 0 or units[place - 1].layer != unit.layer
        own_s = sum(_weight_s(weight, tokens, rates) for weight in unit.weights)
        if opens:
            moving = (weight for weight in model.layers[unit.layer].weights if weight.moves)
            linears_s = sum(_weight_s(weight, tokens, rates) for weight in moving)
            own_s += whole.layers_s[unit.layer] - linears_s
        times.append(own_s)
    return StepTimes(tuple(times), whole.rest_s)


@dataclass(frozen=True, slots=True)
class _Rates:
    bytes_per_s: float
    flops_per_s: float

    @classmethod
    def of(cls, hardware: Hardware) -> _Rates:
        return cls(hardware.hbm_bytes_per_s.typical, hardware.flops_per_s.typical)

    def slower_s(self, size_bytes: float, flops: float) -> float:
        return max(size_bytes / self.bytes_per_s, flops / self.flops_per_s)


def _layer_s(
    layer: LayerSizing, step: Sequence[Part], tokens: int, encoder_tokens: int, rates: _Rates
) -> float:
    weights_s = sum(_weight_s(weight, tokens, rates) for weight in layer.weights)
    return weights_s + sum(_cache_s(cache, step, encoder_tokens, rates) for cache in layer.caches)


def _weight_s(weight: Weight, tokens: int, rates: _Rates) -> float:
    return rates.slower_s(weight.read_bytes(tokens), weight.token_flops * tokens)


def _cache_s(cache: Cache, step: Sequence[Part], encoder_tokens: int, rates: _Rates) -> float:
    read_bytes, flops = 0.0, 0.0
    for requests, context_tokens, new_tokens in step:
        kept = cache.kept_tokens(context_tokens + new_tokens, encoder_tokens)
        # The mean of what the first and the last new token see; exact but for a window's edge.
        seen = (cache.kept_tokens(context_tokens + 1, encoder_tokens) + kept) / 2
        read_bytes += requests * (kept * cache.token_bytes + 2 * cache.state_bytes)
        flops += requests * new_tokens * seen * cache.pair_flops
    return rates.slower_s(read_bytes, flops)
