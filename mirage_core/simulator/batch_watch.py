"""What a port can measure of its engine's steps, so that jumping and stepping measure the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from mirage_core.policy.when import Demand
from mirage_core.simulator.memory_port import EngineView
from mirage_core.simulator.step_time import StepTime
from mirage_core.simulator.units import PS_PER_S


class BatchWatch:
    """Time of a decode step of the present batch, with nothing to wait for.

    It follows the batch: it changes when requests come, go, are preempted or compute their prompt,
    and not as those that run grow.  So every boundary between two such events sees the same.
    """

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self._composition = (-1, -1, -1)
        self.measured = False
        """There was a batch."""
        self.plain_s = self._decode_s(1, 1)
        """Of the last batch there was; before, of one request."""

    def observe(self, view: EngineView, running: Sequence[Demand] | None = None) -> bool:
        """Look at a step boundary; whether the batch is another one.

        ``running`` are the demands of the requests that run, if the caller has them.
        """
        composition = (view.running, view.waiting, view.preemptions)
        changed = composition != self._composition or view.batch.prefills > 0
        self._composition = composition
        if changed and view.running and view.active:
            if running is None:
                running = list(islice(view.demands(), view.running))
            context = sum(demand.held_tokens for demand in running) + len(running)
            self.plain_s = self._decode_s(len(running), context)
            self.measured = True
        return changed

    def _decode_s(self, decodes: int, context_tokens: int) -> float:
        line = self._step_time.decode_line(decodes, context_tokens)
        return (line.base_ps + line.slope_ps * context_tokens) / PS_PER_S
