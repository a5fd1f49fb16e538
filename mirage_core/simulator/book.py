"""Where a run writes what happened: a row a request, a flat log of steps, counters."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from mirage_core.simulator.request import Requests
from mirage_core.simulator.results import Results, Status, StepLog

STEP_COLUMNS = tuple(StepLog.__dataclass_fields__)


class Book:
    """Arrays, because writing one entry of an array is what a hot loop can afford."""

    def __init__(self, requests: Requests, *, record_steps: bool) -> None:
        rows = len(requests)
        self.requests = requests
        self.arrival_ps = array("q", requests.arrival_ps.tobytes())
        self.first_token_ps = array("q", [-1]) * rows
        self.finish_ps = array("q", [-1]) * rows
        self.engine = array("q", [-1]) * rows
        self.preemptions = array("q", [0]) * rows
        self.status = array("q", [Status.WAITING]) * rows
        self.late_gaps_ps = array("q")
        self.late_gap_request = array("q")
        self.steps: array[int] | None = array("q") if record_steps else None
        self.counters: Counter[str] = Counter()
        self.finished = 0
        self.generated_tokens = 0

    def results(self, end_ps: int) -> Results:
        log = None
        if self.steps is not None:
            flat = np.frombuffer(self.steps, dtype=np.int64).reshape(-1, len(STEP_COLUMNS))
            log = StepLog(*flat.T.copy())
        self.counters["generated_tokens"] = self.generated_tokens

        def column(values: array[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.frombuffer(values, dtype=np.int64).copy()

        return Results(
            requests=self.requests,
            arrival_ps=column(self.arrival_ps),
            first_token_ps=column(self.first_token_ps),
            finish_ps=column(self.finish_ps),
            engine=column(self.engine),
            preemptions=column(self.preemptions),
            status=column(self.status),
            end_ps=end_ps,
            late_gaps_ps=column(self.late_gaps_ps),
            late_gap_request=column(self.late_gap_request),
            steps=log,
            counters=dict(self.counters),
        )
