"""What is to hold on a device under a key, from what is wished and seen now.

A setting of a model whose replicas hold several devices goes to all of a replica's devices or to
none: while one is silent it is *withheld* from all, and when one refuses it for good all go back
to what they last agreed to.
"""

from __future__ import annotations

from mirage_core.cluster_model import (
    FREE_LENDING,
    DirectDevice,
    DirectiveBody,
    DirectiveKey,
    DirectLending,
    DirectModel,
    DirectPlacement,
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
from mirage_core.policy.cluster.replicas import Replica, group_replicas, may_change
from mirage_core.policy.cluster.turns import choose_turn


class Desired:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._refused: dict[tuple[DeviceId, DirectiveKey], set[DirectiveBody]] = {}
        self._agreed: dict[tuple[DirectiveKey, Replica], DirectiveBody] = {}

    def keys_of(self, record: DeviceRecord) -> set[DirectiveKey]:
        """All keys under which something is to hold on a device, or does."""
        here = {
            key
            for name in self._state.models_of(record)
            for key in self.keys_of_model(record, name)
        }
        return {DEVICE_KEY, PLACEMENT_KEY} | here | record.issued.keys()

    def keys_of_model(self, record: DeviceRecord, name: ModelName) -> list[DirectiveKey]:
        """Keys under which something of a model is to hold on a device, or does."""
        key, model = lend_key(name), self._state.models.get(name)
        bounded = model is not None and model.wish.lending != FREE_LENDING
        known = key in record.issued or key in record.open or key in record.withheld
        return [model_key(name), key] if bounded or known else [model_key(name)]

    def body(self, record: DeviceRecord, key: DirectiveKey) -> DirectiveBody | None:
        """What is to hold under ``key``, None: nothing; and notes whether that is withheld."""
        body, withheld = self._body(record, key), False
        if body is not None and not record.understands(key):
            body, withheld = None, True
        model = self._state.model_of(key)
        if body is not None and model is not None and model.wish.spec.devices_per_replica > 1:
            body, withheld = self._all_or_none(record, key, body)
        (record.withheld.add if withheld else record.withheld.discard)(key)
        return body

    def _body(self, record: DeviceRecord, key: DirectiveKey) -> DirectiveBody | None:
        state = self._state
        if key == DEVICE_KEY:
            wish, _ = state.cluster
            drain = state.drained(record)
            return DirectDevice(record.wish.sharing, drain, wish.freeze, wish.shadow)
        if key == PLACEMENT_KEY:
            return DirectPlacement(tuple(sorted(record.placed))) if state.models else None
        model = state.model_of(key)
        if model is None or not model.is_on(record.device):
            return None
        if key == lend_key(model.wish.name):
            return self._lending(model)
        return self._model(record, model)

    def _lending(self, model: ModelRecord) -> DirectLending | None:
        bounds = model.wish.lending
        if bounds == FREE_LENDING:
            return None
        return DirectLending(model.wish.name, bounds.at_least_bytes, bounds.at_most_bytes)

    def _model(self, record: DeviceRecord, model: ModelRecord) -> DirectModel:
        wish, placed = model.wish, record.device in model.placed
        elsewhere = 0 if placed else len(model.running & model.placed)
        turn = choose_turn(
            wish, placed=placed, running_elsewhere=elsewhere // wish.spec.devices_per_replica
        )
        return DirectModel(wish.name, wish.priority, wish.floor_bytes, wish.pinned, turn)

    # ---- all or none

    def _all_or_none(
        self, record: DeviceRecord, key: DirectiveKey, body: DirectiveBody
    ) -> tuple[DirectiveBody | None, bool]:
        """``body``, or what holds instead while a device of the replica cannot take it; and
        whether that is so."""
        replica = self.replica_of(record, key)
        if not replica:
            return body, False
        reachable = [d for d in replica if self._state.devices[d].connected]
        refused = [d for d in replica if body in self._refused.get((d, key), ())]
        if may_change(replica, reachable, refused):
            return body, False
        if refused:
            return self._agreed.get((key, replica)), True
        issued = record.issued.get(key)
        return (issued.body if issued is not None else None), True

    def replica_of(self, record: DeviceRecord, key: DirectiveKey) -> Replica:
        """The devices that ``key`` binds together with this one; empty if there are none."""
        model = self._state.model_of(key)
        if model is None or model.wish.spec.devices_per_replica == 1:
            return ()
        nodes = {device: self._state.devices[device].node for device in model.placed}
        replicas, _ = group_replicas(model.placed, nodes, model.wish.spec.devices_per_replica)
        return next((replica for replica in replicas if record.device in replica), ())

    def note_refused(self, record: DeviceRecord, key: DirectiveKey, body: DirectiveBody) -> None:
        """A device will not have ``body``; remembered until something else is wished."""
        if self.replica_of(record, key):
            self._refused.setdefault((record.device, key), set()).add(body)

    def forget_refused(self, key: DirectiveKey, *devices: DeviceId) -> None:
        for device in devices:
            self._refused.pop((device, key), None)

    def note_agreed(self, record: DeviceRecord, key: DirectiveKey) -> None:
        """If a whole replica has applied one body, that is what it can go back to."""
        replica = self.replica_of(record, key)
        if not replica:
            return
        issued = [self._state.devices[device].issued.get(key) for device in replica]
        bodies = {each.body if each is not None and each.applied else None for each in issued}
        body = bodies.pop()
        if body is not None and not bodies:
            self._agreed[key, replica] = body
