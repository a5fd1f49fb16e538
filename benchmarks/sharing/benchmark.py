"""The order of a run.

1. Stock on its first split: measure saturation, which sets the loads.
2. Stock on every split under the highest load; the best split stands for stock.
3. Every arm under every load, the same requests for all arms of a load.
4. No pressure: stock and MIRAGE in turns, with so few requests at once that no pool fills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.sharing.arms import Arm, StockArm
from benchmarks.sharing.client import Done, closed_loop, replay
from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.figures import figures_of, saturation_tok_s
from benchmarks.sharing.record import write_record
from benchmarks.sharing.report import ArmResult, Result
from benchmarks.sharing.servers import Engine, Stage, settle
from benchmarks.sharing.timeline import read_timeline
from benchmarks.sharing.workload import Request, WorkloadSpec, generate
from mirage_core.simulator.workloads.statistics import burstiness

_FILL_SHARE = 0.25
"""of the time of measuring saturation: the pools fill first, which is faster and not counted"""
_WARM_REQUESTS = 4
_CALM_ROUNDS = 4
_CALM_CONCURRENCY = 2
_CALM_REQUESTS = 8


class Progress(Protocol):
    """Tells a person how far a run is."""

    def starting(self, what: str) -> None:
        """Processes start, which takes a while and reports nothing."""
        ...

    def running(self, what: str, requests: int) -> Done:
        """A run begins; the result is called for each request that is done."""
        ...


class Benchmark:
    """One run of the benchmark; ``result`` fills as it goes.

    Use as ``async with Benchmark(...) as benchmark``: leaving ends every process.
    """

    def __init__(
        self, conditions: Conditions, folder: Path, progress: Progress, repeats: int = 1
    ) -> None:
        """``folder``: for logs, and for the raw timeline of every run (``record``)."""
        self.result = Result(conditions)
        self._conditions = conditions
        self._log_folder = folder / "logs"
        self._run_folder = folder / "runs"
        self._progress = progress
        self._repeats = repeats
        self._stage = Stage()

    async def __aenter__(self) -> Benchmark:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stage.clear()

    async def measure(self, others: Sequence[Arm]) -> None:
        """Stock, then ``others``, under all loads.

        Raises ServerError if a process does not start or ends during a run.
        """
        requests = await self._measure_stock()
        for arm in others:
            for load in self._conditions.loads:
                self._add(load, await self._measure_arm(arm, load, requests[load]))

    async def measure_calm(self, arm: Arm) -> None:
        """Throughput of ``arm`` over stock's where memory is never short.

        Both run at once and take turns, so that what else the machine does meets both.
        """
        split = self.result.best_split if self.result.splits else self._conditions.splits[0]
        requests = self._calm_requests()
        arms = (StockArm(split), arm)
        spent_s = [0.0, 0.0]
        await self._stage.clear()
        async with AsyncExitStack() as stack:
            casts = []
            for each in arms:
                stage = await stack.enter_async_context(Stage())
                casts.append(await self._enter(stage, each))
            for turn in range(_CALM_ROUNDS):
                for i in (0, 1) if turn % 2 == 0 else (1, 0):
                    await settle(casts[i])
                    for model, mine in requests.items():
                        what = f"{arms[i].name}, no pressure, {model}"
                        done = self._progress.running(what, len(mine))
                        run = await closed_loop(
                            mine, _urls(casts[i]), self._limit_s, done, _CALM_CONCURRENCY
                        )
                        spent_s[i] += run.makespan_s
        self.result.no_pressure_ratio = spent_s[0] / spent_s[1]

    async def _measure_stock(self) -> dict[float, tuple[Request, ...]]:
        """Stock under all loads; returns the requests of each load."""
        conditions = self._conditions
        top = self.result.top_load
        await self._measure_saturation(StockArm(conditions.splits[0]))
        requests = {load: self._requests(load) for load in conditions.loads}
        at_top: dict[float, ArmResult] = {}
        for split in conditions.splits:
            at_top[split] = await self._measure_arm(StockArm(split), top, requests[top])
            self.result.splits[split] = at_top[split].figures
        best = self.result.best_split
        for load in conditions.loads[:-1]:
            self._add(load, await self._measure_arm(StockArm(best), load, requests[load]))
        self._add(top, at_top[best])
        return requests

    async def _measure_saturation(self, arm: Arm) -> None:
        """Tokens a second of each model while both have more requests than they can take."""
        engines = await self._enter(self._stage, arm)
        spec = self._workload(seed_offset=1)
        # More than any CPU serves in the time; only as many are sent as the engines take.
        plenty = generate(spec, dict.fromkeys(engines, 5000.0))
        done = self._progress.running(f"{arm.name}, saturation", len(plenty))
        crowd = 2 * self._conditions.max_num_seqs
        until_s = self._conditions.saturation_s
        run = await closed_loop(plenty, _urls(engines), until_s, done, crowd)
        self._stage.require_running()
        self.result.saturation_tok_s = saturation_tok_s(
            run.outcomes, _FILL_SHARE * until_s, until_s
        )

    async def _measure_arm(self, arm: Arm, load: float, requests: Sequence[Request]) -> ArmResult:
        """All repeats, each recorded; the result is the last one's."""
        for repeat in range(1, self._repeats + 1):
            result = await self._measure_once(arm, load, requests, repeat)
        return result

    async def _measure_once(
        self, arm: Arm, load: float, requests: Sequence[Request], repeat: int
    ) -> ArmResult:
        engines = await self._enter(self._stage, arm)
        before = await arm.counters(engines)
        which = f", {repeat} of {self._repeats}" if self._repeats > 1 else ""
        done = self._progress.running(f"{arm.name}, {load:g}x{which}", len(requests))
        run = await replay(requests, _urls(engines), self._limit_s, done)
        self._stage.require_running()
        await settle(engines)
        after = await arm.counters(engines)
        counted = {name: after[name] - before[name] for name in after}
        write_record(self._run_folder, arm, self._conditions, load, run, counted)
        timeline = arm.setup(self._conditions).timeline
        samples = (
            read_timeline(timeline, run.started_s, run.started_s + run.makespan_s)
            if timeline
            else ()
        )
        return ArmResult(arm, run, figures_of(run, counted), samples)

    async def _enter(self, stage: Stage, arm: Arm) -> Mapping[str, Engine]:
        """The arm's engines: healthy, warm, idle, with nothing in their prefix caches."""
        setup = arm.setup(self._conditions)
        if not stage.plays(setup.before, setup.engines):
            self._progress.starting(f"{arm.name}: starting engines")
            engines = await stage.switch(setup.before, setup.engines, self._log_folder / arm.name)
            await self._warm(engines)
        engines = stage.engines
        await arm.enter(engines)
        await settle(engines)
        return engines

    async def _warm(self, engines: Mapping[str, Engine]) -> None:
        """The first requests meet kernels not yet loaded; let them not be measured."""
        spec = self._workload(seed_offset=2)
        for model, requests in _some(spec, engines, _WARM_REQUESTS).items():
            await replay(requests, {model: engines[model].url}, self._limit_s, lambda _: None)

    def _calm_requests(self) -> dict[str, tuple[Request, ...]]:
        """So short that those at once take at most half of the smallest pool."""
        short = self._conditions.max_model_len // (2 * _CALM_CONCURRENCY)
        spec = replace(self._workload(seed_offset=3), longest_tokens=short)
        return _some(spec, [model.name for model in self._conditions.models], _CALM_REQUESTS)

    def _requests(self, load: float) -> tuple[Request, ...]:
        spec = self._workload(seed_offset=0)
        offered = {name: load * rate for name, rate in self.result.saturation_tok_s.items()}
        requests = generate(spec, offered)
        arrivals_s = np.array([request.arrival_s for request in requests])
        self.result.offered[load] = {
            "requests": len(requests),
            "prompt_tokens": sum(len(request.prompt) for request in requests),
            "output_tokens": sum(request.output_tokens for request in requests),
            "offered_tok_s": offered,
            **burstiness(arrivals_s, (1.0,)),
        }
        return requests

    def _workload(self, seed_offset: int) -> WorkloadSpec:
        spec = self._conditions.workload()
        return replace(spec, seed=4 * spec.seed + seed_offset)

    def _add(self, load: float, result: ArmResult) -> None:
        self.result.loads.setdefault(load, []).append(result)

    @property
    def _limit_s(self) -> float:
        return self._conditions.limit_s


def _urls(engines: Mapping[str, Engine]) -> dict[str, str]:
    return {name: engine.url for name, engine in engines.items()}


def _some(
    spec: WorkloadSpec, models: Sequence[str] | Mapping[str, Engine], count: int
) -> dict[str, tuple[Request, ...]]:
    """``count`` requests of each model."""
    enough_tok_s = count * spec.longest_tokens / spec.horizon_s
    requests = generate(spec, dict.fromkeys(models, enough_tok_s))
    return {
        model: tuple(request for request in requests if request.model == model)[:count]
        for model in models
    }
