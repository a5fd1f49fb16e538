"""AdminService: one short method a call."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from cluster.admin import edits, pages
from cluster.admin.reader import Reader
from cluster.admin.watch import Watches
from cluster.admin.writer import Change, Edit, Writer
from cluster.controller.term import Term
from cluster.records import CLUSTER, DEVICE, MODEL, NODE, read_subject
from cluster.rpc.errors import Violation, invalid, not_found, not_leader
from cluster.store.port import RecordStore, StoredEvent
from mirage_core.cluster_model import Explanation, ModelState, NodeName
from mirage_core.model import DeviceId
from mirage_core.wire import agent_codec
from mirage_core.wire import cluster_codec as codec
from mirage_core.wire.cluster_codec import MAX_REVISION
from mirage_core.wire.fields import read_count, read_name
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import admin_pb2_grpc, common_pb2

_EVENT_PAGES = 20
"""Pages of the event stream that one call searches for a subject's events."""
_EXPLANATIONS = 100


def new_uid() -> str:
    return uuid.uuid4().hex


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        watches: Watches,
        store: RecordStore,
        term: Callable[[], Term | None],
        leader_address: Callable[[], str],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._watches = watches
        self._store = store
        self._term = term
        self._leader_address = leader_address

    # ---- models

    async def ListModels(self, request: Any, context: Any) -> pb.ListModelsResponse:
        names, token = pages.page_of(self._reader.models(), request.page)
        models = [model for name in names if (model := self._reader.model(name)) is not None]
        return pb.ListModelsResponse(models=models, next_page_token=token)

    async def GetModel(self, request: Any, context: Any) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=self._model(read_subject(request.name, "name")))

    async def RegisterModel(self, request: Any, context: Any) -> pb.RegisterModelResponse:
        wish = codec.decode_model_wish(request.wish)
        edit = edits.register(wish, new_uid)
        return pb.RegisterModelResponse(
            model=await self._write_model(wish.name, request, "RegisterModel", edit)
        )

    async def UpdateModel(self, request: Any, context: Any) -> pb.UpdateModelResponse:
        wish = codec.decode_model_wish(request.wish)
        edit = edits.update(wish)
        return pb.UpdateModelResponse(
            model=await self._write_model(wish.name, request, "UpdateModel", edit)
        )

    async def DeleteModel(self, request: Any, context: Any) -> pb.DeleteModelResponse:
        name = read_subject(request.name, "name")
        edit = edits.delete_model(name)
        return pb.DeleteModelResponse(
            model=await self._write_model(name, request, "DeleteModel", edit)
        )

    async def ActivateModel(self, request: Any, context: Any) -> pb.ActivateModelResponse:
        return pb.ActivateModelResponse(
            model=await self._change_model(request, "ActivateModel", state=ModelState.ACTIVE)
        )

    async def DeactivateModel(self, request: Any, context: Any) -> pb.DeactivateModelResponse:
        return pb.DeactivateModelResponse(
            model=await self._change_model(request, "DeactivateModel", state=ModelState.INACTIVE)
        )

    async def SetModelPriority(self, request: Any, context: Any) -> pb.SetModelPriorityResponse:
        return pb.SetModelPriorityResponse(
            model=await self._change_model(request, "SetModelPriority", priority=request.priority)
        )

    async def SetModelFloor(self, request: Any, context: Any) -> pb.SetModelFloorResponse:
        floor = request.floor_bytes if request.HasField("floor_bytes") else None
        return pb.SetModelFloorResponse(
            model=await self._change_model(request, "SetModelFloor", floor_bytes=floor)
        )

    async def SetModelPinned(self, request: Any, context: Any) -> pb.SetModelPinnedResponse:
        return pb.SetModelPinnedResponse(
            model=await self._change_model(request, "SetModelPinned", pinned=request.pinned)
        )

    async def SetModelLending(self, request: Any, context: Any) -> pb.SetModelLendingResponse:
        lending = codec.decode_lending(request.lending, "lending")
        return pb.SetModelLendingResponse(
            model=await self._change_model(request, "SetModelLending", lending=lending)
        )

    async def _change_model(self, request: Any, method: str, **fields: Any) -> pb.Model:
        name = read_subject(request.name, "name")
        return await self._write_model(name, request, method, edits.change_model(name, **fields))

    async def _write_model(self, name: str, request: Any, method: str, edit: Edit) -> pb.Model:
        change, revision = await self._writer.change(MODEL, name, request, method, edit)
        model = self._reader.model(name) or pb.Model()
        behind = model.provenance.revision < revision  # the mirror is slow
        if change is not None and (request.options.dry_run or behind or not model.wish.name):
            # Of a dry run the wish as it would be; of a model that is gone already, its last.
            model.wish.CopyFrom(codec.encode_model_wish(change.after))  # type: ignore[arg-type]
            model.provenance.revision = revision
        model.wish.name = name
        return model

    def _model(self, name: str) -> pb.Model:
        model = self._reader.model(name)
        if model is None:
            raise not_found("model", name, "mirage model list shows those that are registered")
        return model

    # ---- devices

    async def ListDevices(self, request: Any, context: Any) -> pb.ListDevicesResponse:
        names, token = pages.page_of(self._reader.devices(request.node), request.page)
        devices = [each for name in names if (each := self._reader.device(name)) is not None]
        return pb.ListDevicesResponse(devices=devices, next_page_token=token)

    async def GetDevice(self, request: Any, context: Any) -> pb.GetDeviceResponse:
        return pb.GetDeviceResponse(device=self._device(read_subject(request.device, "device")))

    async def SetDeviceSharing(self, request: Any, context: Any) -> pb.SetDeviceSharingResponse:
        sharing = codec.decode_sharing(request.sharing, "sharing")
        return pb.SetDeviceSharingResponse(
            device=await self._change_device(request, "SetDeviceSharing", sharing=sharing)
        )

    async def DrainDevice(self, request: Any, context: Any) -> pb.DrainDeviceResponse:
        return pb.DrainDeviceResponse(
            device=await self._change_device(request, "DrainDevice", drain=True)
        )

    async def UndrainDevice(self, request: Any, context: Any) -> pb.UndrainDeviceResponse:
        return pb.UndrainDeviceResponse(
            device=await self._change_device(request, "UndrainDevice", drain=False)
        )

    async def _change_device(self, request: Any, method: str, **fields: Any) -> pb.Device:
        name = read_subject(request.device, "device")
        self._lead()
        self._device(name)
        edit = edits.change_device(DeviceId(name), **fields)
        change, _ = await self._writer.change(DEVICE, name, request, method, edit)
        device = self._device(name)
        if request.options.dry_run and change is not None:
            device.wish.CopyFrom(codec.encode_device_wish(change.after))  # type: ignore[arg-type]
        return device

    def _device(self, name: str) -> pb.Device:
        device = self._reader.device(name)
        if device is None:
            raise not_found("device", name, "mirage device list shows those that are known")
        return device

    # ---- nodes

    async def ListNodes(self, request: Any, context: Any) -> pb.ListNodesResponse:
        names, token = pages.page_of(self._reader.nodes(), request.page)
        nodes = [each for name in names if (each := self._reader.node(name)) is not None]
        return pb.ListNodesResponse(nodes=nodes, next_page_token=token)

    async def GetNode(self, request: Any, context: Any) -> pb.GetNodeResponse:
        return pb.GetNodeResponse(node=self._node(read_subject(request.node, "node")))

    async def DrainNode(self, request: Any, context: Any) -> pb.DrainNodeResponse:
        return pb.DrainNodeResponse(node=await self._drain_node(request, "DrainNode", True))

    async def UndrainNode(self, request: Any, context: Any) -> pb.UndrainNodeResponse:
        return pb.UndrainNodeResponse(node=await self._drain_node(request, "UndrainNode", False))

    async def _drain_node(self, request: Any, method: str, drain: bool) -> pb.Node:
        name = read_subject(request.node, "node")
        self._lead()
        self._node(name)
        edit = edits.change_node(NodeName(name), drain=drain)
        change, _ = await self._writer.change(NODE, name, request, method, edit)
        node = self._node(name)
        if request.options.dry_run and change is not None:
            node.wish.CopyFrom(codec.encode_node_wish(change.after))  # type: ignore[arg-type]
        return node

    def _node(self, name: str) -> pb.Node:
        node = self._reader.node(name)
        if node is None:
            raise not_found("node", name, "mirage node list shows those that are known")
        return node

    # ---- the cluster

    async def GetCluster(self, request: Any, context: Any) -> pb.GetClusterResponse:
        return pb.GetClusterResponse(cluster=self._reader.cluster())

    async def Freeze(self, request: Any, context: Any) -> pb.FreezeResponse:
        return pb.FreezeResponse(cluster=await self._change_cluster(request, "Freeze", freeze=True))

    async def Thaw(self, request: Any, context: Any) -> pb.ThawResponse:
        return pb.ThawResponse(cluster=await self._change_cluster(request, "Thaw", freeze=False))

    async def SetShadow(self, request: Any, context: Any) -> pb.SetShadowResponse:
        cluster = await self._change_cluster(request, "SetShadow", shadow=request.shadow)
        return pb.SetShadowResponse(cluster=cluster)

    async def _change_cluster(self, request: Any, method: str, **fields: Any) -> pb.Cluster:
        edit = edits.change_cluster(**fields)
        change, _ = await self._writer.change(CLUSTER, CLUSTER, request, method, edit)
        cluster = self._reader.cluster()
        if request.options.dry_run and change is not None:
            cluster.wish.CopyFrom(codec.encode_cluster_wish(change.after))  # type: ignore[arg-type]
        return cluster

    # ---- directives and events

    async def ListDirectives(self, request: Any, context: Any) -> pb.ListDirectivesResponse:
        self._lead()
        if request.device:
            self._device(read_subject(request.device, "device"))
        found = self._reader.directives(request.device)
        names, token = pages.page_of(found, request.page)
        records = [each for n in names if (each := self._reader.directive(*found[n])) is not None]
        return pb.ListDirectivesResponse(directives=records, next_page_token=token)

    async def GetDirective(self, request: Any, context: Any) -> pb.GetDirectiveResponse:
        self._lead()
        wanted = read_name(request.operation_id, "operation_id")
        record = self._reader.find_directive(wanted)
        if record is None:
            raise not_found("directive", wanted, "only the latest of each key is kept")
        return pb.GetDirectiveResponse(directive=record)

    async def ListEvents(self, request: Any, context: Any) -> pb.ListEventsResponse:
        token = pages.start_of(request.page)
        if token and not (token.isascii() and token.isdigit() and len(token) < 20):
            raise invalid(Violation("page.page_token", "must be a next_page_token of this method"))
        after = read_count(
            int(token) if token else request.after_sequence, "after_sequence", MAX_REVISION
        )
        size = pages.size_of(request.page)
        if not after and not request.subject:
            stored = await self._store.last_events(size)
            return pb.ListEventsResponse(events=[_event(each) for each in stored])
        found: list[common_pb2.Event] = []
        for _ in range(_EVENT_PAGES):
            stored = await self._store.events(after=after, limit=size)
            for each in stored:
                after = each.sequence
                event = _event(each)
                if not request.subject or event.subject == request.subject:
                    found.append(event)
                if len(found) == size:
                    break
            if len(found) == size or len(stored) < size:
                break
        more = bool(stored) and (len(found) == size or len(stored) == size)
        return pb.ListEventsResponse(
            events=found, next_page_token=pages.token_for(str(after)) if more else ""
        )

    # ---- apply, explain, watch

    async def Apply(self, request: Any, context: Any) -> pb.ApplyResponse:
        wanted = self._edits_of(request)
        subjects = [(kind, name) for kind, name, _ in wanted]
        if len(set(subjects)) != len(subjects):
            raise invalid(Violation("models", "a subject is named twice"))
        if not wanted:
            raise invalid(Violation("models", "nothing is to be applied"))
        changes, revision = await self._writer.apply(wanted, request, "Apply")
        return pb.ApplyResponse(changes=map(_change, changes), revision=revision)

    def _edits_of(self, request: Any) -> list[tuple[str, str, Edit]]:
        found: list[tuple[str, str, Edit]] = []
        for i, message in enumerate(request.models):
            model = codec.decode_model_wish(message, f"models[{i}]")
            edit = edits.apply_model(model, f"models[{i}]", new_uid)
            found.append((MODEL, model.name, edit))
        for i, message in enumerate(request.devices):
            device = codec.decode_device_wish(message, f"devices[{i}]")
            self._device(device.device)
            found.append((DEVICE, device.device, _to(device)))
        for i, message in enumerate(request.nodes):
            node = codec.decode_node_wish(message, f"nodes[{i}]")
            self._node(node.node)
            found.append((NODE, node.node, _to(node)))
        if request.HasField("cluster"):
            found.append((CLUSTER, CLUSTER, _to(codec.decode_cluster_wish(request.cluster))))
        return found

    async def Explain(self, request: Any, context: Any) -> pb.ExplainResponse:
        term = self._lead()
        name = read_subject(request.model, "model")
        if request.device:
            self._device(read_subject(request.device, "device"))
        kept: list[Explanation] = [
            each
            for device, explanations in term.explanations.items()
            if not request.device or device == request.device
            for each in explanations
            if name in each.models()
        ]
        if not kept:
            self._model(name)
            note = "no decision since this leader's term began moved its pages or was for it"
            return pb.ExplainResponse(note=note)
        kept.sort(key=lambda each: (-each.at_unix_s, each.device, -each.number))
        shown = kept[: min(request.limit or 1, _EXPLANATIONS)]
        note = (
            f"{len(kept) - len(shown)} earlier ones are left out" if len(kept) > len(shown) else ""
        )
        return pb.ExplainResponse(
            explanations=[agent_codec.encode_explanation(each) for each in shown], note=note
        )

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[pb.WatchResponse]:
        async for response in self._watches.watch(request):
            yield response

    def _lead(self) -> Term:
        term = self._term()
        if term is None or not term.leads():
            raise not_leader(self._leader_address())
        return term


def _to(wish: Any) -> Edit:
    return lambda before: wish


def _event(stored: StoredEvent) -> common_pb2.Event:
    event = common_pb2.Event.FromString(stored.payload)
    event.sequence = stored.sequence
    return event


def _change(change: Change) -> pb.Change:
    kind = pb.CHANGE_KIND_UNCHANGED
    if change.changes:
        kind = pb.CHANGE_KIND_CREATED if change.before is None else pb.CHANGE_KIND_UPDATED
    return pb.Change(
        subject=f"{change.kind}/{change.name}",
        kind=kind,
        fields=change.fields() if change.changes else (),
    )
