"""The cluster's reconciler: wishes and observations in, directives out.  A pure state machine.

It is level-triggered: an event only says which keys to look at again; what is directed follows
from what is wished and seen now, never from the kind of event.

  reconciler_state       what is known
  reconciler_desired     what is to hold on a device
  reconciler_directives  the book: marked, stored, sent, answered
  reconciler_placement   where models belong, and what helps a full device
  reconciler_status      what readers see of it all
"""

from __future__ import annotations

from collections.abc import Iterable

from mirage_core.cluster_model import (
    AgentHello,
    ClusterWish,
    DeviceWish,
    Directive,
    DirectPlacement,
    ModelState,
    ModelWish,
    NodeWish,
    Severity,
    StoreIncarnation,
    Wish,
)
from mirage_core.control.reconciler_desired import Desired
from mirage_core.control.reconciler_directives import Directives
from mirage_core.control.reconciler_events import (
    Action,
    Answered,
    Committed,
    Event,
    Forgotten,
    Joined,
    Left,
    Purge,
    Reported,
    Tick,
    Wished,
)
from mirage_core.control.reconciler_placement import Placements
from mirage_core.control.reconciler_records import DeviceRecord, ModelRecord, observe_running
from mirage_core.control.reconciler_state import (
    DEVICE_KEY,
    PLACEMENT_KEY,
    ClusterState,
    ReconcilerSettings,
    lend_key,
    model_key,
)
from mirage_core.model import DeviceId, ModelName


class Reconciler:
    """One leader's term.  Made from what is stored; ``handle`` each event, perform its actions."""

    def __init__(
        self,
        store: StoreIncarnation,
        epoch: int,
        stored: Iterable[tuple[DeviceId, Directive]],
        settings: ReconcilerSettings,
        now_s: float,
    ) -> None:
        """``stored``: the directives of earlier leaders, with the revisions of their writes."""
        self.state = state = ClusterState(store, epoch, settings, now_s)
        self._desired = Desired(state)
        self._directives = Directives(state, self._desired)
        self._placements = Placements(state, self._directives)
        self._placed_before: dict[ModelName, set[DeviceId]] = {}
        for device, directive in stored:
            self._directives.enter(state.device(device), directive)
            state.revision = max(state.revision, directive.authority.revision)
            if isinstance(directive.body, DirectPlacement):
                for model in directive.body.models:
                    self._placed_before.setdefault(model, set()).add(device)

    @property
    def revision(self) -> int:
        """Highest revision of the store that was reconciled."""
        return self.state.revision

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """What is to be done about ``event``, in order.

        Raises MisuseError for an event that cannot come: a commit that was not asked for.
        """
        state = self.state
        state.now_s = now_s
        match event:
            case Reported():
                self._report(event)
            case Answered(device, answer):
                self._directives.answer(device, answer)
            case Wished(wish, revision, traceparent, _):
                self._wish(wish, revision, traceparent)
            case Joined(hello):
                self._join(hello)
            case Left(device, incarnation):
                self._leave(device, incarnation)
            case Committed(revision):
                state.revision = max(state.revision, revision)
                self._directives.commit(revision)
            case Forgotten(model):
                self._forget(model)
            case Tick():
                self._directives.retry()
                self._placements.tick()
                self._purge()
        if not (isinstance(event, Wished) and event.more):
            self._placements.settle()
            self._directives.settle()
        actions, state.out = tuple(state.out), []
        return actions

    # ---- wishes

    def _wish(self, wish: Wish, revision: int, traceparent: str) -> None:
        state = self.state
        state.revision = max(state.revision, revision)
        match wish:
            case ModelWish():
                self._wish_model(wish, revision, traceparent)
            case DeviceWish():
                record = state.device(wish.device)
                if wish.drain != record.wish.drain:
                    self._placements.reconsider(*state.models_of(record))
                record.wish, record.wish_revision = wish, revision
                self._directives.mark(record, DEVICE_KEY, traceparent)
                state.changed(f"device/{wish.device}")
            case NodeWish():
                state.nodes[wish.node] = (wish, revision)
                for record in state.devices_of(wish.node):
                    self._directives.mark(record, DEVICE_KEY, traceparent)
                    self._placements.reconsider(*state.models_of(record))
                state.changed(f"node/{wish.node}")
            case ClusterWish():
                state.cluster = (wish, revision)
                for record in state.devices.values():
                    self._directives.mark(record, DEVICE_KEY, traceparent)
                self._placements.reconsider(*state.models)
                state.changed("cluster")

    def _wish_model(self, wish: ModelWish, revision: int, traceparent: str) -> None:
        name, keys = wish.name, (model_key(wish.name), lend_key(wish.name))
        model = self.state.models.get(name)
        if model is None or model.wish.uid != wish.uid:
            model = self._enter_model(wish, revision, traceparent)
        else:
            if model.devices and not any(self.state.unapplied.get(key) for key in keys):
                model.observed_revision = model.revision
            before, model.purging = model.wish, False
            model.wish, model.revision = wish, revision
            places = (wish.spec, wish.state, wish.placement)
            if (before.spec, before.state, before.placement) != places:
                self._placements.reconsider(name)
        if wish.spec.devices_per_replica > 1:
            for key in keys:
                self._desired.forget_refused(key, *model.devices)
        self._directives.mark_model(name, *model.devices, traceparent=traceparent)
        self.state.changed(f"model/{name}")

    def _enter_model(self, wish: ModelWish, revision: int, traceparent: str) -> ModelRecord:
        """A model that was registered; devices of an earlier one of that name are its own now."""
        state, name = self.state, wish.name
        if not state.models:
            self._mark_placements(traceparent)
        placed = self._placed_before.pop(name, set())
        if name in state.models:
            placed.update(state.models[name].placed)
        running = {d for d, record in state.devices.items() if name in record.running}
        model = ModelRecord(wish, revision, placed=frozenset(placed), running=running)
        state.models[name] = model
        for device in placed:
            state.devices[device].placed.add(name)
        self._placements.reconsider(name)
        return model

    def _forget(self, name: ModelName) -> None:
        model = self.state.models.pop(name, None)
        if model is None:
            return
        for device in model.devices:
            record = self.state.devices[device]
            record.placed.discard(name)
            self._directives.mark_model(name, device)
            self._directives.mark(record, PLACEMENT_KEY)
        if not self.state.models:
            self._mark_placements("")
        self.state.changed(f"model/{name}")

    def _mark_placements(self, traceparent: str) -> None:
        """The first model, or the last: only while there are models are their places directed."""
        for record in self.state.devices.values():
            self._directives.mark(record, PLACEMENT_KEY, traceparent)

    def _purge(self) -> None:
        for name, model in self.state.models.items():
            if model.wish.state is ModelState.ABSENT and not model.devices and not model.purging:
                model.purging = True
                self.state.out.append(Purge(name, model.revision))

    # ---- agents

    def _join(self, hello: AgentHello) -> None:
        state, device = self.state, hello.device
        if device not in state.devices:
            message = f"{hello.pages} pages of {hello.page_bytes} bytes on {hello.node}"
            state.emit("DeviceJoined", f"device/{device}", message)
        record = state.device(device)
        if not record.connected:
            state.connected += 1
        record.hello, record.silent_since_s, record.synced = hello, None, False
        record.observation = None
        self._directives.join(record, dict(hello.held))
        self._placements.reconsider_missing()
        self._tell_reachable(record)

    def _leave(self, device: DeviceId, incarnation: str) -> None:
        record = self.state.devices.get(device)
        if record is None or not record.connected or record.hello is None:
            return
        if record.hello.incarnation != incarnation:
            return
        self.state.connected -= 1
        record.silent_since_s, record.synced = self.state.now_s, False
        self._directives.leave(record)
        self._tell_reachable(record)

    def _tell_reachable(self, record: DeviceRecord) -> None:
        self.state.changed(f"device/{record.device}", f"node/{record.node}", "cluster")

    def _report(self, event: Reported) -> None:
        state = self.state
        record = state.devices.get(event.device)
        if record is None or not record.connected:
            return
        before, record.observation = record.observation, event.observation
        record.observed_s = state.now_s
        if before is not None and before.engines == event.observation.engines:
            return
        running = observe_running(record.running, event.observation, state.now_s)
        started = running.keys() - record.running.keys()
        ended = record.running.keys() - running.keys()
        record.running = running
        for name in started | ended:
            self._observe_engine(record, name, started=name in started)
        self._observe_waiting(record)
        state.changed(f"device/{event.device}")

    def _observe_engine(self, record: DeviceRecord, name: ModelName, *, started: bool) -> None:
        state, model = self.state, self.state.models.get(name)
        if model is None:
            if started and state.models:
                message = f"an engine of {name} runs, which nobody registered"
                subject = f"device/{record.device}"
                state.emit("UnregisteredModel", subject, message, Severity.WARNING)
            return
        (model.running.add if started else model.running.discard)(record.device)
        leaving = model.running - model.placed
        self._directives.mark_model(name, record.device, *leaving)
        state.changed(f"model/{name}")
        if model.wish.state is ModelState.ABSENT:
            self._purge()

    def _observe_waiting(self, record: DeviceRecord) -> None:
        """Note the most important registered model that waits for pages, and since when."""
        assert record.observation is not None
        waiting = [
            model
            for each in record.observation.engines
            if each.waiting_pages > 0 and (model := self.state.models.get(each.model)) is not None
        ]
        first = min(waiting, key=lambda m: (-m.wish.priority, m.wish.name), default=None)
        name = first.wish.name if first is not None else None
        if name is None or record.waiting is None:
            record.waiting_since_s = self.state.now_s
        record.waiting = name


__all__ = ["Reconciler", "ReconcilerSettings"]
