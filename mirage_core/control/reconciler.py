"""The cluster's reconciler: wishes and observations in, directives out.  A pure state machine.

It is level-triggered: an event only says which keys to look at again; what is directed follows
from what is wished and seen now, never from the kind of event.  A key is looked at (``_mark``),
its desired directive compared with the one in the store, and the difference stored in one fenced
write at a time; only what is stored is sent.  A device that joins gets all of its directives once
none of its keys is open.

Where models belong is decided by ``reconciler_placement``; what readers see of it all is in
``reconciler_status``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_core.cluster_model import (
    Acknowledgement,
    AgentHello,
    Authority,
    ClusterWish,
    DeviceWish,
    DirectDevice,
    Directive,
    DirectiveBody,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    DirectModel,
    DirectPlacement,
    ModelState,
    ModelWish,
    NodeName,
    NodeWish,
    Outcome,
    Severity,
    StoreIncarnation,
    Wish,
)
from mirage_core.control.reconciler_events import (
    Action,
    Answered,
    Changed,
    Commit,
    Committed,
    Deposed,
    Emit,
    Event,
    Forgotten,
    Joined,
    Left,
    Purge,
    Reported,
    Send,
    SendAll,
    Tick,
    Wished,
    Write,
)
from mirage_core.control.reconciler_placement import Placements
from mirage_core.control.reconciler_records import (
    DeviceRecord,
    Issued,
    ModelRecord,
    observe_running,
)
from mirage_core.errors import MisuseError
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.relief import AskForNode
from mirage_core.policy.cluster.replicas import Replica, group_replicas, may_change
from mirage_core.policy.cluster.silence import may_move_models, standing_of
from mirage_core.policy.cluster.turns import choose_turn
from mirage_core.policy.cluster.view import Standing

DEVICE_KEY = DirectiveKey("device")
PLACEMENT_KEY = DirectiveKey("placement")


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """max_writes      directives of one commit
    retry_s, retry_max_s  first and longest pause before a refused directive is sent again
    lost_after_s       a device silent for so long is lost: its models belong elsewhere
    forget_after_s     one silent for so long is no longer counted among the agents
    short_after_s      a model that waits for pages so long has nothing left to remap for it
    relief_pause_s     least time between two reliefs of one device
    retire_after_s     a surplus replica idle for so long is given up
    """

    max_writes: int = 1000
    retry_s: float = 1.0
    retry_max_s: float = 60.0
    lost_after_s: float = 60.0
    forget_after_s: float = 86_400.0
    short_after_s: float = 5.0
    relief_pause_s: float = 60.0
    retire_after_s: float = 300.0


def model_key(model: ModelName) -> DirectiveKey:
    return DirectiveKey(f"model/{model}")


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
        self.settings = settings
        self.store = store
        self.epoch = epoch
        self.revision = 0
        """highest revision of the store that was reconciled"""
        self.devices: dict[DeviceId, DeviceRecord] = {}
        self.models: dict[ModelName, ModelRecord] = {}
        self.nodes: dict[NodeName, tuple[NodeWish, int]] = {}
        self.cluster: tuple[ClusterWish, int] = (ClusterWish(), 0)
        self.unapplied: dict[DirectiveKey, set[DeviceId]] = {}
        """devices that have not applied what holds under a key now"""
        self.connected = 0
        self._now_s = now_s
        self._operations = 0
        self._dirty: dict[tuple[DeviceId, DirectiveKey], str] = {}
        self._in_flight: Commit | None = None
        self._joining: dict[DeviceId, None] = {}
        self._retries: dict[tuple[DeviceId, DirectiveKey], float] = {}
        self._refused: dict[tuple[DeviceId, DirectiveKey], set[DirectiveBody]] = {}
        """of each replica's device, what it refused for good since the last wish"""
        self._agreed: dict[tuple[DirectiveKey, Replica], DirectiveBody] = {}
        self._out: list[Action] = []
        self._placed_before: dict[ModelName, set[DeviceId]] = {}
        for device, directive in stored:
            record = self._device(device)
            record.issued[directive.key] = Issued(directive)
            self._wait_for(record, directive.key)
            self.revision = max(self.revision, directive.authority.revision)
            if isinstance(directive.body, DirectPlacement):
                for model in directive.body.models:
                    self._placed_before.setdefault(model, set()).add(device)
        self._placements = Placements(self)

    # ---- events

    def handle(self, event: Event, now_s: float) -> tuple[Action, ...]:
        """What is to be done about ``event``, in order.

        Raises MisuseError for an event that cannot come: a commit that was not asked for.
        """
        self._now_s = now_s
        match event:
            case Reported():
                self._report(event)
            case Answered(device, answer):
                self._answer(device, answer)
            case Wished(wish, revision, traceparent, _):
                self._wish(wish, revision, traceparent)
            case Joined(hello):
                self._join(hello)
            case Left(device, incarnation):
                self._leave(device, incarnation)
            case Committed(revision):
                self._commit(revision)
            case Forgotten(model):
                self._forget(model)
            case Tick():
                self._tick()
        if not (isinstance(event, Wished) and event.more):
            self._settle()
        actions, self._out = tuple(self._out), []
        return actions

    def _wish(self, wish: Wish, revision: int, traceparent: str) -> None:
        self.revision = max(self.revision, revision)
        match wish:
            case ModelWish():
                self._wish_model(wish, revision, traceparent)
            case DeviceWish():
                record = self._device(wish.device)
                drained = wish.drain != record.wish.drain
                record.wish, record.wish_revision = wish, revision
                self._mark(record, DEVICE_KEY, traceparent)
                if drained:
                    self._placements.reconsider(self.models_of(record))
                self._emit_changed(f"device/{wish.device}")
            case NodeWish():
                self.nodes[wish.node] = (wish, revision)
                for record in self.devices_of(wish.node):
                    self._mark(record, DEVICE_KEY, traceparent)
                    self._placements.reconsider(self.models_of(record))
                self._emit_changed(f"node/{wish.node}")
            case ClusterWish():
                self.cluster = (wish, revision)
                for record in self.devices.values():
                    self._mark(record, DEVICE_KEY, traceparent)
                self._placements.reconsider_all()
                self._emit_changed("cluster")

    def _wish_model(self, wish: ModelWish, revision: int, traceparent: str) -> None:
        model = self.models.get(wish.name)
        if model is None or model.wish.uid != wish.uid:
            model = self._enter_model(wish, revision, traceparent)
        else:
            if not self.unapplied.get(model_key(wish.name)) and model.devices:
                model.observed_revision = model.revision
            before, model.purging = model.wish, False
            model.wish, model.revision = wish, revision
            if (before.spec, before.state, before.placement) != (
                wish.spec,
                wish.state,
                wish.placement,
            ):
                self._placements.reconsider([wish.name])
        if wish.spec.devices_per_replica > 1:
            for device in model.devices:
                self._refused.pop((device, model_key(wish.name)), None)
        self._mark_model(model, traceparent)
        self._emit_changed(f"model/{wish.name}")

    def _enter_model(self, wish: ModelWish, revision: int, traceparent: str) -> ModelRecord:
        """A model that was registered; devices of an earlier one of that name are its own now."""
        if not self.models:
            for record in self.devices.values():
                self._mark(record, PLACEMENT_KEY, traceparent)
        placed = self._placed_before.pop(wish.name, set())
        if wish.name in self.models:
            placed.update(self.models[wish.name].placed)
        running = {d for d, record in self.devices.items() if wish.name in record.running}
        model = ModelRecord(wish, revision, placed=frozenset(placed), running=running)
        self.models[wish.name] = model
        for device in placed:
            self.devices[device].placed.add(wish.name)
        self._placements.reconsider([wish.name])
        return model

    def _forget(self, name: ModelName) -> None:
        model = self.models.pop(name, None)
        if model is None:
            return
        for device in model.devices:
            self.devices[device].placed.discard(name)
            self._mark(self.devices[device], model_key(name))
            self._mark(self.devices[device], PLACEMENT_KEY)
        if not self.models:
            for record in self.devices.values():
                self._mark(record, PLACEMENT_KEY)
        self._emit_changed(f"model/{name}")

    def _join(self, hello: AgentHello) -> None:
        known = hello.device in self.devices
        record = self._device(hello.device)
        if not record.connected:
            self.connected += 1
        if not known:
            self._out.append(
                Emit(
                    "DeviceJoined",
                    f"device/{hello.device}",
                    f"{hello.pages} pages of {hello.page_bytes} bytes on {hello.node}",
                )
            )
        held = dict(hello.held)
        for key, issued in record.issued.items():
            if not (issued.applied and held.get(key) == issued.directive.operation):
                issued.outcome = None
                self._wait_for(record, key)
        record.hello, record.silent_since_s, record.synced = hello, None, False
        record.observation = None
        self._joining[hello.device] = None
        for key in self._keys_of(record):
            self._mark(record, key)
            self._mark_replica(record, key)
        self._placements.reconsider_missing()
        self._emit_reachable(record)

    def _leave(self, device: DeviceId, incarnation: str) -> None:
        record = self.devices.get(device)
        if record is None or not record.connected or record.hello is None:
            return
        if record.hello.incarnation != incarnation:
            return
        self.connected -= 1
        record.silent_since_s, record.synced = self._now_s, False
        self._joining.pop(device, None)
        self._emit_reachable(record)

    def _report(self, event: Reported) -> None:
        record = self.devices.get(event.device)
        if record is None or not record.connected:
            return
        before, record.observation = record.observation, event.observation
        record.observed_s = self._now_s
        if before is not None and before.engines == event.observation.engines:
            return
        running = observe_running(record.running, event.observation, self._now_s)
        started = running.keys() - record.running.keys()
        ended = record.running.keys() - running.keys()
        record.running = running
        for name in started | ended:
            self._observe_engine(record, name, started=name in started)
        self._observe_waiting(record)
        self._emit_changed(f"device/{event.device}")

    def _observe_engine(self, record: DeviceRecord, name: ModelName, *, started: bool) -> None:
        model = self.models.get(name)
        if model is None:
            if started and self.models:
                self._out.append(
                    Emit(
                        "UnregisteredModel",
                        f"device/{record.device}",
                        f"an engine of {name} runs, which nobody registered",
                        Severity.WARNING,
                    )
                )
            return
        (model.running.add if started else model.running.discard)(record.device)
        self._mark(record, model_key(name))
        for device in model.running - model.placed:
            self._mark(self.devices[device], model_key(name))
        self._emit_changed(f"model/{name}")
        if model.wish.state is ModelState.ABSENT:
            self._placements.reconsider([name])

    def _observe_waiting(self, record: DeviceRecord) -> None:
        """Note the most important registered model that waits for pages, and since when."""
        assert record.observation is not None
        waiting = [
            model
            for each in record.observation.engines
            if each.waiting_pages > 0 and (model := self.models.get(each.model)) is not None
        ]
        first = min(waiting, key=lambda m: (-m.wish.priority, m.wish.name), default=None)
        name = first.wish.name if first is not None else None
        if name is None or record.waiting is None:
            record.waiting_since_s = self._now_s
        record.waiting = name

    def _answer(self, device: DeviceId, answer: Acknowledgement) -> None:
        latest = answer.latest
        if (
            answer.outcome is Outcome.STALE
            and latest is not None
            and (latest.store, latest.epoch) > (self.store, self.epoch)
            and latest.store == self.store
        ):
            self._out.append(Deposed(latest))
            return
        record = self.devices.get(device)
        issued = record.issued.get(answer.key) if record is not None else None
        if record is None or issued is None or issued.directive.operation != answer.operation:
            return  # of a directive that another has replaced
        issued.outcome, issued.reason = answer.outcome, answer.reason
        issued.retryable, issued.answered_s = answer.retryable, self._now_s
        if answer.outcome is Outcome.APPLIED:
            issued.tries = 0
            self._retries.pop((device, answer.key), None)
            self._settle_applied(record, answer.key)
            self._note_agreed(record, answer.key)
        elif answer.outcome is Outcome.REFUSED:
            self._refuse(record, answer.key, issued)
        self._emit_changed(_subject_of(answer.key, device))

    def _refuse(self, record: DeviceRecord, key: DirectiveKey, issued: Issued) -> None:
        if issued.retryable:
            settings = self.settings
            pause_s = min(settings.retry_max_s, settings.retry_s * 2**issued.tries)
            issued.tries = min(issued.tries + 1, 16)
            self._retries[record.device, key] = self._now_s + pause_s
            return
        self._out.append(
            Emit(
                "DirectiveRefused",
                _subject_of(key, record.device),
                f"{record.device} refused {key}: {issued.reason}",
                Severity.WARNING,
            )
        )
        self._mark_replica(record, key, issued)

    def _mark_replica(
        self, record: DeviceRecord, key: DirectiveKey, refused: Issued | None = None
    ) -> None:
        """Look at ``key`` again on all devices that it binds together, if there are any."""
        replica = self._replica_of(record, key)
        if replica is None:
            return
        if refused is not None:
            self._refused.setdefault((record.device, key), set()).add(refused.body)
        else:
            self._refused.pop((record.device, key), None)
        for device in replica:
            self._mark(self.devices[device], key)

    def _commit(self, revision: int) -> None:
        if self._in_flight is None:
            raise MisuseError("a commit that was not asked for")
        writes, self._in_flight = self._in_flight.writes, None
        self.revision = max(self.revision, revision)
        authority = Authority(self.store, self.epoch, revision)
        removed: dict[DeviceId, None] = {}
        for write in writes:
            record, key = self.devices[write.device], write.key
            if (write.device, key) not in self._dirty:
                record.open.discard(key)
            if write.body is None:
                record.issued.pop(key, None)
                self._retries.pop((write.device, key), None)
                self._settle_applied(record, key)
                removed[write.device] = None
                continue
            directive = Directive(write.operation, authority, write.body, write.traceparent)
            record.issued[key] = Issued(directive)
            self._wait_for(record, key)
            if record.synced:
                record.issued[key].sent_s = self._now_s
                self._out.append(Send(write.device, directive))
        for device in removed:
            record = self.devices[device]
            if record.synced:
                self._send_all(record)
        self._purge()

    def _tick(self) -> None:
        for (device, key), due_s in list(self._retries.items()):
            record = self.devices[device]
            if due_s > self._now_s or not record.synced:
                continue
            del self._retries[device, key]
            issued = record.issued[key]
            issued.outcome, issued.sent_s = None, self._now_s
            self._out.append(Send(device, self._restamp(issued.directive)))
        self._placements.tick(self._now_s)
        self._purge()

    # ---- what is desired

    def _desired(self, record: DeviceRecord, key: DirectiveKey) -> DirectiveBody | None:
        """What is to hold under ``key``; None: nothing."""
        if not record.understands(key):
            record.withheld.add(key)
            return None
        if key in (DEVICE_KEY, PLACEMENT_KEY):
            record.withheld.discard(key)
        if key == DEVICE_KEY:
            wish, _ = self.cluster
            return DirectDevice(record.wish.sharing, self.drained(record), wish.freeze, wish.shadow)
        if key == PLACEMENT_KEY:
            if not self.models:
                return None
            return DirectPlacement(tuple(sorted(record.placed)))
        kind, _, name = key.partition("/")
        model = self.models.get(ModelName(name)) if kind == "model" else None
        if model is None or not model.is_on(record.device):
            record.withheld.discard(key)
            return None
        return self._all_or_none(record, key, model, self._direct_model(record, model))

    def _direct_model(self, record: DeviceRecord, model: ModelRecord) -> DirectModel:
        wish, placed = model.wish, record.device in model.placed
        elsewhere = 0 if placed else len(model.running & model.placed)
        return DirectModel(
            wish.name,
            wish.priority,
            wish.floor_bytes,
            wish.pinned,
            choose_turn(
                wish,
                placed=placed,
                running_elsewhere=elsewhere // wish.spec.devices_per_replica,
            ),
        )

    def _all_or_none(
        self, record: DeviceRecord, key: DirectiveKey, model: ModelRecord, body: DirectModel
    ) -> DirectiveBody | None:
        """``body``, or what all devices of the replica last agreed to if one cannot take it."""
        replica = self._replica_of(record, key)
        if replica is None:
            record.withheld.discard(key)
            return body
        reachable = [device for device in replica if self.devices[device].connected]
        refused = [device for device in replica if body in self._refused.get((device, key), ())]
        if may_change(replica, reachable, refused):
            record.withheld.discard(key)
            return body
        record.withheld.add(key)
        if refused:
            return self._agreed.get((key, replica))
        issued = record.issued.get(key)
        return issued.body if issued is not None else None

    def _replica_of(self, record: DeviceRecord, key: DirectiveKey) -> Replica | None:
        """The devices that ``key`` binds together with this one; None if there are none."""
        kind, _, name = key.partition("/")
        model = self.models.get(ModelName(name)) if kind == "model" else None
        if model is None or model.wish.spec.devices_per_replica == 1:
            return None
        nodes = {device: self.devices[device].node for device in model.placed}
        replicas, _ = group_replicas(model.placed, nodes, model.wish.spec.devices_per_replica)
        return next((replica for replica in replicas if record.device in replica), None)

    def drained(self, record: DeviceRecord) -> bool:
        node = self.nodes.get(record.node)
        return record.wish.drain or (node is not None and node[0].drain)

    def standing(self, record: DeviceRecord) -> Standing:
        since_s = record.silent_since_s
        return standing_of(
            drained=self.drained(record),
            silent_s=None if since_s is None else self._now_s - since_s,
            lost_after_s=self.settings.lost_after_s,
        )

    def silent_agents(self) -> int:
        """Agents that are missed: silent, not drained, and not for so long that they are gone."""
        forgotten_s = self._now_s - self.settings.forget_after_s
        return sum(
            record.silent_since_s is not None
            and record.silent_since_s > forgotten_s
            and not self.drained(record)
            for record in self.devices.values()
        )

    def moves_stopped(self) -> bool:
        silent = self.silent_agents()
        return not may_move_models(self.connected + silent, silent)

    def is_short(self, record: DeviceRecord) -> bool:
        """Whether a model has waited for pages here for so long that none can be found."""
        waited_s = self._now_s - record.waiting_since_s
        return record.waiting is not None and waited_s >= self.settings.short_after_s

    @property
    def wanted(self) -> Mapping[ModelName, AskForNode]:
        """Nodes asked for, by the model that needs one."""
        return self._placements.wanted

    # ---- keys

    def _mark(self, record: DeviceRecord, key: DirectiveKey, traceparent: str = "") -> None:
        """Look at ``key`` again."""
        pair = (record.device, key)
        if traceparent or pair not in self._dirty:
            self._dirty[pair] = traceparent
        record.open.add(key)
        self._wait_for(record, key)

    def set_placed(self, model: ModelRecord, devices: frozenset[DeviceId]) -> None:
        """Where ``model`` belongs from now on."""
        name, changed = model.wish.name, model.placed ^ devices
        model.placed = devices
        for device in changed:
            record = self.devices[device]
            (record.placed.add if device in devices else record.placed.discard)(name)
            self._mark(record, PLACEMENT_KEY)
        self._mark_model(model, "", changed)
        self._emit_changed(f"model/{name}")

    def _mark_model(
        self, model: ModelRecord, traceparent: str, more: Iterable[DeviceId] = ()
    ) -> None:
        for device in model.devices.union(more):
            self._mark(self.devices[device], model_key(model.wish.name), traceparent)

    def _keys_of(self, record: DeviceRecord) -> set[DirectiveKey]:
        here = {model_key(name) for name in self.models_of(record)}
        return {DEVICE_KEY, PLACEMENT_KEY} | here | record.issued.keys()

    def models_of(self, record: DeviceRecord) -> list[ModelName]:
        """Registered models that belong on a device or run there."""
        return sorted(name for name in record.placed.union(record.running) if name in self.models)

    def devices_of(self, node: NodeName) -> list[DeviceRecord]:
        return [record for record in self.devices.values() if record.node == node]

    def _wait_for(self, record: DeviceRecord, key: DirectiveKey) -> None:
        self.unapplied.setdefault(key, set()).add(record.device)

    def _settle_applied(self, record: DeviceRecord, key: DirectiveKey) -> None:
        """If ``key`` is as it is to be and its directive applied, nothing more is awaited of it."""
        issued = record.issued.get(key)
        if key in record.open or key in record.withheld:
            return
        if issued is not None and not issued.applied:
            return
        waiting = self.unapplied.get(key)
        if waiting is not None:
            waiting.discard(record.device)
            if not waiting:
                del self.unapplied[key]

    # ---- output

    def _settle(self) -> None:
        self._placements.settle(self._now_s)
        if self._in_flight is None and self._dirty:
            self._write()
        for device in list(self._joining):
            record = self.devices[device]
            if not record.open:
                del self._joining[device]
                record.synced = True
                self._send_all(record)

    def _write(self) -> None:
        writes: list[Write] = []
        while self._dirty and len(writes) < self.settings.max_writes:
            device, key = pair = next(iter(self._dirty))
            traceparent = self._dirty.pop(pair)
            record = self.devices[device]
            body, issued = self._desired(record, key), record.issued.get(key)
            if body == (issued.body if issued is not None else None):
                record.open.discard(key)
                self._settle_applied(record, key)
                self._note_agreed(record, key)
                continue
            self._operations += 1
            operation = DirectiveId(f"{self.store[:8]}-{self.epoch}-{self._operations}")
            writes.append(Write(device, key, operation, body, traceparent))
        if writes:
            self._in_flight = Commit(tuple(writes))
            self._out.append(self._in_flight)
        else:
            self._purge()

    def _note_agreed(self, record: DeviceRecord, key: DirectiveKey) -> None:
        replica = self._replica_of(record, key)
        if replica is None:
            return
        issued = [self.devices[device].issued.get(key) for device in replica]
        bodies = {each.body if each is not None and each.applied else None for each in issued}
        body = bodies.pop()
        if body is not None and not bodies:
            self._agreed[key, replica] = body

    def _send_all(self, record: DeviceRecord) -> None:
        directives = tuple(self._restamp(issued.directive) for issued in record.issued.values())
        for key, issued in record.issued.items():
            issued.sent_s = self._now_s
            self._retries.pop((record.device, key), None)
        authority = Authority(self.store, self.epoch, self.revision)
        self._out.append(SendAll(record.device, DirectiveSnapshot(authority, directives)))

    def _restamp(self, directive: Directive) -> Directive:
        """A stored directive in this leader's name: it stands by what earlier leaders wrote."""
        old = directive.authority
        if (old.store, old.epoch) == (self.store, self.epoch):
            return directive
        authority = Authority(self.store, self.epoch, old.revision)
        return Directive(directive.operation, authority, directive.body, directive.traceparent)

    def _purge(self) -> None:
        for name, model in self.models.items():
            if model.wish.state is ModelState.ABSENT and not model.devices and not model.purging:
                model.purging = True
                self._out.append(Purge(name, model.revision))

    def emit(self, event: Emit) -> None:
        self._out.append(event)

    def _emit_changed(self, subject: str) -> None:
        self._out.append(Changed(subject))

    def _emit_reachable(self, record: DeviceRecord) -> None:
        for subject in (f"device/{record.device}", f"node/{record.node}", "cluster"):
            self._emit_changed(subject)

    def _device(self, device: DeviceId) -> DeviceRecord:
        record = self.devices.get(device)
        if record is None:
            record = DeviceRecord(device, self._now_s, DeviceWish(device))
            self.devices[device] = record
        return record


def _subject_of(key: DirectiveKey, device: DeviceId) -> str:
    return key if key.startswith("model/") else f"device/{device}"
