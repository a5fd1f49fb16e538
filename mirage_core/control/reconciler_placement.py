"""The reconciler's part that decides where models belong, and what helps a full device.

Nothing is moved while the cluster is frozen, or while so many agents are silent that the network
is the likelier cause; in shadow mode a decision is told once and not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from mirage_core.cluster_model import ModelState, Severity
from mirage_core.control.reconciler_events import Emit
from mirage_core.control.reconciler_records import DeviceRecord, ModelRecord
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

if TYPE_CHECKING:
    from mirage_core.control.reconciler import Reconciler

_SETTLED_S = 5.0
"""Moves are said to have stopped, or to go on, once that has held for so long."""


class Placements:
    """Owns every model's ``placed``; reads all else of its reconciler."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._all = reconciler
        self._due: set[ModelName] = set()
        self._urgent = False
        self._told: dict[str, str] = {}
        self._stopped_told = False
        self._stopped_changed_s: float | None = None
        self.wanted: dict[ModelName, AskForNode] = {}
        """nodes asked for, by the model that needs one"""

    def reconsider(self, models: Iterable[ModelName]) -> None:
        """Place these anew, at once."""
        self._due.update(models)
        self._urgent = True

    def reconsider_all(self) -> None:
        self.reconsider(self._all.models)

    def reconsider_missing(self) -> None:
        """Place anew, at the next tick, what found no room before."""
        self._due.update(name for name, model in self._all.models.items() if model.missing)

    def tick(self, now_s: float) -> None:
        self._tell_stopped(now_s)
        lost_s = now_s - self._all.settings.lost_after_s
        for record in self._all.devices.values():
            if record.silent_since_s is not None and record.silent_since_s <= lost_s:
                self._due.update(record.placed)
        for name, model in self._all.models.items():
            wished = model.wish.placement.replicas * model.wish.spec.devices_per_replica
            if len(model.placed) > wished and not model.wish.placement.devices:
                self._due.add(name)
        self._urgent = True
        self._relieve(now_s)

    def settle(self, now_s: float) -> None:
        """Place what is due, as far as models may be moved now."""
        if not self._urgent:
            return
        self._urgent = False
        due = [self._all.models[name] for name in self._due if name in self._all.models]
        free = [model for model in due if self._may_place(model)]
        self._due = {model.wish.name for model in due if model not in free}
        if not free:
            return
        idle_before_s = now_s - self._all.settings.retire_after_s
        views = self._views()
        records = {model.wish.name: model for model in free}
        for wish in rank_models(model.wish for model in free):
            model = records[wish.name]
            placed = place_model(wish, views, model.placed, idle_before_s=idle_before_s)
            if placed.devices == model.placed:
                self._note(model, placed)
            elif self._may_act(wish.name, f"belongs on {_names(placed.devices)}"):
                self._note(model, placed)
                changed = placed.devices ^ model.placed
                self._tell_placed(model, placed.devices)
                self._all.set_placed(model, placed.devices)
                for device in changed:
                    views.forget(device)

    def _may_place(self, model: ModelRecord) -> bool:
        """Absent models leave whatever happens; the rest waits while nothing may move, but for
        what an operator named."""
        wish = model.wish
        if wish.state is ModelState.ABSENT:
            return True
        if self._all.cluster[0].freeze:
            return False
        return bool(wish.placement.devices) or not self._all.moves_stopped()

    def _may_act(self, subject: str, decision: str) -> bool:
        """False in shadow mode, where the decision is told once instead."""
        if not self._all.cluster[0].shadow:
            self._told.pop(subject, None)
            return True
        if self._told.get(subject) != decision:
            self._told[subject] = decision
            self._all.emit(Emit("Shadowed", f"model/{subject}", f"would act: {decision}"))
        return False

    def _note(self, model: ModelRecord, placed: Placed) -> None:
        if (placed.missing, placed.why) == (model.missing, model.why_missing):
            return
        model.missing, model.why_missing = placed.missing, placed.why
        if placed.missing:
            name = model.wish.name
            self._all.emit(Emit("NotPlaced", f"model/{name}", placed.why, Severity.WARNING))

    def _tell_placed(self, model: ModelRecord, devices: frozenset[DeviceId]) -> None:
        where = _names(devices) if devices else "no device"
        self._all.emit(Emit("Placed", f"model/{model.wish.name}", f"belongs on {where}"))

    # ---- relief

    def _relieve(self, now_s: float) -> None:
        """Help one device a tick, the one whose model matters most."""
        shortages = list(self._shortages(now_s))
        short = {each.waiting for each in self._all.devices.values() if self._all.is_short(each)}
        self.wanted = {name: ask for name, ask in self.wanted.items() if name in short}
        if not shortages or self._all.cluster[0].freeze or self._all.moves_stopped():
            return
        views = self._views()
        for shortage in rank_shortages(shortages):
            record = self._all.devices[shortage.device]
            wish = self._all.models[shortage.model].wish
            relief = choose_relief(views[shortage.device], wish, views.values())
            if isinstance(relief, AskForNode) and self.wanted.get(wish.name) == relief:
                continue
            record.relieved_s = now_s
            if self._may_act(relief.model, relief.why):
                self._perform(relief)
            return

    def _shortages(self, now_s: float) -> Iterable[Shortage]:
        settings = self._all.settings
        for record in self._all.devices.values():
            if record.waiting is None or not record.connected:
                continue
            paused = (
                record.relieved_s is not None
                and now_s - record.relieved_s < settings.relief_pause_s
            )
            model = self._all.models.get(record.waiting)
            waited_s = now_s - record.waiting_since_s
            if self._all.is_short(record) and not paused and model is not None:
                yield Shortage(record.device, record.waiting, model.wish.priority, waited_s)

    def _perform(self, relief: Relief) -> None:
        model = self._all.models[relief.model]
        subject = f"model/{relief.model}"
        match relief:
            case Move(source=source, target=target, why=why):
                self._all.emit(Emit("Moved", subject, f"{source} to {target}: {why}"))
                self._all.set_placed(model, model.placed - {source} | {target})
            case Replicate(targets=targets, why=why):
                self._all.emit(Emit("Replicated", subject, f"to {', '.join(targets)}: {why}"))
                self._all.set_placed(model, model.placed.union(targets))
            case AskForNode(devices=devices, need_bytes=need, why=why):
                self.wanted[relief.model] = relief
                self._all.emit(
                    Emit(
                        "NodeNeeded",
                        subject,
                        why,
                        Severity.WARNING,
                        {"devices": str(devices), "bytes_per_device": str(need)},
                    )
                )

    # ---- views

    def _views(self) -> _Views:
        return _Views(self._all.devices, self._view)

    def _view(self, record: DeviceRecord) -> ClusterDevice:
        models = [self._all.models[name] for name in self._all.models_of(record)]
        return record.view(self._all.standing(record), models)

    def _tell_stopped(self, now_s: float) -> None:
        stopped = self._all.moves_stopped()
        if stopped == self._stopped_told:
            self._stopped_changed_s = None
            return
        if self._stopped_changed_s is None:
            self._stopped_changed_s = now_s
        if now_s - self._stopped_changed_s < _SETTLED_S:
            return
        self._stopped_told = stopped
        silent, connected = self._all.silent_agents(), self._all.connected
        message = f"{silent} agents are silent, {connected} connected"
        if stopped:
            self._all.emit(Emit("MovesStopped", "cluster", message, Severity.WARNING))
        else:
            self._all.emit(Emit("MovesResumed", "cluster", message))


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

    def forget(self, device: DeviceId) -> None:
        """Look again: something of it changed."""
        self._made.pop(device, None)


def _names(devices: Iterable[DeviceId]) -> str:
    listed = sorted(devices)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(listed[:8]) + more
