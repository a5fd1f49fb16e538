"""One leader's term: from an election to its end.

The reconciler decides, this performs.  What it asks to be stored is stored in one fenced commit at
a time, repeated with the same request until its outcome is known; only then does the reconciler
hear of it, and only then do directives leave.  A term ends with the first sign that it is over:
its own clock, a refusal by the store, an agent that has heard a newer leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.controller.changes import Changes
from cluster.controller.fenced_writer import FencedWriter
from cluster.controller.mirror import Mirror, Seen
from cluster.controller.sessions import AgentSessions
from cluster.metrics import ControllerMetrics
from cluster.records import DEVICE, DIRECTIVE, MODEL, decode_directive, directive_name
from cluster.rpc.errors import not_leader
from cluster.store.port import Fence, Lineage, Position, RecordStore
from cluster.tracing import Tracing
from mirage_core.cluster_model import (
    AGENT_PROTOCOL_VERSION,
    AgentHello,
    Authority,
    DeviceObservation,
    Event,
    Explanation,
    LeaderWelcome,
    Severity,
    agreed_version,
)
from mirage_core.control import reconciler_events as ev
from mirage_core.control.reconciler import Reconciler
from mirage_core.control.reconciler_state import ReconcilerSettings
from mirage_core.errors import FencedError, HistoryLostError, ProtocolError
from mirage_core.model import DeviceId, ModelName
from mirage_core.ports import Clock
from mirage_core.wire import agent_codec, cluster_codec

_log = logging.getLogger("mirage.term")

TICK_S = 1.0
_EXPLANATIONS_KEPT = 16
"""Of each device; one takes some kilobytes."""
_EVENTS_WAITING = 10_000
_TRACES_KEPT = 4096
_FLUSHED_AT_ONCE = 20


class WallClock(Protocol):
    def unix_s(self) -> float:
        """For people only."""
        ...


@dataclass(frozen=True, slots=True)
class TermSettings:
    """holder  this process's life, under which it was elected"""

    holder: str
    leader_address: str
    heartbeat_s: float
    report_interval_s: float
    flush_s: float
    reconciler: ReconcilerSettings


class Term:
    """Made once the mirror has reached the election; ``run`` until it is over."""

    def __init__(
        self,
        store: RecordStore,
        fence: Fence,
        lineage: Lineage,
        mirror: Mirror,
        sessions: AgentSessions,
        changes: Changes,
        *,
        leads: Callable[[], bool],
        clock: Clock,
        wall: WallClock,
        settings: TermSettings,
        metrics: ControllerMetrics,
        tracing: Tracing,
    ) -> None:
        self._store = store
        self.fence = fence
        self._lineage = lineage
        self._sessions = sessions
        self._changes = changes
        self.leads = leads
        self._clock = clock
        self._wall = wall
        self._settings = settings
        self._metrics = metrics
        self._tracing = tracing
        self._commits: asyncio.Queue[ev.Commit] = asyncio.Queue()
        self._purges: asyncio.Queue[ev.Purge] = asyncio.Queue()
        self._events: deque[Event] = deque(maxlen=_EVENTS_WAITING)
        self._event_waits = asyncio.Event()
        self._over = asyncio.Event()
        self._writer = FencedWriter(
            store, fence, lineage.incarnation, settings.holder, metrics, self._end_if_over
        )
        self._flushed: dict[DeviceId, object] = {}
        self._traces: OrderedDict[str, str] = OrderedDict()
        self.explanations: dict[DeviceId, deque[Explanation]] = {}
        now_s = clock.monotonic_s()
        stored = []
        for record in mirror.directives.values():
            try:
                stored.append(decode_directive(record))
            except ProtocolError as error:
                _log.error("a stored directive cannot be read: %s", error)
        self.reconciler = Reconciler(
            lineage.incarnation, fence.epoch, stored, settings.reconciler, now_s
        )
        self.take_wishes(
            [
                Seen(kind, name, revised)
                for kind in mirror.wishes
                for name, revised in mirror.of(kind).items()
            ]
        )

    # ---- life

    async def run(self) -> None:
        """Until the term is over; never raises for that."""
        self._emit(ev.Emit("LeaderElected", "cluster", f"{self._settings.leader_address} leads"))
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._commit_forever(),
                self._purge_forever(),
                self._store_events_forever(),
                self._tick_forever(),
                self._flush_forever(),
                self._over.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if isinstance(error, FencedError | HistoryLostError):
                    _log.warning("the term is over: %s", error)
                elif error is not None:
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        self._over.set()

    def _end_if_over(self) -> None:
        if not self.leads():
            self.end()

    # ---- events in

    def handle(self, event: ev.Event) -> None:
        """Give the reconciler an event and do what it says."""
        if not self.leads():
            self.end()
            return
        for action in self.reconciler.handle(event, self._clock.monotonic_s()):
            self._perform(action)
        if isinstance(event, ev.Answered):
            self._observe_answer(event)

    def take_wishes(self, wishes: Sequence[Seen]) -> None:
        """Wishes as the mirror saw them change at once."""
        traces = {each: self._traces.pop(each, "") for each in {w.request_id for w in wishes}}
        left = len(wishes)
        for seen in wishes:
            left -= 1
            if seen.revised is not None:
                wish, revision = seen.revised.wish, seen.revised.revision
                self.handle(ev.Wished(wish, revision, traces[seen.request_id], more=left > 0))
            elif seen.kind == MODEL:
                self.handle(ev.Forgotten(ModelName(seen.name)))

    def note_trace(self, request_id: str, traceparent: str) -> None:
        """The trace of a write that is about to be committed."""
        if traceparent:
            self._traces[request_id] = traceparent
            if len(self._traces) > _TRACES_KEPT:
                self._traces.popitem(last=False)

    async def welcome(self, hello: AgentHello) -> LeaderWelcome:
        """Raises ApiError (not leader) if the agent has heard of a newer one."""
        latest, mine = hello.latest, self._lineage
        if latest is not None:
            if latest.store == mine.incarnation and latest.epoch > self.fence.epoch:
                self.end()
                raise not_leader("")
            lost = latest.store != mine.incarnation and latest.store not in mine.retired
            ahead = latest.store == mine.incarnation and latest.revision > self._seen_revision
            if lost or ahead:
                await self._declare_lost(hello.device, latest)
        return LeaderWelcome(
            Authority(self._lineage.incarnation, self.fence.epoch, self.reconciler.revision),
            self._settings.leader_address,
            self._settings.heartbeat_s,
            self._settings.report_interval_s,
            agreed_version(hello.protocol_version) or AGENT_PROTOCOL_VERSION,
            self._lineage.retired,
        )

    @property
    def _seen_revision(self) -> int:
        return max(self._changes.revision, self.reconciler.revision)

    async def _declare_lost(self, device: DeviceId, latest: Authority) -> None:
        """An agent has heard what this store does not know of.  Ask the store, which alone can
        tell, and take what it says; a new incarnation ends this term."""
        event = history_lost_event(
            f"device {device} has heard revision {latest.revision} of history {latest.store}",
            self._wall.unix_s(),
        )
        lineage = await self._store.declare_lost_history(
            Position(latest.store, latest.revision), event=event
        )
        if lineage.incarnation != self._lineage.incarnation:
            self.end()
            raise not_leader("")
        self._lineage = lineage

    def take_event(self, device: DeviceId, event: Event) -> None:
        """An agent's event, which is of its device or of a model, whatever it says."""
        mine = f"device/{device}"
        subject = event.subject if event.subject.startswith("model/") else mine
        self._add_event(replace(event, subject=subject, actor=mine, sequence=0))

    def take_explanation(self, explanation: Explanation) -> None:
        kept = self.explanations.get(explanation.device)
        if kept is None:
            kept = self.explanations[explanation.device] = deque(maxlen=_EXPLANATIONS_KEPT)
        kept.append(explanation)

    # ---- actions out

    def _perform(self, action: ev.Action) -> None:
        match action:
            case ev.Send(device, directive):
                self._sessions.send(device, self._tracing.directive_sent(device, directive))
            case ev.Changed(subject):
                self._changes.touch(*_split(subject))
            case ev.Commit():
                self._commits.put_nowait(action)
            case ev.SendAll(device, snapshot):
                self._sessions.send_all(device, snapshot)
            case ev.Emit():
                self._emit(action)
            case ev.Purge():
                self._purges.put_nowait(action)
            case ev.Deposed(latest):
                _log.warning("an agent has heard epoch %d: the term is over", latest.epoch)
                self.end()

    def _emit(self, emitted: ev.Emit) -> None:
        self._add_event(
            Event(
                emitted.kind,
                emitted.subject,
                emitted.message,
                self._wall.unix_s(),
                emitted.severity,
                f"controller/{self._settings.leader_address}",
                tuple(sorted(emitted.attributes.items())),
            )
        )

    def _add_event(self, event: Event) -> None:
        level = logging.WARNING if event.severity is Severity.WARNING else logging.INFO
        ids = {"actor": event.actor, "traceparent": event.traceparent}
        _log.log(level, "%s %s: %s", event.kind, event.subject, event.message, extra={"ids": ids})
        self._events.append(event)
        self._event_waits.set()

    def _observe_answer(self, event: ev.Answered) -> None:
        answer = event.answer
        self._metrics.answers.labels(answer.outcome.value).inc()
        self._changes.touch(DIRECTIVE, directive_name(event.device, answer.key))
        record = self.reconciler.state.devices.get(event.device)
        issued = record.issued.get(answer.key) if record is not None else None
        if issued is None or issued.directive.operation != answer.operation:
            return
        if issued.sent_s is not None and issued.answered_s is not None:
            self._metrics.answer_s.observe(issued.answered_s - issued.sent_s)
        self._tracing.directive_answered(event.device, issued.directive, answer)

    # ---- the store

    async def _commit_forever(self) -> None:
        while True:
            commit = await self._commits.get()
            revision = await self._writer.commit(commit.writes)
            self.handle(ev.Committed(revision))
            for write in commit.writes:
                self._changes.touch(DIRECTIVE, directive_name(write.device, write.key))

    async def _purge_forever(self) -> None:
        while True:
            purge = await self._purges.get()
            if await self._writer.purge(purge):
                self._emit(ev.Emit("ModelGone", f"model/{purge.model}", "runs nowhere any more"))

    async def _store_events_forever(self) -> None:
        while True:
            await self._event_waits.wait()
            self._event_waits.clear()
            while self._events:
                batch = [self._events.popleft() for _ in range(min(100, len(self._events)))]
                payloads = [cluster_codec.encode_event(e).SerializeToString() for e in batch]
                await self._writer.append_events(payloads)

    async def _tick_forever(self) -> None:
        while True:
            before_s = self._clock.monotonic_s()
            await asyncio.sleep(TICK_S)
            self._metrics.loop_lag_s.observe(
                max(0.0, self._clock.monotonic_s() - before_s - TICK_S)
            )
            self.handle(ev.Tick())

    async def _flush_forever(self) -> None:
        """Last observations of devices, for readers who are not this process.

        Part by part: all at once would keep directives waiting for a tenth of a second.
        """
        while True:
            devices = list(self.reconciler.state.devices)
            parts = [
                devices[i : i + _FLUSHED_AT_ONCE] for i in range(0, len(devices), _FLUSHED_AT_ONCE)
            ] or [[]]
            for part in parts:
                await asyncio.sleep(self._settings.flush_s / len(parts))
                await self._flush(part)

    async def _flush(self, devices: Sequence[DeviceId]) -> None:
        values: dict[str, bytes | None] = {}
        for device in devices:
            seen = self.reconciler.state.devices[device].observation
            if seen is None or self._flushed.get(device) == (seen.free_pages, seen.engines):
                continue
            self._flushed[device] = (seen.free_pages, seen.engines)
            values[device] = _encode_observation(seen)
        if values:
            await self._writer.observe(DEVICE, values)


def history_lost_event(why: str, unix_s: float) -> bytes:
    """For the event stream, in which the store puts it if history is indeed lost."""
    event = Event(
        "StoreHistoryLost",
        "cluster",
        f"{why}, which the store does not know of: accepted wishes may be lost; look at them",
        unix_s,
        Severity.WARNING,
    )
    return cluster_codec.encode_event(event).SerializeToString()


def _encode_observation(seen: DeviceObservation) -> bytes:
    return agent_codec.encode_observation(seen).SerializeToString()


def _split(subject: str) -> tuple[str, str]:
    kind, _, name = subject.partition("/")
    return kind, name or kind
