"""The reconciler's part that decides where models belong, and what helps a full device.

Nothing is moved while the cluster is frozen, or while so many agents are silent that the network
is the likelier cause; in shadow mode a decision is told once and not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from mirage_core.cluster_model import ModelState, Severity
from mirage_core.control.reconciler_directives import Directives
from mirage_core.control.reconciler_records import DeviceRecord, ModelRecord
from mirage_core.control.reconciler_state import PLACEMENT_KEY, ClusterState
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.placement import Placed, place_model
from mirage_core.policy.cluster.ranks import Shortage, rank_models, rank_shortages
from mirage_core.policy.cluster.relief import (
    AskForNode,
    Move,
    Relief,
    Replicate,
    choose_relief,
)
from mirage_core.policy.cluster.view import ClusterDevice

_AT_ONCE = 64
"""Models placed at one event; the rest at the next ones, so that a thousand hold nothing up."""
_SETTLED_S = 5.0
"""Moves are said to have stopped, or to go on, once that has held for so long."""


class Placements:
    """Decides every model's ``placed``, and what nodes are wanted."""

    def __init__(self, state: ClusterState, directives: Directives) -> None:
        self._state = state
        self._directives = directives
        self._due: set[ModelName] = set()
        self._urgent = False
        self._told: dict[str, str] = {}
        self._stopped_told = False
        self._stopped_changed_s: float | None = None

    def reconsider(self, *models: ModelName) -> None:
        """Place these anew, at once."""
        self._due.update(models)
        self._urgent = True

    def reconsider_missing(self) -> None:
        """Place anew, at the next tick, what found no room before."""
        self._due.update(name for name, model in self._state.models.items() if model.missing)

    def tick(self) -> None:
        now_s = self._state.now_s
        self._tell_stopped(now_s)
        lost_s = now_s - self._state.settings.lost_after_s
        for record in self._state.devices.values():
            if record.silent_since_s is not None and record.silent_since_s <= lost_s:
                self._due.update(record.placed)
        for name, model in self._state.models.items():
            wished = model.wish.placement.replicas * model.wish.spec.devices_per_replica
            if len(model.placed) > wished and not model.wish.placement.devices:
                self._due.add(name)
        self._urgent = True
        self._relieve(now_s)

    def settle(self) -> None:
        """Place what is due, as far as models may be moved now."""
        if not self._urgent:
            return
        self._urgent = False
        stopped = self._state.moves_stopped()
        due = [self._state.models[name] for name in self._due if name in self._state.models]
        free = {model.wish.name: model for model in due if self._may_place(model, stopped)}
        self._due = {model.wish.name for model in due}.difference(free)
        if not free:
            return
        idle_before_s = self._state.now_s - self._state.settings.retire_after_s
        views = _Views(self._state.devices, self._view)
        ranked = rank_models(model.wish for model in free.values())
        self._due.update(wish.name for wish in ranked[_AT_ONCE:])
        self._urgent = len(ranked) > _AT_ONCE
        for wish in ranked[:_AT_ONCE]:
            model = free[wish.name]
            placed = place_model(wish, views, model.placed, idle_before_s=idle_before_s)
            if placed.devices == model.placed:
                self._note(model, placed)
            elif self._may_act(wish.name, f"belongs on {_names(placed.devices)}"):
                self._note(model, placed)
                where = _names(placed.devices) or "no device"
                self._state.emit("Placed", f"model/{wish.name}", f"belongs on {where}")
                views.forget(*self._place(model, placed.devices))

    def _place(self, model: ModelRecord, devices: frozenset[DeviceId]) -> frozenset[DeviceId]:
        """``model`` belongs on ``devices`` from now on; those for which that is news."""
        name, changed = model.wish.name, model.placed ^ devices
        model.placed = devices
        for device in changed:
            record = self._state.devices[device]
            (record.placed.add if device in devices else record.placed.discard)(name)
            self._directives.mark(record, PLACEMENT_KEY)
        self._directives.mark_model(name, *model.devices.union(changed))
        self._state.changed(f"model/{name}")
        return changed

    def _may_place(self, model: ModelRecord, stopped: bool) -> bool:
        """Absent models leave whatever happens; the rest waits while nothing may move, but for
        what an operator named."""
        wish = model.wish
        if wish.state is ModelState.ABSENT:
            return True
        if self._state.cluster[0].freeze:
            return False
        return bool(wish.placement.devices) or not stopped

    def _may_act(self, subject: str, decision: str) -> bool:
        """False in shadow mode, where the decision is told once instead."""
        if not self._state.cluster[0].shadow:
            self._told.pop(subject, None)
            return True
        if self._told.get(subject) != decision:
            self._told[subject] = decision
            self._state.emit("Shadowed", f"model/{subject}", f"would act: {decision}")
        return False

    def _note(self, model: ModelRecord, placed: Placed) -> None:
        if (placed.missing, placed.why) == (model.missing, model.why_missing):
            return
        model.missing, model.why_missing = placed.missing, placed.why
        if placed.missing:
            name = model.wish.name
            self._state.emit("NotPlaced", f"model/{name}", placed.why, Severity.WARNING)

    # ---- relief

    def _relieve(self, now_s: float) -> None:
        """Help one device a tick, the one whose model matters most."""
        shortages = list(self._shortages(now_s))
        state = self._state
        short = {each.waiting for each in state.devices.values() if state.is_short(each)}
        state.wanted = {name: ask for name, ask in state.wanted.items() if name in short}
        if not shortages or state.cluster[0].freeze or state.moves_stopped():
            return
        views = _Views(state.devices, self._view)
        for shortage in rank_shortages(shortages):
            record = state.devices[shortage.device]
            wish = state.models[shortage.model].wish
            relief = choose_relief(views[shortage.device], wish, views.values())
            if isinstance(relief, AskForNode) and state.wanted.get(wish.name) == relief:
                continue
            record.relieved_s = now_s
            if self._may_act(relief.model, relief.why):
                self._perform(relief)
            return

    def _shortages(self, now_s: float) -> Iterable[Shortage]:
        settings = self._state.settings
        for record in self._state.devices.values():
            if record.waiting is None or not record.connected:
                continue
            paused = (
                record.relieved_s is not None
                and now_s - record.relieved_s < settings.relief_pause_s
            )
            model = self._state.models.get(record.waiting)
            waited_s = now_s - record.waiting_since_s
            if self._state.is_short(record) and not paused and model is not None:
                yield Shortage(record.device, record.waiting, model.wish.priority, waited_s)

    def _perform(self, relief: Relief) -> None:
        model = self._state.models[relief.model]
        subject = f"model/{relief.model}"
        match relief:
            case Move(source=source, target=target, why=why):
                self._state.emit("Moved", subject, f"{source} to {target}: {why}")
                self._place(model, model.placed - {source} | {target})
            case Replicate(targets=targets, why=why):
                self._state.emit("Replicated", subject, f"to {', '.join(targets)}: {why}")
                self._place(model, model.placed.union(targets))
            case AskForNode(devices=devices, need_bytes=need, why=why):
                self._state.wanted = {**self._state.wanted, relief.model: relief}
                self._state.emit(
                    "NodeNeeded",
                    subject,
                    why,
                    Severity.WARNING,
                    devices=str(devices),
                    bytes_per_device=str(need),
                )

    # ---- views

    def _view(self, record: DeviceRecord) -> ClusterDevice:
        models = [self._state.models[name] for name in self._state.models_of(record)]
        return record.view(self._state.standing(record), models)

    def _tell_stopped(self, now_s: float) -> None:
        stopped = self._state.moves_stopped()
        if stopped == self._stopped_told:
            self._stopped_changed_s = None
            return
        if self._stopped_changed_s is None:
            self._stopped_changed_s = now_s
        if now_s - self._stopped_changed_s < _SETTLED_S:
            return
        self._stopped_told = stopped
        silent, connected = self._state.silent_agents(), self._state.connected
        message = f"{silent} agents are silent, {connected} connected"
        if stopped:
            self._state.emit("MovesStopped", "cluster", message, Severity.WARNING)
        else:
            self._state.emit("MovesResumed", "cluster", message)


class _Views(Mapping[DeviceId, ClusterDevice]):
    """The devices as the policy sees them, each made when it is first looked at: a model whose
    devices an operator named asks for those alone."""

    def __init__(
        self,
        records: Mapping[DeviceId, DeviceRecord],
        view: Callable[[DeviceRecord], ClusterDevice],
    ) -> None:
        self._records = records
        self._view = view
        self._made: dict[DeviceId, ClusterDevice] = {}

    def __getitem__(self, device: DeviceId) -> ClusterDevice:
        made = self._made.get(device)
        if made is None:
            made = self._made[device] = self._view(self._records[device])
        return made

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, device: object) -> bool:
        return device in self._records

    def forget(self, *devices: DeviceId) -> None:
        """Look again: something of them changed."""
        for device in devices:
            self._made.pop(device, None)


def _names(devices: Iterable[DeviceId]) -> str:
    listed = sorted(devices)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(listed[:8]) + more
