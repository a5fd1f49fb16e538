"""A trace: arrivals and lengths; and the three ways to give it another rate.

compress    the same requests in less time: keeps the CV of the gaps and every burst's size,
            shortens bursts and pauses alike (what the paper and its predecessors do)
thin        a seeded share of the requests at their own times: keeps the clock, weakens bursts
superpose   several copies from seeded places of the trace at once: keeps the clock, and
            averages bursts away as copies grow
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.quantiles import Floats, GapSource, LengthSource

Tokens = npt.NDArray[np.int64]


class Scaling(Enum):
    """How a trace is brought to a rate."""

    COMPRESS = "compress"
    THIN = "thin"
    SUPERPOSE = "superpose"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests of one stream, in order of arrival: three arrays of equal length.

    arrivals_s     from the stream's start, ascending
    prompt_tokens  1 or more
    output_tokens  1 or more
    """

    arrivals_s: Floats
    prompt_tokens: Tokens
    output_tokens: Tokens

    def __post_init__(self) -> None:
        if not len(self.arrivals_s) == len(self.prompt_tokens) == len(self.output_tokens):
            raise ConfigError("a trace needs as many lengths as arrivals")
        if len(self) and (self.arrivals_s[0] < 0 or (np.diff(self.arrivals_s) < 0).any()):
            raise ConfigError("a trace's arrivals must not be negative, and in order")
        if len(self) and min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ConfigError("a request has one prompt token and one output token at least")

    def __len__(self) -> int:
        return len(self.arrivals_s)

    @property
    def rate_per_s(self) -> float:
        """Requests a second from the start to the last arrival; 0 without a span."""
        return len(self) / float(self.arrivals_s[-1]) if len(self) and self.arrivals_s[-1] else 0.0

    def until(self, horizon_s: float) -> Trace:
        """The requests that arrive before ``horizon_s``."""
        return self._only(self.arrivals_s < horizon_s)

    def within(self, longest_tokens: int) -> Trace:
        """Without requests whose prompt and output together exceed ``longest_tokens``.

        What a server that refuses them would serve; how many are left out is for the caller to
        say (38 % of Azure's code trace exceed OPT's 2,048).
        """
        return self._only(self.prompt_tokens + self.output_tokens <= longest_tokens)

    def with_lengths(self, lengths: LengthSource, longest_tokens: int, seed: int) -> Trace:
        """The same arrivals with drawn lengths, cut so that none exceeds ``longest_tokens``."""
        prompts, outputs = draw_lengths(lengths, len(self), longest_tokens, seed)
        return replace(self, prompt_tokens=prompts, output_tokens=outputs)

    def _only(self, chosen: npt.NDArray[np.bool_]) -> Trace:
        return Trace(
            self.arrivals_s[chosen], self.prompt_tokens[chosen], self.output_tokens[chosen]
        )


def scale(trace: Trace, rate_per_s: float, method: Scaling, seed: int) -> Trace:
    """``trace`` at ``rate_per_s`` on average, by ``method``; raises ConfigError if it cannot."""
    if not len(trace) or not trace.rate_per_s:
        raise ConfigError("a trace without a span of time has no rate to scale")
    if not 0 < rate_per_s < math.inf:
        raise ConfigError(f"a rate must be above 0 requests a second, not {rate_per_s:g}")
    factor = rate_per_s / trace.rate_per_s
    if method is Scaling.COMPRESS:
        return replace(trace, arrivals_s=trace.arrivals_s / factor)
    rng = np.random.default_rng(seed)
    if method is Scaling.THIN:
        if factor > 1:
            raise ConfigError(
                f"thinning lowers a rate: {rate_per_s:g}/s is above the trace's "
                f"{trace.rate_per_s:g}/s; compress or superpose it"
            )
        return trace._only(rng.random(len(trace)) < factor)
    copies = max(1, round(factor))
    if abs(factor - copies) > 0.01 * factor:
        raise ConfigError(
            f"superposition gives whole multiples of the trace's {trace.rate_per_s:g}/s, "
            f"not {rate_per_s:g}/s; compress it, or choose a multiple"
        )
    return superpose(trace, copies, rng)


def superpose(trace: Trace, copies: int, rng: np.random.Generator) -> Trace:
    """``copies`` of ``trace`` at once, each begun at a random place and wrapping round."""
    span_s = float(trace.arrivals_s[-1])
    shifts_s = rng.random(copies) * span_s
    arrivals_s = np.concatenate([(trace.arrivals_s + shift_s) % span_s for shift_s in shifts_s])
    order = np.argsort(arrivals_s, kind="stable")
    return Trace(
        arrivals_s[order],
        np.tile(trace.prompt_tokens, copies)[order],
        np.tile(trace.output_tokens, copies)[order],
    )


def generate(
    gaps: GapSource,
    lengths: LengthSource,
    rate_per_s: float,
    horizon_s: float,
    longest_tokens: int,
    seed: int,
) -> Trace:
    """A trace of exactly ``rate_per_s`` over ``horizon_s``: gaps drawn, then compressed in time."""
    count = round(rate_per_s * horizon_s)
    if count < 1:
        raise ConfigError(f"{rate_per_s:g} requests a second give none in {horizon_s:g} s")
    rng = np.random.default_rng([seed, 0])
    times_s = np.concatenate([[0.0], np.cumsum(gaps.sample(count, rng))])
    prompts, outputs = draw_lengths(lengths, count, longest_tokens, seed)
    return Trace(times_s[:-1] / times_s[-1] * horizon_s, prompts, outputs)


def draw_lengths(
    lengths: LengthSource, count: int, longest_tokens: int, seed: int
) -> tuple[Tokens, Tokens]:
    """Whole tokens; a prompt leaves room for one output token, outputs are cut at the longest."""
    if longest_tokens < 2:
        raise ConfigError("longest_tokens must be 2 or more: a prompt token and an output token")
    prompts, outputs = lengths.sample(count, np.random.default_rng([seed, 1]))
    prompt_tokens = np.clip(np.rint(prompts), 1, longest_tokens - 1).astype(np.int64)
    output_tokens = np.clip(np.rint(outputs), 1, longest_tokens - prompt_tokens).astype(np.int64)
    return prompt_tokens, output_tokens
