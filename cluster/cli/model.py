"""``mirage model``: the models of the cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cluster.cli.columns import MODELS
from cluster.cli.completion import complete_model
from cluster.cli.documents import parse_size
from cluster.cli.options import Session, operator_command
from cluster.cli.writes import Writing, show_written, write_command
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

app = typer.Typer(help="Models: register, prioritize, pin, activate.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the model.", autocompletion=complete_model)]
NewName = Annotated[str, typer.Argument(help="Name of the model.")]
Size = Annotated[str, typer.Option(help="As in 24GiB.")]
_NEGATIVE = {"context_settings": {"ignore_unknown_options": True}}  # a priority may be -5


@operator_command(app, "list")
def list_models(session: Session) -> None:
    """All registered models."""
    models = session.client.list_all("ListModels", pb.ListModelsRequest(), "models")
    session.printer.show(models, MODELS)


@operator_command(app, "get")
def get(session: Session, name: Name) -> None:
    """One model; -o yaml shows its whole status."""
    session.printer.show([_read(session, name)], MODELS, one=True)


@write_command(app, "register", **_NEGATIVE)
def register(
    session: Session,
    writing: Writing,
    name: NewName,
    weights: Annotated[str, typer.Option(help="Bytes of one replica's weights, as in 24GiB.")],
    weights_digest: Annotated[
        str, typer.Option(help="Hexadecimal: says which weights they are, as sha256sum does.")
    ],
    priority: Annotated[int, typer.Option(help="Higher is more important.")] = 0,
    replicas: Annotated[int, typer.Option(min=1)] = 1,
    devices_per_replica: Annotated[int, typer.Option(min=1)] = 1,
    device: Annotated[
        list[str] | None, typer.Option(help="Where replicas may be; may be repeated.")
    ] = None,
    kv_per_token: Annotated[str | None, typer.Option(help="KV bytes of one token.")] = None,
    min_pool: Annotated[str, typer.Option(help="KV pool below which it is of no use.")] = "0",
    floor: Annotated[str | None, typer.Option(help="Unit bytes that stay resident.")] = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="Lends nothing.")] = False,
    inactive: Annotated[bool, typer.Option("--inactive", help="Registered, not to serve.")] = False,
) -> None:
    """Let the cluster know a model and what it needs."""
    wish = common.ModelWish(
        name=name,
        weights_digest=weights_digest,
        spec=common.ModelSpec(
            weights_bytes=parse_size(weights),
            kv_bytes_per_token=parse_size(kv_per_token) if kv_per_token is not None else None,
            min_pool_bytes=parse_size(min_pool),
            devices_per_replica=devices_per_replica,
        ),
        priority=priority,
        floor_bytes=parse_size(floor) if floor is not None else None,
        pinned=pinned,
        state=common.MODEL_STATE_INACTIVE if inactive else common.MODEL_STATE_ACTIVE,
        placement=common.Placement(devices=device or (), replicas=replicas),
    )
    request = pb.RegisterModelRequest(options=writing.options, wish=wish)
    _write(session, "RegisterModel", request, writing)


@write_command(app, "set-priority", **_NEGATIVE)
def set_priority(
    session: Session,
    writing: Writing,
    name: Name,
    priority: Annotated[int, typer.Argument(help="Higher is more important.")],
) -> None:
    """Who lends its memory last."""
    request = pb.SetModelPriorityRequest(options=writing.options, name=name, priority=priority)
    _write(session, "SetModelPriority", request, writing)


@write_command(app, "floor")
def floor(
    session: Session,
    writing: Writing,
    name: Name,
    size: Annotated[str, typer.Argument(help="As in 4GiB; none: the policy's own floor.")],
) -> None:
    """Unit bytes that stay resident on each device, whatever is asked."""
    floor_bytes = None if size == "none" else parse_size(size)
    request = pb.SetModelFloorRequest(options=writing.options, name=name, floor_bytes=floor_bytes)
    _write(session, "SetModelFloor", request, writing)


@write_command(app, "lend")
def lend(
    session: Session,
    writing: Writing,
    name: Name,
    at_least: Annotated[
        str | None, typer.Option(help="Lends so much even if nobody asks, as in 2GiB.")
    ] = None,
    at_most: Annotated[str | None, typer.Option(help="Never lends more, as in 4GiB.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="The policy alone decides.")] = False,
) -> None:
    """Bounds of what a model lends of its weights on each device."""
    if auto == (at_least is not None or at_most is not None):
        raise ConfigError("give --at-least, --at-most or both; or --auto, which takes both away")
    lending = common.LendingBounds(
        at_least_bytes=parse_size(at_least or "0"),
        at_most_bytes=None if at_most is None else parse_size(at_most),
    )
    request = pb.SetModelLendingRequest(
        options=writing.options, name=name, lending=None if auto else lending
    )
    _write(session, "SetModelLending", request, writing)


@write_command(app, "pin")
def pin(
    session: Session,
    writing: Writing,
    name: Name,
) -> None:
    """Let a model lend neither weights nor pool."""
    request = pb.SetModelPinnedRequest(options=writing.options, name=name, pinned=True)
    _write(session, "SetModelPinned", request, writing)


@write_command(app, "unpin")
def unpin(
    session: Session,
    writing: Writing,
    name: Name,
) -> None:
    """Let a model lend again."""
    request = pb.SetModelPinnedRequest(options=writing.options, name=name, pinned=False)
    _write(session, "SetModelPinned", request, writing)


@write_command(app, "activate")
def activate(
    session: Session,
    writing: Writing,
    name: Name,
) -> None:
    """Let a model serve."""
    request = pb.ActivateModelRequest(options=writing.options, name=name)
    _write(session, "ActivateModel", request, writing)


@write_command(app, "deactivate")
def deactivate(
    session: Session,
    writing: Writing,
    name: Name,
) -> None:
    """Keep a model registered, and let it lend all that it may."""
    request = pb.DeactivateModelRequest(options=writing.options, name=name)
    _write(session, "DeactivateModel", request, writing)


@write_command(app, "delete")
def delete(
    session: Session,
    writing: Writing,
    name: Name,
) -> None:
    """Let a model go; its record goes when it runs nowhere any more."""
    request = pb.DeleteModelRequest(options=writing.options, name=name)
    _write(session, "DeleteModel", request, writing)


def _read(session: Session, name: str) -> pb.Model:
    return session.client.call("GetModel", pb.GetModelRequest(name=name)).model


def _write(session: Session, method: str, request: Any, writing: Writing) -> None:
    model = session.client.call(method, request).model
    show_written(session, model, MODELS, writing, lambda: _read(session, model.wish.name))
