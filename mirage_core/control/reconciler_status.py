"""What readers see: desired against observed revision, and conditions.  Pure reads.

Accepted is not applied: ``observed_revision`` follows ``desired_revision`` only when every device
concerned has applied what follows from the wish.  ``changed_unix_s`` is left to the caller, who
has a wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_core.cluster_model import (
    Condition,
    DirectiveKey,
    ModelState,
    NodeName,
    Outcome,
    Status,
    Truth,
)
from mirage_core.control.reconciler_records import DeviceRecord, ModelRecord
from mirage_core.control.reconciler_state import (
    DEVICE_KEY,
    PLACEMENT_KEY,
    ClusterState,
    lend_key,
    model_key,
)
from mirage_core.model import DeviceId, ModelName

_NAMED = 5
"""Devices that a message names before it only counts them."""


def model_status(state: ClusterState, name: ModelName) -> Status:
    """Raises KeyError if the model is not registered."""
    model = state.models[name]
    keys = (model_key(name), lend_key(name))
    waiting = _union(state, keys)
    each = [_applied(state, k, state.unapplied.get(k, set()), model.revision) for k in keys]
    applied = next((c for c in each if c.status is not Truth.TRUE), each[0])
    observed = model.observed_revision
    if not waiting and (model.devices or model.wish.state is ModelState.ABSENT):
        observed = model.revision
    elif not model.devices:
        applied = Condition(
            "Applied",
            Truth.UNKNOWN,
            "NoDevice",
            "the model is on no device, so nothing has taken the wish yet",
            model.revision,
        )
    return Status(model.revision, observed, (applied, _placed(model), _running(model)))


def device_status(state: ClusterState, device: DeviceId) -> Status:
    """Raises KeyError if the device is not known."""
    record = state.devices[device]
    keys = [DEVICE_KEY, PLACEMENT_KEY]
    waiting = {device} & _union(state, keys)
    applied = _applied(state, DEVICE_KEY, waiting, record.wish_revision)
    conditions = (applied, _reachable(record), _drained(state, record), _exhausted(state, record))
    return Status(record.wish_revision, record.wish_revision if not waiting else None, conditions)


def node_status(state: ClusterState, node: NodeName) -> Status:
    """Of a node that has devices or was wished something of."""
    _, revision = state.nodes.get(node, (None, 0))
    devices = {record.device for record in state.devices_of(node)}
    waiting = devices & state.unapplied.get(DEVICE_KEY, set())
    silent = [d for d in devices if not state.devices[d].connected]
    reachable = Condition(
        "Reachable",
        Truth.FALSE if silent else Truth.TRUE,
        "AgentsSilent" if silent else "Connected",
        f"not heard from: {_listed(silent)}" if silent else "",
    )
    conditions = (_applied(state, DEVICE_KEY, waiting, revision), reachable)
    return Status(revision, None if waiting else revision, conditions)


def cluster_status(state: ClusterState, weaknesses: Sequence[str]) -> Status:
    """``weaknesses`` of the store's durability, each with what ends it."""
    wish, revision = state.cluster
    waiting = state.unapplied.get(DEVICE_KEY, set())
    stopped = state.moves_stopped()
    wanted = state.wanted
    conditions = (
        _applied(state, DEVICE_KEY, waiting, revision),
        _flag("Frozen", wish.freeze, "nothing is remapped or moved until thaw"),
        _flag("Shadow", wish.shadow, "decisions are logged, not carried out"),
        _flag("MovesStopped", stopped, "a third of the agents or more are silent: see devices"),
        _flag("NodeNeeded", bool(wanted), "; ".join(wanted[name].why for name in sorted(wanted))),
        _flag("DurabilityWeak", bool(weaknesses), "; ".join(weaknesses)),
    )
    return Status(revision, None if waiting else revision, conditions)


def _applied(
    state: ClusterState, key: DirectiveKey, waiting: Iterable[DeviceId], revision: int
) -> Condition:
    devices = sorted(waiting)
    if not devices:
        return Condition("Applied", Truth.TRUE, "Applied", "", revision)
    for device in devices:
        issued = state.devices[device].issued.get(key)
        if issued is not None and issued.outcome is Outcome.REFUSED:
            message = f"{device}: {issued.reason}"
            return Condition("Applied", Truth.FALSE, "Refused", message, revision)
    withheld = [device for device in devices if key in state.devices[device].withheld]
    if withheld:
        message = (
            f"withheld from {_listed(withheld)}: its agent does not know this kind of directive,"
            " or a device of the replica is silent or refused it"
        )
        return Condition("Applied", Truth.FALSE, "Withheld", message, revision)
    silent = [device for device in devices if not state.devices[device].connected]
    if silent:
        message = f"not heard from: {_listed(silent)}"
        return Condition("Applied", Truth.UNKNOWN, "AgentSilent", message, revision)
    return Condition("Applied", Truth.FALSE, "Pending", f"waiting for {_listed(devices)}", revision)


def _placed(model: ModelRecord) -> Condition:
    if model.missing:
        message = f"{model.missing} replicas have no place: {model.why_missing}"
        return Condition("Placed", Truth.FALSE, "NoRoom", message, model.revision)
    if not model.placed:
        return Condition("Placed", Truth.FALSE, "Nowhere", "", model.revision)
    return Condition("Placed", Truth.TRUE, "Placed", _listed(model.placed), model.revision)


def _running(model: ModelRecord) -> Condition:
    absent = sorted(model.placed - model.running)
    if not model.running:
        return Condition("Running", Truth.FALSE, "NoEngine", "", model.revision)
    if absent:
        message = f"no engine on {_listed(absent)}"
        return Condition("Running", Truth.FALSE, "EngineMissing", message, model.revision)
    return Condition("Running", Truth.TRUE, "Running", "", model.revision)


def _reachable(record: DeviceRecord) -> Condition:
    if record.connected:
        return Condition("Reachable", Truth.TRUE, "Connected")
    return Condition("Reachable", Truth.FALSE, "AgentSilent", "its agent is not connected")


def _drained(state: ClusterState, record: DeviceRecord) -> Condition:
    if not state.drained(record):
        return Condition("Drained", Truth.FALSE, "NotAsked")
    if record.observation is None:
        return Condition("Drained", Truth.UNKNOWN, "NotReported")
    if record.observation.engines:
        left = ", ".join(sorted({each.model for each in record.observation.engines}))
        return Condition("Drained", Truth.FALSE, "EnginesRun", f"still here: {left}")
    return Condition("Drained", Truth.TRUE, "Drained")


def _exhausted(state: ClusterState, record: DeviceRecord) -> Condition:
    if record.observation is None:
        return Condition("Exhausted", Truth.UNKNOWN, "NotReported")
    if not state.is_short(record):
        return Condition("Exhausted", Truth.FALSE, "NoWait")
    message = f"{record.waiting} waits for pages, and nothing is left to remap"
    return Condition("Exhausted", Truth.TRUE, "ModelWaits", message)


def _flag(kind: str, holds: bool, message: str) -> Condition:
    status = Truth.TRUE if holds else Truth.FALSE
    return Condition(kind, status, kind if holds else f"Not{kind}", message if holds else "")


def _union(state: ClusterState, keys: Iterable[DirectiveKey]) -> set[DeviceId]:
    found: set[DeviceId] = set()
    return found.union(*(state.unapplied.get(key, set()) for key in keys))


def _listed(devices: Iterable[DeviceId]) -> str:
    names = sorted(devices)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
