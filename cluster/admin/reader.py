"""What readers are shown.

The leader shows wishes with what its reconciler knows of them.  A standby shows wishes as they are
in the store, and says of everything else that it is unknown here: only the leader has agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cluster.controller.mirror import Mirror
from cluster.controller.term import Term, WallClock
from cluster.records import CLUSTER, DEVICE, MODEL, NODE
from mirage_core.cluster_model import (
    ClusterWish,
    Condition,
    DeviceWish,
    DirectiveKey,
    NodeName,
    NodeWish,
    Revised,
    Status,
    Truth,
)
from mirage_core.control import reconciler_status as status
from mirage_core.control.reconciler_records import Issued
from mirage_core.model import DeviceId, ModelName
from mirage_core.policy.cluster.replicas import group_replicas
from mirage_core.ports import Clock
from mirage_core.wire import agent_codec
from mirage_core.wire import cluster_codec as codec
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2


class Reader:
    """Messages of the admin API, made when they are asked for."""

    def __init__(
        self,
        mirror: Mirror,
        term: Callable[[], Term | None],
        clock: Clock,
        wall: WallClock,
        weaknesses: Callable[[], tuple[str, ...]],
        leader_address: Callable[[], str],
    ) -> None:
        self._mirror = mirror
        self._term = term
        self._clock = clock
        self._wall = wall
        self._weaknesses = weaknesses
        self._leader_address = leader_address
        self._conditions: dict[tuple[str, str], tuple[Truth, str, float]] = {}

    # ---- names

    def models(self) -> list[str]:
        return list(self._mirror.of(MODEL))

    def devices(self, node: str = "") -> list[str]:
        term = self._term()
        if term is None:
            return [] if node else list(self._mirror.of(DEVICE))
        devices = term.reconciler.state.devices
        return [name for name, each in devices.items() if not node or each.node == node]

    def nodes(self) -> list[str]:
        names = set(self._mirror.of(NODE))
        if (term := self._term()) is not None:
            names.update(each.node for each in term.reconciler.state.devices.values() if each.node)
        return list(names)

    # ---- messages; None: there is no such thing

    def model(self, name: str) -> pb.Model | None:
        revised = self._mirror.of(MODEL).get(name)
        if revised is None:
            return None
        term, key = self._term(), ModelName(name)
        known = term is not None and key in term.reconciler.state.models
        shown = self._unknown(revised)
        if term is not None and known:
            shown = status.model_status(term.reconciler.state, key)
        return pb.Model(
            wish=codec.encode_model_wish(revised.wish),
            provenance=_provenance(revised),
            status=self._stamped(f"model/{name}", shown),
            replicas=self._replicas(term, key) if term is not None and known else (),
        )

    def _replicas(self, term: Term, name: ModelName) -> Iterable[pb.Replica]:
        state = term.reconciler.state
        model = state.models[name]
        nodes = {device: state.devices[device].node for device in model.placed}
        per_replica = model.wish.spec.devices_per_replica
        replicas, _ = group_replicas(model.placed, nodes, per_replica)
        for replica in replicas:
            message = pb.Replica(devices=replica)
            seen = [state.devices[device].running.get(name) for device in replica]
            states = [each.active if each is not None else None for each in seen]
            if True in states or None not in states:
                message.active = True in states
            yield message

    def device(self, name: str) -> pb.Device | None:
        term = self._term()
        revised = self._mirror.of(DEVICE).get(name) or Revised(DeviceWish(DeviceId(name)), 0)
        if term is None:
            if not revised.revision:
                return None
            return pb.Device(
                wish=codec.encode_device_wish(revised.wish),
                provenance=_provenance(revised),
                status=codec.encode_status(self._unknown(revised)),
            )
        record = term.reconciler.state.devices.get(DeviceId(name))
        if record is None:
            return None
        message = pb.Device(
            wish=codec.encode_device_wish(revised.wish),
            provenance=_provenance(revised),
            status=self._stamped(
                f"device/{name}", status.device_status(term.reconciler.state, record.device)
            ),
            reachability=(
                pb.REACHABILITY_CONNECTED if record.connected else pb.REACHABILITY_SILENT
            ),
        )
        if record.hello is not None:
            message.node = record.hello.node
            message.host_link = record.hello.host_link
            message.page_bytes = record.hello.page_bytes
            message.pages = record.hello.pages
            message.agent_incarnation = record.hello.incarnation
        if record.observation is not None:
            message.observation.CopyFrom(agent_codec.encode_observation(record.observation))
            message.observed_age_s = max(0.0, self._clock.monotonic_s() - record.observed_s)
        return message

    def node(self, name: str) -> pb.Node | None:
        revised = self._mirror.of(NODE).get(name)
        term = self._term()
        members = term.reconciler.state.devices_of(NodeName(name)) if term is not None else []
        if revised is None and not members:
            return None
        revised = revised or Revised(NodeWish(NodeName(name)), 0)
        shown = self._unknown(revised)
        if term is not None:
            shown = status.node_status(term.reconciler.state, NodeName(name))
        return pb.Node(
            wish=codec.encode_node_wish(revised.wish),
            provenance=_provenance(revised),
            status=self._stamped(f"node/{name}", shown),
            devices=sorted(record.device for record in members),
        )

    def cluster(self) -> pb.Cluster:
        revised = self._mirror.of(CLUSTER).get(CLUSTER) or Revised(ClusterWish(), 0)
        term, position = self._term(), self._mirror.position
        shown = self._unknown(revised)
        if term is not None:
            shown = status.cluster_status(term.reconciler.state, self._weaknesses())
        message = pb.Cluster(
            wish=codec.encode_cluster_wish(revised.wish),
            provenance=_provenance(revised),
            status=self._stamped(CLUSTER, shown),
            leader_address=self._leader_address(),
        )
        if position is not None:
            message.revision = position.revision
            message.store_incarnation = position.incarnation
        if term is not None:
            message.leader_epoch = term.fence.epoch
            message.connected_agents = term.reconciler.state.connected
            message.silent_agents = term.reconciler.state.silent_agents()
        return message

    def directive(self, device: DeviceId, key: DirectiveKey) -> pb.DirectiveRecord | None:
        term = self._term()
        record = term.reconciler.state.devices.get(device) if term is not None else None
        issued = record.issued.get(key) if record is not None else None
        return self._directive(device, key, issued) if issued is not None else None

    def find_directive(self, operation: str) -> pb.DirectiveRecord | None:
        term = self._term()
        for device, record in term.reconciler.state.devices.items() if term is not None else ():
            for key, issued in record.issued.items():
                if issued.directive.operation == operation:
                    return self._directive(device, key, issued)
        return None

    def directives(self, device: str = "") -> dict[str, tuple[DeviceId, DirectiveKey]]:
        """(device, key) by a name that orders them."""
        term = self._term()
        if term is None:
            return {}
        devices = term.reconciler.state.devices
        chosen = devices if not device else {device: devices[DeviceId(device)]}
        return {
            f"{name}/{key}": (DeviceId(name), key)
            for name, record in chosen.items()
            for key in record.issued
        }

    def _directive(self, device: DeviceId, key: DirectiveKey, issued: Issued) -> pb.DirectiveRecord:
        message = pb.DirectiveRecord(
            directive=codec.encode_directive(issued.directive),
            device=device,
            key=key,
            reason=issued.reason,
        )
        if issued.outcome is not None:
            message.outcome = getattr(common_pb2, f"DIRECTIVE_OUTCOME_{issued.outcome.name}")
        if issued.sent_s is not None:
            ago_s = self._clock.monotonic_s() - issued.sent_s
            message.sent_unix_s = self._wall.unix_s() - ago_s
            if issued.answered_s is not None:
                message.answered_after_s = max(0.0, issued.answered_s - issued.sent_s)
        return message

    # ---- status

    def _unknown(self, revised: Revised[Any]) -> Status:
        where = self._leader_address()
        message = f"the leader knows: {where}" if where else "no leader is known"
        applied = Condition("Applied", Truth.UNKNOWN, "Standby", message, revised.revision)
        return Status(revised.revision, None, (applied,))

    def _stamped(self, subject: str, shown: Status) -> common_pb2.Status:
        """With the wall time at which each condition became what it is, as far as was seen."""
        message = codec.encode_status(shown)
        now_unix_s = self._wall.unix_s()
        for condition, encoded in zip(shown.conditions, message.conditions, strict=True):
            key = (subject, condition.kind)
            before = self._conditions.get(key)
            if before is None or before[:2] != (condition.status, condition.reason):
                before = (condition.status, condition.reason, now_unix_s)
                self._conditions[key] = before
            encoded.changed_unix_s = before[2]
        return message


def _provenance(revised: Revised[Any]) -> pb.Provenance:
    return pb.Provenance(
        revision=revised.revision, set_by=revised.set_by, set_unix_s=revised.set_unix_s
    )
