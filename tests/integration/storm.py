"""A storm: an engine that changes its plan and its pool at random before every step.

It stands where the agent does: what the engine releases it keeps, and grants again at random.
It begins with the first request whose id says so, so that one engine first answers in calm and
then again in the storm (DESIGN §8.5).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from mirage_core.control.operations import Inspect, Operation, WorkerReport
from mirage_core.engines.vllm.elastic import ElasticMemory
from mirage_core.engines.vllm.scheduler import MirageScheduler
from mirage_core.model import PageId, RemapPlan, UnitId

REPORT = "MIRAGE_STORM_REPORT"
"""Environment variable: the file that the storm counts into."""


class StormMemory(ElasticMemory):
    """Plays the agent, without mercy."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._random = random.Random(7)
        self._kept: list[PageId] = []
        self._operation = 0
        self.counts: Counter[str] = Counter()
        self.raging = False

    def _send(self, message: Any) -> None:
        pages = getattr(message, "pages", None)
        if isinstance(pages, tuple):
            self._kept.extend(pages)
        self.counts[type(message).__name__] += 1

    def before_step(self, now_s: float) -> tuple[Operation, ...]:
        self.raging = self.raging or any(
            request.max_tokens and request.sampling_params.extra_args
            for request in self._scheduler.requests.values()
        )
        if self.raging:
            self._rage(now_s)
        operations = super().before_step(now_s)
        self.check()
        return (*operations, Inspect()) if operations else ()

    def after_step(self, report: WorkerReport) -> None:
        inspected = [o for o in report.outcomes if isinstance(o.operation, Inspect)]
        others = tuple(o for o in report.outcomes if not isinstance(o.operation, Inspect))
        for outcome in inspected:
            assert outcome.holdings is not None
            pages = (*outcome.holdings.all(), *self._kept)
            assert len(pages) == len(set(pages)), "a page has two owners"
        object.__setattr__(report, "outcomes", others)
        super().after_step(report)
        self.check()
        self.counts["remaps"] = self.remapper.counters.remaps
        self.counts["reversions"] = self.remapper.counters.reversions
        self.counts["growths"] = self.remapper.counters.granules_mapped
        self.counts["shrinks"] = self.remapper.counters.granules_unmapped
        self.counts["preemptions"] = self.preemptions
        self.counts["inspections"] += len(inspected)
        self.counts["fetches"] = report.fetch.fetches
        target = Path(os.environ[REPORT])
        target.with_suffix(".new").write_text(json.dumps(self.counts))
        target.with_suffix(".new").rename(target)

    def _needed_granules(self) -> int:
        needed = super()._needed_granules()
        return self._random.randint(1, 2 * needed) if self.raging else needed

    def _rage(self, now_s: float) -> None:
        choose = self._random
        if self._kept and choose.random() < 0.5:
            count = choose.randint(1, len(self._kept))
            granted, self._kept = tuple(self._kept[:count]), self._kept[count:]
            self._perform(self.remapper.on_granted(0, granted))
        if choose.random() < 0.9:
            self._operation += 1
            plan = self._random_plan()
            pages = self._facts.unit_pages
            missing = max(0, plan.pages(pages) - self.remapper.plan.pages(pages))
            if missing <= len(self._kept):
                granted, self._kept = tuple(self._kept[:missing]), self._kept[missing:]
                self._perform(self.remapper.on_apply_plan(self._operation, plan, granted))
        if choose.random() < 0.3:
            self._operation += 1
            pages_wanted = self._geometry.granule_pages * choose.randint(1, 3)
            deadline_s = now_s + choose.choice([0.0, 0.01, 1.0])
            self._perform(
                self.remapper.on_shrink(self._operation, pages_wanted, deadline_s, self._view())
            )

    def _random_plan(self) -> RemapPlan:
        units = len(self._facts.unit_pages)
        slots = self._random.randint(0, min(3, units // 2))
        if slots == 0:
            return RemapPlan()
        cycled = self._random.sample(range(units), self._random.randint(2 * slots, units))
        cuts = [cycled[s::slots] for s in range(slots)]
        return RemapPlan(tuple(tuple(UnitId(u) for u in sorted(cut)) for cut in cuts))


class StormScheduler(MirageScheduler):
    memory_class = StormMemory
