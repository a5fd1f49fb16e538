"""What an agent reports of its device: values of the arbiter as the cluster sees them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_core.cluster_model import (
    DeviceObservation,
    EngineObservation,
    Explanation,
    MoveChosen,
    ObservationDelta,
    RuleTried,
)
from mirage_core.control.arbiter_events import Explain
from mirage_core.control.device_summary import DeviceSummary, EngineSummary
from mirage_core.model import DeviceId, EngineId, ModelName
from mirage_core.policy.decision import ApplyPlan, ReclaimPool
from mirage_core.wire.messages import Report

MAX_WHY_CHARS = 1000


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device now.  An engine's measures are None until it has reported them."""

    free_pages: int
    coming_pages: int
    engines: tuple[EngineObservation, ...]


def report_of(summary: DeviceSummary, said: Mapping[EngineId, Report]) -> DeviceReport:
    """``said``: the latest report of each engine that has sent one."""
    return DeviceReport(
        summary.free_pages,
        summary.coming_pages,
        tuple(_observe(engine, said.get(engine.engine)) for engine in summary.engines),
    )


def _observe(engine: EngineSummary, said: Report | None) -> EngineObservation:
    return EngineObservation(
        engine=engine.engine,
        model=engine.model,
        resident_pages=engine.resident_pages,
        slot_pages=engine.slot_pages,
        pool_pages=engine.pool_pages,
        spare_pages=engine.spare_pages,
        in_flight_pages=engine.in_flight_pages,
        waiting_pages=engine.waiting_pages,
        active=engine.active if said is not None else None,
        priority=engine.priority,
        pinned=engine.pinned,
        units=engine.units,
        cycled_units=engine.cycled_units if engine.units is not None else None,
        unit_pages=engine.unit_pages,
        lent_pages=engine.lent_pages,
        free_kv_tokens=said.free_kv_tokens if said is not None else None,
        running_requests=said.running_requests if said is not None else None,
        waiting_requests=said.waiting_requests if said is not None else None,
        preemptions=said.preemptions if said is not None else None,
    )


class Reporter:
    """The reports of one session: a snapshot, then what changed since the report before."""

    def __init__(self) -> None:
        self._sequence = 0
        self._last: dict[EngineId, EngineObservation] | None = None

    def restart(self) -> None:
        """The other side misses a report: let the next one be a snapshot."""
        self._last = None

    def next(self, report: DeviceReport) -> DeviceObservation | ObservationDelta:
        last, self._last = self._last, {each.engine: each for each in report.engines}
        self._sequence += 1
        if last is None:
            return DeviceObservation(
                self._sequence, report.free_pages, report.coming_pages, report.engines
            )
        return ObservationDelta(
            self._sequence,
            report.free_pages,
            report.coming_pages,
            tuple(each for each in report.engines if last.get(each.engine) != each),
            tuple(engine for engine in last if engine not in self._last),
        )


def explanation_of(
    explain: Explain, device: DeviceId, number: int, at_unix_s: float
) -> Explanation:
    """A decision of the arbiter in words that reach beyond its device."""
    models = {each.engine: each.model for each in explain.inputs}
    decision = explain.decision
    borrower = models.get(explain.engine) if explain.engine is not None else None
    return Explanation(
        device=device,
        number=number,
        at_unix_s=at_unix_s,
        effect=explain.effect,
        borrower=borrower,
        short_pages=decision.short_pages,
        free_pages=explain.free_pages,
        inputs=explain.inputs,
        rules=tuple(
            RuleTried(
                rule=each.rule,
                engine=each.engine,
                asked_pages=each.asked_pages,
                given_pages=each.given_pages,
                why=each.why[:MAX_WHY_CHARS],
            )
            for each in decision.reasons
        ),
        moves=tuple(
            _move(action, models)
            for action in decision.actions
            if isinstance(action, ReclaimPool | ApplyPlan)
        ),
    )


def _move(action: ReclaimPool | ApplyPlan, models: Mapping[EngineId, ModelName]) -> MoveChosen:
    model = models.get(action.engine, ModelName(action.engine))
    if isinstance(action, ReclaimPool):
        return MoveChosen(action.engine, model, "shrink the pool", action.pages)
    verb = "remap" if action.freed_pages > 0 else "restore"
    return MoveChosen(action.engine, model, verb, action.freed_pages)
