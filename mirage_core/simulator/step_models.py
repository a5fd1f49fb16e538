"""Step-time models: a roofline with overheads, coefficients fitted to a run, a profile table.

All turn seconds into whole picoseconds once, when they are made (see ``step_time`` for why).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mirage_core.errors import ConfigError
from mirage_core.simulator.step_time import Batch, Line
from mirage_core.simulator.units import NEVER_PS, PS_PER_S


class RooflineCosts(NamedTuple):
    """What a model asks of a device, and what the device gives; a sharded model's per rank.

    weight_bytes          read in every step, experts apart
    expert_bytes          all experts' weights, of which a token activates ``expert_share``
    kv_bytes_per_token    read for each token of context
    flops_per_token       of the matrices, 2 a parameter that a token activates
    flops_per_pair        of attention, for each (query, key) pair
    bytes_per_s, flops_per_s   what the device reaches, not its peak
    step_overhead_s       of every step: launch, head, sampling, scheduling
    request_overhead_s    of each request in it
    """

    weight_bytes: float
    kv_bytes_per_token: float
    flops_per_token: float
    flops_per_pair: float
    bytes_per_s: float
    flops_per_s: float
    step_overhead_s: float = 0.0
    request_overhead_s: float = 0.0
    expert_bytes: float = 0.0
    expert_share: float = 0.0


class RooflineStepTime:
    """max(bytes / bandwidth, operations / speed) + overheads."""

    def __init__(self, costs: RooflineCosts) -> None:
        for name, value in costs._asdict().items():
            if not 0.0 <= value < float("inf"):
                raise ConfigError(f"roofline: {name} is {value}, must be finite and not below 0")
        if not costs.bytes_per_s or not costs.flops_per_s:
            raise ConfigError("roofline: bytes_per_s and flops_per_s must be above 0")
        if not costs.weight_bytes and not costs.step_overhead_s:
            raise ConfigError("roofline: a step would take no time: give weight_bytes")
        self.costs = costs
        self._kv_ps = round(costs.kv_bytes_per_token / costs.bytes_per_s * PS_PER_S)
        self._pair_ps = round(costs.flops_per_pair / costs.flops_per_s * PS_PER_S)
        self._token_ps = costs.flops_per_token / costs.flops_per_s * PS_PER_S
        self._bases = lru_cache(maxsize=4096)(self._bases_of)

    def _weights_ps(self, tokens: int) -> int:
        costs = self.costs
        # Each token picks its experts at random: those that no token picked are not read.
        touched = 1.0 - (1.0 - costs.expert_share) ** tokens
        read_bytes = costs.weight_bytes + costs.expert_bytes * touched
        return round(read_bytes / costs.bytes_per_s * PS_PER_S)

    def _overhead_ps(self, requests: int) -> int:
        costs = self.costs
        return round((costs.step_overhead_s + costs.request_overhead_s * requests) * PS_PER_S)

    def _bases_of(self, decodes: int) -> tuple[int, int]:
        overhead_ps = self._overhead_ps(decodes)
        return self._weights_ps(decodes) + overhead_ps, round(
            decodes * self._token_ps
        ) + overhead_ps

    def decode_line(self, decodes: int, context_tokens: int) -> Line:
        memory_ps, compute_ps = self._bases(decodes)
        memory_slope, compute_slope = self._kv_ps, self._pair_ps
        lead = memory_ps - compute_ps + (memory_slope - compute_slope) * context_tokens
        if lead < 0:
            memory_ps, compute_ps = compute_ps, memory_ps
            memory_slope, compute_slope = compute_slope, memory_slope
        if compute_slope <= memory_slope:
            return Line(memory_ps, memory_slope, NEVER_PS)
        return Line(
            memory_ps, memory_slope, (memory_ps - compute_ps) // (compute_slope - memory_slope)
        )

    def mixed_step_ps(self, batch: Batch) -> int:
        tokens = batch.decodes + batch.prefill_tokens
        read_ps = self._weights_ps(tokens) + self._kv_ps * (
            batch.context_tokens + batch.prefill_context
        )
        work_ps = round(tokens * self._token_ps) + self._pair_ps * (
            batch.context_tokens + batch.prefill_pairs
        )
        return max(read_ps, work_ps) + self._overhead_ps(batch.decodes + batch.prefills)


@dataclass(frozen=True, slots=True)
class FittedStepTime:
    """Coefficients fitted to a measured run, in picoseconds; a sum, not a maximum."""

    step_ps: int
    decode_ps: int
    context_ps: int
    prefill_ps: int
    prefill_token_ps: int
    pair_ps: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < (1 if name == "step_ps" else 0):
                raise ConfigError(f"a fitted step time's {name} is {getattr(self, name)}")

    def decode_line(self, decodes: int, context_tokens: int) -> Line:
        return Line(self.step_ps + self.decode_ps * decodes, self.context_ps, NEVER_PS)

    def mixed_step_ps(self, batch: Batch) -> int:
        return (
            self.step_ps
            + self.decode_ps * batch.decodes
            + self.context_ps * batch.context_tokens
            + self.prefill_ps * batch.prefills
            + self.prefill_token_ps * batch.prefill_tokens
            + self.pair_ps * batch.prefill_pairs
        )


class TableStepTime:
    """A profile: step times measured on a grid, linear in between and beyond.

    ``decode_s[i][j]``: ``batches[i]`` requests that read ``contexts[j]`` tokens of KV cache in
    all.  ``prefill_s[j]``: a prompt of ``prompts[j]`` tokens alone.  A step with both takes the
    decode step's time and, for the prompts, what theirs is above that of a step of one token.
    """

    def __init__(
        self,
        batches: Sequence[int],
        contexts: Sequence[int],
        decode_s: Sequence[Sequence[float]],
        prompts: Sequence[int],
        prefill_s: Sequence[float],
    ) -> None:
        for name, axis in (("batches", batches), ("contexts", contexts), ("prompts", prompts)):
            if len(axis) < 2 or list(axis) != sorted(set(axis)) or axis[0] < 0:
                raise ConfigError(f"profile table: {name} must ascend, two or more: {axis!r}")
        if len(decode_s) != len(batches) or len(prefill_s) != len(prompts):
            raise ConfigError("profile table: one row a batch size, one time a prompt length")
        for i, row in enumerate(decode_s):
            if len(row) != len(contexts) or row[0] <= 0 or list(row) != sorted(row):
                raise ConfigError(f"profile table: decode_s[{i}] must be positive and not fall")
        if prefill_s[0] <= 0 or list(prefill_s) != sorted(prefill_s):
            raise ConfigError("profile table: prefill_s must be positive and not fall")
        self._batches = tuple(batches)
        self._contexts = tuple(contexts)
        self._decode_ps = [[round(t * PS_PER_S) for t in row] for row in decode_s]
        self._prompts = tuple(prompts)
        self._prefill_ps = [round(t * PS_PER_S) for t in prefill_s]

    def decode_line(self, decodes: int, context_tokens: int) -> Line:
        row = _piece(self._batches, decodes)
        column = _piece(self._contexts, context_tokens)
        left, right = self._contexts[column], self._contexts[column + 1]
        low, high = self._batches[row], self._batches[row + 1]
        ends = [
            max(1, first + (second - first) * (decodes - low) // (high - low))
            for first, second in (
                (self._decode_ps[row][place], self._decode_ps[row + 1][place])
                for place in (column, column + 1)
            )
        ]
        slope = max(0, ends[1] - ends[0]) // (right - left)
        last = column == len(self._contexts) - 2
        return Line(ends[0] - slope * left, slope, NEVER_PS if last else right - 1)

    def mixed_step_ps(self, batch: Batch) -> int:
        one_ps = self._prompt_ps(1)
        step_ps = one_ps
        if batch.decodes:
            line = self.decode_line(batch.decodes, batch.context_tokens)
            step_ps = line.base_ps + line.slope_ps * batch.context_tokens
        return step_ps + max(0, self._prompt_ps(batch.prefill_tokens) - one_ps)

    def _prompt_ps(self, tokens: int) -> int:
        place = _piece(self._prompts, tokens)
        left, right = self._prompts[place], self._prompts[place + 1]
        first, second = self._prefill_ps[place], self._prefill_ps[place + 1]
        return max(1, first + (second - first) * (tokens - left) // (right - left))


def _piece(axis: Sequence[int], value: int) -> int:
    """The piece of the grid on which ``value`` lies, or the one next to it."""
    return min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
