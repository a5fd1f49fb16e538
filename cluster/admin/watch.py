"""Watch: first what is, then what changes, each subject at its latest.

A slow reader loses steps in between, never the last state; one that resumes where it stopped is
told of all that changed since, or that this is not known any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from cluster.admin.reader import Reader
from cluster.controller.changes import Changes, Subject
from cluster.controller.mirror import Mirror
from cluster.records import CLUSTER, DEVICE, DIRECTIVE, MODEL, NODE
from cluster.rpc.errors import ApiError, Code, Violation, invalid
from mirage_core.cluster_model import DirectiveKey, Event
from mirage_core.model import DeviceId
from mirage_core.ports import Clock
from mirage_core.wire import cluster_codec as codec
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2

EVENT = "event"
HEARTBEAT_S = 5.0
_PAUSE_S = 0.005
"""Between two rounds: changes in between are told once."""
_KINDS = {
    pb.RESOURCE_KIND_MODEL: MODEL,
    pb.RESOURCE_KIND_DEVICE: DEVICE,
    pb.RESOURCE_KIND_NODE: NODE,
    pb.RESOURCE_KIND_CLUSTER: CLUSTER,
    pb.RESOURCE_KIND_DIRECTIVE: DIRECTIVE,
    pb.RESOURCE_KIND_EVENT: EVENT,
}
_NUMBERS = {name: number for number, name in _KINDS.items()}


class Watches:
    def __init__(
        self,
        reader: Reader,
        changes: Changes,
        mirror: Mirror,
        event: Callable[[int], Event | None],
        clock: Clock,
        limit: int,
    ) -> None:
        """``event`` by sequence, None if it is kept no longer."""
        self._reader = reader
        self._changes = changes
        self._mirror = mirror
        self._event = event
        self._clock = clock
        self._limit = limit
        self._open = 0

    async def watch(self, request: Any) -> AsyncIterator[pb.WatchResponse]:
        kinds = self._kinds(request)
        if self._open >= self._limit:
            raise ApiError(
                Code.RESOURCE_EXHAUSTED,
                common_pb2.ERROR_REASON_OVERLOADED,
                f"{self._limit} watches are open, which is this controller's limit",
                retryable=True,
                retry_after_s=5.0,
            )
        self._open += 1
        try:
            async for response in self._follow(request, kinds):
                yield response
        finally:
            self._open -= 1

    async def _follow(self, request: Any, kinds: set[str]) -> AsyncIterator[pb.WatchResponse]:
        if request.HasField("after_sequence"):
            count = self._resume(request)
        else:
            count = self._changes.count
            for response in self._snapshot(kinds):
                yield response
        incarnation = self._incarnation()
        told_s = self._clock.monotonic_s()
        while True:
            await self._changes.wait(count, HEARTBEAT_S)
            if self._incarnation() != incarnation:
                raise _trimmed("the store's history is another now")
            count, changed = self._changes.count, self._changes.since(count)
            for subject in changed:
                message = self._response(subject) if subject[0] in kinds else None
                if message is not None:
                    told_s = self._clock.monotonic_s()
                    yield message
            if self._clock.monotonic_s() - told_s >= HEARTBEAT_S:
                told_s = self._clock.monotonic_s()
                yield self._numbered(heartbeat=pb.WatchHeartbeat())
            await asyncio.sleep(_PAUSE_S)

    def _kinds(self, request: Any) -> set[str]:
        unknown = [i for i, kind in enumerate(request.kinds) if kind not in _KINDS]
        if unknown:
            raise invalid(*(Violation(f"kinds[{i}]", "is no kind of resource") for i in unknown))
        return {_KINDS[kind] for kind in request.kinds} or set(_NUMBERS) - {DIRECTIVE}

    def _resume(self, request: Any) -> int:
        if request.store_incarnation != self._incarnation():
            raise _trimmed("the sequence is of another history of the store")
        count = self._changes.resume(request.after_sequence)
        if count is None:
            raise _trimmed(f"changes after {request.after_sequence} are not known here")
        return count

    def _snapshot(self, kinds: set[str]) -> Iterator[pb.WatchResponse]:
        reader = self._reader
        names: dict[str, Callable[[], list[str]]] = {
            CLUSTER: lambda: [CLUSTER],
            NODE: lambda: sorted(reader.nodes()),
            DEVICE: lambda: sorted(reader.devices()),
            MODEL: lambda: sorted(reader.models()),
            DIRECTIVE: lambda: sorted(reader.directives()),
        }
        for kind, list_names in names.items():
            if kind in kinds:
                for name in list_names():
                    message = self._response((kind, name))
                    if message is not None:
                        yield message
        yield self._numbered(snapshot_end=pb.SnapshotEnd(store_incarnation=self._incarnation()))

    def _response(self, subject: Subject) -> pb.WatchResponse | None:
        kind, name = subject
        if kind == EVENT:
            event = self._event(int(name))
            return None if event is None else self._numbered(event=codec.encode_event(event))
        message = self._read(kind, name)
        if message is not None:
            return self._numbered(**{kind: message})
        return self._numbered(removed=pb.Removed(kind=_NUMBERS[kind], name=name))

    def _read(self, kind: str, name: str) -> Any:
        if kind == DIRECTIVE:
            pair = self._split_directive(name)
            return None if pair is None else self._reader.directive(*pair)
        if kind == CLUSTER:
            return self._reader.cluster()
        return {MODEL: self._reader.model, DEVICE: self._reader.device, NODE: self._reader.node}[
            kind
        ](name)

    def _split_directive(self, name: str) -> tuple[DeviceId, DirectiveKey] | None:
        for marker in ("/model/", "/lend/"):
            device, found, rest = name.partition(marker)
            if found:
                return DeviceId(device), DirectiveKey(f"{marker[1:]}{rest}")
        device, _, key = name.rpartition("/")
        return DeviceId(device), DirectiveKey(key)

    def _incarnation(self) -> str:
        position = self._mirror.position
        return position.incarnation if position is not None else ""

    def _numbered(self, **body: Any) -> pb.WatchResponse:
        return pb.WatchResponse(sequence=max(0, self._changes.revision), **body)


def _trimmed(message: str) -> ApiError:
    return ApiError(
        Code.OUT_OF_RANGE,
        common_pb2.ERROR_REASON_TRIMMED,
        message,
        advice="watch anew, without after_sequence",
    )
