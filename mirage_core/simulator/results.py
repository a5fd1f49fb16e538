"""What a run gives: a row a request, a row a stretch of equal steps, and counters.

A *stretch of steps* (``StepLog`` row) is a run of consecutive steps of one engine whose times
grow by a constant; stepping every step logs one row a step, jumping one row for many, and
``StepLog.expanded`` gives the same steps for both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from mirage_core.simulator.request import Requests
from mirage_core.simulator.units import PS_PER_S

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Status(IntEnum):
    WAITING = 0
    """not finished when the run ended"""
    FINISHED = 1
    REJECTED = 2
    """longer than the model or any pool allows"""
    LOST = 3
    """no replica was left to serve it"""


@dataclass(frozen=True, slots=True)
class StepLog:
    """Columns, int64, in order of time for each engine.

    engine         index over all engines of the run, device by device
    start_ps       of the first step
    first_ps       how long the first step took
    growth_ps      how much longer each further one took
    steps          how many
    gap_ps         from the engine's last step's end to this first step's end: the time between
                   two tokens of a request that decoded in both (0 after an idle time)
    decodes        requests that computed one token in each step
    prefill_tokens prompt tokens computed (of the one step of such a row)
    running, waiting, used_blocks, capacity_blocks   at the first step
    preemptions    of the engine since the run's start, at the first step
    streamed_ps    what the link needs in each step for weights or KV cache that stream
    """

    engine: Ints
    start_ps: Ints
    first_ps: Ints
    growth_ps: Ints
    steps: Ints
    gap_ps: Ints
    decodes: Ints
    prefill_tokens: Ints
    running: Ints
    waiting: Ints
    used_blocks: Ints
    capacity_blocks: Ints
    preemptions: Ints
    streamed_ps: Ints

    def expanded(self) -> StepLog:
        """One row a step."""
        rows = np.repeat(np.arange(len(self.steps)), self.steps)
        firsts = np.cumsum(self.steps) - self.steps
        place = np.arange(len(rows)) - firsts[rows]
        first, growth = self.first_ps[rows], self.growth_ps[rows]
        took = first + growth * place
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self)}
        columns["start_ps"] = (
            self.start_ps[rows] + first * place + growth * (place * (place - 1) // 2)
        )
        columns["first_ps"] = took
        columns["growth_ps"] = np.zeros_like(took)
        columns["steps"] = np.ones_like(took)
        columns["gap_ps"] = np.where(place == 0, self.gap_ps[rows], took)
        return StepLog(**columns)


@dataclass(frozen=True, slots=True)
class Results:
    """Times in ps, -1 where it never came to that; columns in the order of ``requests``.

    arrival_ps     when it came (later than asked for in chains)
    engine         index over all engines of the run, -1: none
    preemptions    how often it was preempted
    late_gaps_ps, late_gap_request
                   gaps between two tokens of one request that are not a step's ``gap_ps``:
                   a preemption or a lost turn of the token budget lay between
    counters       named totals: steps, preemptions, computed_tokens, recomputed_tokens,
                   prefix_hit_tokens, generated_tokens ... and each port's own
    """

    requests: Requests
    arrival_ps: Ints
    first_token_ps: Ints
    finish_ps: Ints
    engine: Ints
    preemptions: Ints
    status: Ints
    end_ps: int
    late_gaps_ps: Ints
    late_gap_request: Ints
    steps: StepLog | None
    counters: dict[str, int]

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.status, Status.FINISHED)

    def ttft_s(self) -> Floats:
        """Seconds to the first token, of each request that had one."""
        had = self.first_token_ps >= 0
        return (self.first_token_ps[had] - self.arrival_ps[had]) / PS_PER_S

    def latency_s(self) -> Floats:
        done = self.finished
        return (self.finish_ps[done] - self.arrival_ps[done]) / PS_PER_S

    def mean_tbt_s(self) -> Floats:
        """Mean time between tokens of each finished request with two tokens or more."""
        done = self.finished & (self.requests.output_tokens > 1)
        spans = self.finish_ps[done] - self.first_token_ps[done]
        return spans / PS_PER_S / (self.requests.output_tokens[done] - 1)

    def tbt_samples_s(self) -> tuple[Floats, Ints]:
        """Every time between two tokens of a request: values and how often each occurred."""
        assert self.steps is not None, "the run kept no log of steps"
        steps = self.steps.expanded()
        decoding = steps.decodes > 0
        # `decodes` counts those whose last token was a late one too: they have a gap of their own.
        values = np.concatenate((steps.gap_ps[decoding], self.late_gaps_ps)) / PS_PER_S
        weights = np.concatenate((steps.decodes[decoding], np.ones_like(self.late_gaps_ps)))
        return values, weights

    def throughput_tokens_per_s(self) -> float:
        """Generated tokens a second from the first arrival to the end."""
        if not len(self.requests) or self.end_ps <= self.arrival_ps[0]:
            return 0.0
        span_s = (self.end_ps - int(self.arrival_ps.min())) / PS_PER_S
        return self.counters["generated_tokens"] / span_s


def weighted_quantile(values: Floats, weights: Ints, share: float) -> float:
    """The least value that at least ``share`` of the weight does not exceed; nan if none."""
    if not len(values):
        return float("nan")
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, share * reached[-1]))
    return float(values[order[min(place, len(order) - 1)]])
