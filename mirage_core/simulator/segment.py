"""Consecutive steps of one engine, each longer than the one before by the same time."""

from __future__ import annotations

from math import isqrt

from mirage_core.simulator.step_time import Line, Stretch


class Segment:
    """Steps under way: the first takes ``first_ps``, each further one ``growth_ps`` more.

    ``decodes`` requests compute a token in each; ``prefill_tokens`` of prompts only where there
    is one step.  ``seen`` is what the log says of its start (``StepLog`` from ``running`` on).
    """

    __slots__ = (
        "decodes",
        "first_ps",
        "growth_ps",
        "prefill_tokens",
        "seen",
        "start_ps",
        "steps",
    )

    def __init__(
        self,
        start_ps: int,
        first_ps: int,
        growth_ps: int,
        steps: int,
        decodes: int,
        prefill_tokens: int,
        seen: tuple[int, ...],
    ) -> None:
        self.start_ps = start_ps
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self.steps = steps
        self.decodes = decodes
        self.prefill_tokens = prefill_tokens
        self.seen = seen

    def end_ps(self, steps: int) -> int:
        """When the first ``steps`` steps are done."""
        return self.start_ps + steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)

    def steps_to(self, time_ps: int) -> int:
        """The fewest steps, one at least and all at most, that end at ``time_ps`` or after."""
        if self.steps == 1 or time_ps >= self.end_ps(self.steps):
            return self.steps
        return max(1, fewest_steps(self.first_ps, self.growth_ps, time_ps - self.start_ps))


def fewest_steps(first_ps: int, growth_ps: int, span_ps: int) -> int:
    """The least k >= 0 with k*first + growth*k(k-1)/2 >= span."""
    if span_ps <= 0:
        return 0
    if growth_ps == 0:
        return -(-span_ps // first_ps)
    # growth*k^2 + (2*first - growth)*k - 2*span = 0, its root rounded down and put right.
    linear = 2 * first_ps - growth_ps
    steps = (isqrt(linear * linear + 8 * growth_ps * span_ps) - linear) // (2 * growth_ps)
    while steps * first_ps + growth_ps * (steps * (steps - 1) // 2) < span_ps:
        steps += 1
    return steps


def decode_line(plain: Line, slow_1024ths: int, stretch: Stretch | None, context: int) -> Line:
    """The line on which a step over ``context`` tokens lies on a shared device, with streaming."""
    if slow_1024ths != 1024:
        plain = Line(
            plain.base_ps * slow_1024ths >> 10,
            plain.slope_ps * slow_1024ths >> 10,
            plain.until_tokens,
        )
    if stretch is None:
        return plain
    waits = stretch.line(plain)
    lead = plain.base_ps - waits.base_ps + (plain.slope_ps - waits.slope_ps) * context
    upper, lower = (plain, waits) if lead >= 0 else (waits, plain)
    if lower.slope_ps <= upper.slope_ps:
        return upper
    crossing = (upper.base_ps - lower.base_ps) // (lower.slope_ps - upper.slope_ps)
    return Line(upper.base_ps, upper.slope_ps, min(upper.until_tokens, crossing))
