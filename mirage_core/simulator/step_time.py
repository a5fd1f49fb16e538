"""How long a step takes: the protocol between an engine and its step-time model.

The trap is that a thousand decode steps, taken one by one or all at once, must end at the very
same moment.  So a decode step's time is, piece by piece, a *line* in the context that it reads,
with integer coefficients: the sum of an arithmetic series of integers is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Line(NamedTuple):
    """Time of a decode step over ``context_tokens`` of KV cache in all, up to ``until_tokens``.

    ``base_ps + slope_ps * context_tokens``; the batch is given.
    """

    base_ps: int
    slope_ps: int
    until_tokens: int


class Batch(NamedTuple):
    """What one step computes.

    decodes          requests that compute one token each
    context_tokens   KV tokens that these read: their lengths after the step, added up
    prefills         requests that compute a part of their prompt
    prefill_tokens   tokens of these parts
    prefill_pairs    (query, key) pairs of their attention: for a part from p to q, sum of p+1 .. q
    prefill_context  KV tokens that these parts read: their lengths after the step, added up
    """

    decodes: int
    context_tokens: int
    prefills: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context: int = 0


class StepTime(Protocol):
    """Step times of one model on one device with the device to itself and all weights resident."""

    def decode_line(self, decodes: int, context_tokens: int) -> Line:
        """The line on which steps of ``decodes`` requests at ``context_tokens`` lie."""
        ...

    def mixed_step_ps(self, batch: Batch) -> int:
        """Time of a step with a prefill in it."""
        ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """What memory management makes of a step: weights or KV cache that must arrive for it.

    The step takes max(plain, base_ps + per_context_ps * context_tokens
    + plain * plain_1024ths / 1024), ``plain`` being its time with nothing to wait for and
    ``context_tokens`` all KV tokens that it reads.  A link that streams m weights in T beside the
    computation has base_ps = T; a part of the KV cache that streams has a slope (and a negative
    base for the part that does not); what cannot overlap has plain_1024ths = 1024.
    """

    base_ps: int = 0
    per_context_ps: int = 0
    plain_1024ths: int = 0

    def line(self, plain: Line) -> Line:
        """The stretched side of the max, as a line again."""
        share = self.plain_1024ths
        return Line(
            self.base_ps + (plain.base_ps * share >> 10),
            self.per_context_ps + (plain.slope_ps * share >> 10),
            plain.until_tokens,
        )

    def step_ps(self, plain_ps: int, context_tokens: int) -> int:
        waited_ps = (
            self.base_ps
            + self.per_context_ps * context_tokens
            + (plain_ps * self.plain_1024ths >> 10)
        )
        return max(plain_ps, waited_ps)
