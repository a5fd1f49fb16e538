"""The book of directives: which keys are open, what is being stored, what was answered.

A key is *marked* when something it depends on may have changed.  When the store is free, all that
is marked is compared with what is desired, and the differences are stored in one write; a device
that joins is sent all of its directives once none of its keys is open.
"""

from __future__ import annotations

from mirage_core.cluster_model import (
    Acknowledgement,
    Authority,
    Directive,
    DirectiveId,
    DirectiveKey,
    DirectiveSnapshot,
    Outcome,
    Severity,
)
from mirage_core.control.reconciler_desired import Desired
from mirage_core.control.reconciler_events import Commit, Deposed, Send, SendAll, Write
from mirage_core.control.reconciler_records import DeviceRecord, Issued
from mirage_core.control.reconciler_state import ClusterState, model_named
from mirage_core.errors import MisuseError
from mirage_core.model import DeviceId, ModelName


class Directives:
    def __init__(self, state: ClusterState, desired: Desired) -> None:
        self._state = state
        self._desired = desired
        self._operations = 0
        self._marked: dict[tuple[DeviceId, DirectiveKey], str] = {}
        self._in_flight: Commit | None = None
        self._joining: dict[DeviceId, None] = {}
        self._retries: dict[tuple[DeviceId, DirectiveKey], float] = {}

    # ---- marking

    def mark(self, record: DeviceRecord, key: DirectiveKey, traceparent: str = "") -> None:
        """Look at ``key`` again."""
        pair = (record.device, key)
        if traceparent or pair not in self._marked:
            self._marked[pair] = traceparent
        record.open.add(key)
        self._await(record, key)

    def mark_replica(self, record: DeviceRecord, key: DirectiveKey) -> None:
        """Look at ``key`` again on all devices that it binds together, if there are any."""
        for device in self._desired.replica_of(record, key):
            self.mark(self._state.devices[device], key)

    def mark_model(self, name: ModelName, *devices: DeviceId, traceparent: str = "") -> None:
        for device in devices:
            record = self._state.devices[device]
            for key in self._desired.keys_of_model(record, name):
                self.mark(record, key, traceparent)

    # ---- agents

    def enter(self, record: DeviceRecord, directive: Directive) -> None:
        """A directive that an earlier leader stored."""
        record.issued[directive.key] = Issued(directive)
        self._await(record, directive.key)

    def join(self, record: DeviceRecord, held: dict[DirectiveKey, DirectiveId]) -> None:
        """An agent has come that holds ``held``; what it has not answered it is to answer again."""
        for key, issued in record.issued.items():
            if not (issued.applied and held.get(key) == issued.directive.operation):
                issued.outcome = None
                self._await(record, key)
        self._joining[record.device] = None
        for key in self._desired.keys_of(record):
            self._desired.forget_refused(key, record.device)
            self.mark(record, key)
            self.mark_replica(record, key)

    def leave(self, record: DeviceRecord) -> None:
        self._joining.pop(record.device, None)

    def answer(self, device: DeviceId, answer: Acknowledgement) -> None:
        latest, state = answer.latest, self._state
        newer = latest is not None and latest.store == state.store and latest.epoch > state.epoch
        if latest is not None and newer and answer.outcome is Outcome.STALE:
            state.out.append(Deposed(latest))
            return
        record = state.devices.get(device)
        issued = record.issued.get(answer.key) if record is not None else None
        if record is None or issued is None or issued.directive.operation != answer.operation:
            return  # of a directive that another has replaced
        issued.outcome, issued.reason = answer.outcome, answer.reason
        issued.retryable, issued.answered_s = answer.retryable, state.now_s
        if answer.outcome is Outcome.APPLIED:
            issued.tries = 0
            self._retries.pop((device, answer.key), None)
            self._settle_applied(record, answer.key)
            self._desired.note_agreed(record, answer.key)
        elif answer.outcome is Outcome.REFUSED:
            self._refuse(record, answer.key, issued)
        state.changed(_subject_of(answer.key, device))

    def _refuse(self, record: DeviceRecord, key: DirectiveKey, issued: Issued) -> None:
        if issued.retryable:
            settings = self._state.settings
            pause_s = min(settings.retry_max_s, settings.retry_s * 2**issued.tries)
            issued.tries = min(issued.tries + 1, 16)
            self._retries[record.device, key] = self._state.now_s + pause_s
            return
        message = f"{record.device} refused {key}: {issued.reason}"
        subject = _subject_of(key, record.device)
        self._state.emit("DirectiveRefused", subject, message, Severity.WARNING)
        self._desired.note_refused(record, key, issued.body)
        self.mark_replica(record, key)

    def retry(self) -> None:
        """Send again what was refused for a while, and is due."""
        now_s = self._state.now_s
        for (device, key), due_s in list(self._retries.items()):
            record = self._state.devices[device]
            if due_s > now_s or not record.synced:
                continue
            del self._retries[device, key]
            issued = record.issued[key]
            issued.outcome, issued.sent_s = None, now_s
            self._state.out.append(Send(device, self._restamp(issued.directive)))

    # ---- storing and sending

    def settle(self) -> None:
        """Store what differs, if the store is free; send all to those who have joined."""
        if self._in_flight is None and self._marked:
            self._write()
        for device in list(self._joining):
            record = self._state.devices[device]
            if not record.open:
                del self._joining[device]
                record.synced = True
                self._send_all(record)

    def _write(self) -> None:
        state, writes = self._state, list[Write]()
        while self._marked and len(writes) < state.settings.max_writes:
            device, key = pair = next(iter(self._marked))
            traceparent = self._marked.pop(pair)
            record = state.devices[device]
            body, issued = self._desired.body(record, key), record.issued.get(key)
            if body == (issued.body if issued is not None else None):
                record.open.discard(key)
                self._settle_applied(record, key)
                self._desired.note_agreed(record, key)
                continue
            self._operations += 1
            operation = DirectiveId(f"{state.store[:8]}-{state.epoch}-{self._operations}")
            writes.append(Write(device, key, operation, body, traceparent))
        if writes:
            self._in_flight = Commit(tuple(writes))
            state.out.append(self._in_flight)

    def commit(self, revision: int) -> None:
        """What was to be stored is, at ``revision``: now it may leave."""
        if self._in_flight is None:
            raise MisuseError("a commit that was not asked for")
        writes, self._in_flight = self._in_flight.writes, None
        removed = [write.device for write in writes if write.body is None]
        for write in writes:
            self._enter_written(write, revision)
        for device in dict.fromkeys(removed):
            record = self._state.devices[device]
            if record.synced:
                self._send_all(record)

    def _enter_written(self, write: Write, revision: int) -> None:
        state, key = self._state, write.key
        record = state.devices[write.device]
        if (write.device, key) not in self._marked:
            record.open.discard(key)
        if write.body is None:
            record.issued.pop(key, None)
            self._retries.pop((write.device, key), None)
            self._settle_applied(record, key)
            return
        authority = Authority(state.store, state.epoch, revision)
        directive = Directive(write.operation, authority, write.body, write.traceparent)
        issued = record.issued[key] = Issued(directive)
        self._await(record, key)
        if record.synced:
            issued.sent_s = state.now_s
            state.out.append(Send(write.device, directive))

    def _send_all(self, record: DeviceRecord) -> None:
        state = self._state
        directives = tuple(self._restamp(issued.directive) for issued in record.issued.values())
        for key, issued in record.issued.items():
            issued.sent_s = state.now_s
            self._retries.pop((record.device, key), None)
        authority = Authority(state.store, state.epoch, state.revision)
        state.out.append(SendAll(record.device, DirectiveSnapshot(authority, directives)))

    def _restamp(self, directive: Directive) -> Directive:
        """A stored directive in this leader's name: it stands by what earlier leaders wrote."""
        old, state = directive.authority, self._state
        if (old.store, old.epoch) == (state.store, state.epoch):
            return directive
        authority = Authority(state.store, state.epoch, old.revision)
        return Directive(directive.operation, authority, directive.body, directive.traceparent)

    # ---- what is awaited

    def _await(self, record: DeviceRecord, key: DirectiveKey) -> None:
        self._state.unapplied.setdefault(key, set()).add(record.device)

    def _settle_applied(self, record: DeviceRecord, key: DirectiveKey) -> None:
        """If ``key`` is as it is to be and its directive applied, nothing more is awaited of it."""
        issued = record.issued.get(key)
        if key in record.open or key in record.withheld:
            return
        if issued is not None and not issued.applied:
            return
        waiting = self._state.unapplied.get(key)
        if waiting is not None:
            waiting.discard(record.device)
            if not waiting:
                del self._state.unapplied[key]


def _subject_of(key: DirectiveKey, device: DeviceId) -> str:
    model = model_named(key)
    return f"model/{model}" if model is not None else f"device/{device}"
