"""The edit of each call: the wish as it is to be, from what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cluster.admin.validation import check_model
from cluster.admin.writer import Edit, is_gone, precondition
from cluster.rpc.errors import ApiError, Code, Violation, invalid, not_found
from mirage_core.cluster_model import (
    ClusterWish,
    DeviceWish,
    ModelState,
    ModelUid,
    ModelWish,
    NodeName,
    NodeWish,
    Wish,
)
from mirage_core.model import DeviceId
from mirage_core.wire.v1 import common_pb2 as pb


def register(wish: ModelWish, new_uid: Callable[[], str]) -> Edit:
    """A model that is not there; one that was deleted and still runs somewhere makes room."""
    check_model(wish)
    if wish.uid:
        raise invalid(Violation("wish.uid", "must not be set: the controller makes it"))
    uid = ModelUid(new_uid())

    def edit(before: Wish | None) -> Wish:
        if not is_gone(before):
            raise ApiError(
                Code.ALREADY_EXISTS,
                pb.ERROR_REASON_ALREADY_EXISTS,
                f"model {wish.name!r} is registered",
                advice="use UpdateModel to change it",
            )
        return replace(wish, uid=uid)

    return edit


def update(wish: ModelWish) -> Edit:
    check_model(wish)

    def edit(before: Wish | None) -> Wish:
        model = _registered(before, wish.name)
        if wish.uid and wish.uid != model.uid:
            raise precondition(
                f"model {wish.name!r} has uid {model.uid}, not {wish.uid}",
                "it was deleted and registered again meanwhile: read it again",
            )
        return replace(wish, uid=model.uid)

    return edit


def apply_model(wish: ModelWish, path: str, new_uid: Callable[[], str]) -> Edit:
    """Registers or updates."""
    check_model(wish, path)

    def edit(before: Wish | None) -> Wish:
        if is_gone(before):
            return replace(wish, uid=ModelUid(new_uid()))
        return update(wish)(before)

    return edit


def change_model(name: str, **fields: Any) -> Edit:
    def edit(before: Wish | None) -> Wish:
        changed = replace(_registered(before, name), **fields)
        if changed.state is not ModelState.ABSENT:
            check_model(changed)
        return changed

    return edit


def delete_model(name: str) -> Edit:
    """Absent is where it goes; its record goes when it runs nowhere."""

    def edit(before: Wish | None) -> Wish:
        if not isinstance(before, ModelWish):
            raise not_found("model", name, "mirage model list shows those that are registered")
        return replace(before, state=ModelState.ABSENT)

    return edit


def change_device(device: DeviceId, **fields: Any) -> Edit:
    def edit(before: Wish | None) -> Wish:
        wish = before if isinstance(before, DeviceWish) else DeviceWish(device)
        return replace(wish, **fields)

    return edit


def change_node(node: NodeName, *, drain: bool) -> Edit:
    return lambda before: NodeWish(node, drain)


def change_cluster(**fields: Any) -> Edit:
    def edit(before: Wish | None) -> Wish:
        wish = before if isinstance(before, ClusterWish) else ClusterWish()
        return replace(wish, **fields)

    return edit


def _registered(before: Wish | None, name: str) -> ModelWish:
    if is_gone(before) or not isinstance(before, ModelWish):
        raise not_found("model", name, "mirage model list shows those that are registered")
    return before
