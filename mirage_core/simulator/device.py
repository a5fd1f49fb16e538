"""One device: whose step runs when, for engines that take turns or run side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mirage_core.simulator.config import DeviceSpec, Sharing
from mirage_core.simulator.engine import Engine
from mirage_core.simulator.live import Live
from mirage_core.simulator.units import NEVER_PS, to_ps


class Events(Protocol):
    """What a device needs of the event loop."""

    def at_boundary(self, time_ps: int, engine: Engine) -> None:
        """Call the device's ``boundary`` for ``engine`` then; the time given before is off."""
        ...

    def call_at(self, time_ps: int, call: Callable[[], None]) -> None: ...


class Device:
    """Temporal sharing: one engine runs; its turn ends when it has nothing that can run, or after
    the quantum as soon as others wait.  Spatial sharing: all run, each slowed by the others.

    An engine's steps under way end early, at a step's boundary, when something happens that the
    next step should know of.
    """

    def __init__(self, spec: DeviceSpec, engines: list[Engine], events: Events) -> None:
        self.spec = spec
        self.engines = engines
        self.up = True
        self._events = events
        self._temporal = spec.sharing is Sharing.TEMPORAL and len(engines) > 1
        self._quantum_ps = NEVER_PS if spec.quantum_s is None else to_ps(spec.quantum_s)
        self._switch_ps = to_ps(spec.switch_s)
        self._place = {engine.index: place for place, engine in enumerate(engines)}
        self._turn = 0
        self._turn_end_ps = NEVER_PS
        self._recheck_ps = NEVER_PS
        for engine in engines:
            engine.on_turn = not self._temporal

    # ---- events

    def receive(self, engine: Engine, request: Live, now_ps: int) -> None:
        """A request came for one of the engines."""
        indifferent = engine.segment is not None and engine.indifferent
        engine.receive(request)
        if engine.segment is not None:
            if not indifferent:
                self._cut(engine, now_ps)
        elif not self._temporal or (runs := self._running()) is None:
            # Not at once: all that comes at one moment is seen by one step.
            self._events.at_boundary(now_ps, engine)
        elif self._quantum_ps != NEVER_PS:
            self._cut(runs, max(now_ps, self._turn_end_ps))

    def woken(self, engine: Engine, now_ps: int) -> None:
        """The engine's port has something to say."""
        if not self.up:
            return
        engine.wake()
        if engine.segment is not None:
            self._cut(engine, now_ps)
        else:
            self._events.at_boundary(now_ps, engine)

    def boundary(self, engine: Engine, now_ps: int) -> None:
        """The engine's steps under way are done, or it may begin some."""
        ran = engine.segment is not None
        if ran:
            engine.commit()
        if not self._temporal:
            self._run_beside(engine, now_ps, ran)
            return
        if not ran:
            engine.ask(now_ps)
        if self._running() is None:
            self._run_turn(now_ps)

    def fail(self, now_ps: int) -> list[tuple[Engine, list[Live]]]:
        """The device is lost; returns the requests that were on it, by engine."""
        self.up = False
        return [(engine, engine.drop_all(now_ps)) for engine in self.engines]

    def recover(self) -> None:
        self.up = True

    # ---- spatial sharing, and a device of one engine

    def _run_beside(self, engine: Engine, now_ps: int, ran: bool) -> None:
        """Begin the engine's next step if it has one; ``ran``: its last one ends now."""
        busy = sum(other.segment is not None for other in self.engines if other is not engine)
        slow = 1024 + int(1024 * busy * (1.0 - self.spec.spatial_overlap))
        runs = engine.plan(now_ps, NEVER_PS, slow)
        if runs:
            self._begin(engine)
        elif engine.unfinished:
            self._recheck(engine.recheck_ps, now_ps)
        if runs != ran:
            for other in self.engines:
                if other is not engine and other.segment is not None:
                    self._cut(other, now_ps)

    # ---- temporal sharing

    def _running(self) -> Engine | None:
        engine = self.engines[self._turn]
        return engine if engine.segment is not None else None

    def _run_turn(self, now_ps: int) -> None:
        """Begin the next step: of the engine whose turn it is, or of the next one that can."""
        engines, turn = self.engines, self._turn
        order = [*engines[turn:], *engines[:turn]]
        expired = now_ps >= self._turn_end_ps and any(e.unfinished for e in order[1:])
        if expired:
            order = [*order[1:], order[0]]
        for engine in order:
            if not engine.unfinished:
                if engine.on_turn:
                    self._end_turn(engine, now_ps)
                continue
            start_ps = now_ps
            if expired or not engine.on_turn:
                start_ps = self._begin_turn(engine, now_ps)
            others = any(other.unfinished for other in engines if other is not engine)
            until_ps = self._turn_end_ps if others else NEVER_PS
            if engine.plan(start_ps, until_ps):
                self._begin(engine)
                return
            self._recheck(engine.recheck_ps, now_ps)

    def _begin_turn(self, engine: Engine, now_ps: int) -> int:
        """It is the engine's turn from now on; returns when its step can begin."""
        place = self._place[engine.index]
        switch_ps = self._switch_ps if place != self._turn else 0
        for other in self.engines:
            if other.on_turn and other is not engine:
                self._end_turn(other, now_ps)
        self._turn = place
        engine.begin_turn()
        self._turn_end_ps = min(NEVER_PS, now_ps + switch_ps + self._quantum_ps)
        return now_ps + switch_ps

    def _end_turn(self, engine: Engine, now_ps: int) -> None:
        engine.end_turn()
        engine.ask(now_ps)

    # ---- both

    def _begin(self, engine: Engine) -> None:
        segment = engine.segment
        assert segment is not None
        self._events.at_boundary(segment.end_ps(segment.steps), engine)

    def _cut(self, engine: Engine, at_ps: int) -> None:
        """The steps under way end at the first boundary from ``at_ps`` on."""
        segment = engine.segment
        assert segment is not None
        steps = segment.steps_to(at_ps)
        if steps < segment.steps:
            segment.steps = steps
            self._events.at_boundary(segment.end_ps(steps), engine)

    def _recheck(self, time_ps: int, now_ps: int) -> None:
        """An engine's requests do not fit: look again later."""
        if time_ps >= NEVER_PS or now_ps < self._recheck_ps <= time_ps:
            return
        self._recheck_ps = time_ps = max(time_ps, now_ps + 1)

        def look() -> None:
            if not self.up or self._recheck_ps != time_ps:
                return
            self._recheck_ps = NEVER_PS
            for engine in self.engines:
                if engine.unfinished and engine.segment is None:
                    self.woken(engine, time_ps)

        self._events.call_at(time_ps, look)
