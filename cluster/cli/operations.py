"""Commands about the whole cluster: status, freeze, thaw, shadow, apply, directives, events."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml  # type: ignore[import-untyped]

from cluster.cli.columns import CHANGES, CLUSTER, DIRECTIVES, EVENTS, event_line
from cluster.cli.documents import from_document, to_document
from cluster.cli.options import Session, operator_command
from cluster.cli.output import Format
from cluster.cli.writes import Writing, show_written, write_command
from cluster.files import read_bytes
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import admin_pb2 as pb

directives = typer.Typer(help="What agents were told, and answered.", no_args_is_help=True)


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@operator_command(None)
def status(session: Session) -> None:
    """The cluster: who leads, which agents are connected, what is frozen."""
    session.printer.show([_read(session)], CLUSTER, one=True)


@write_command(None)
def freeze(
    session: Session,
    writing: Writing,
) -> None:
    """Remap and move nothing at all until thaw; requests go on."""
    request = pb.FreezeRequest(options=writing.options)
    _write(session, "Freeze", request, writing)


@write_command(None)
def thaw(
    session: Session,
    writing: Writing,
) -> None:
    """End a freeze."""
    request = pb.ThawRequest(options=writing.options)
    _write(session, "Thaw", request, writing)


@write_command(None)
def shadow(
    session: Session,
    writing: Writing,
    mode: Annotated[Switch, typer.Argument(help="on: decide and log, do nothing.")] = Switch.ON,
) -> None:
    """Shadow mode: every decision is made and told, none is carried out."""
    request = pb.SetShadowRequest(options=writing.options, shadow=mode is Switch.ON)
    _write(session, "SetShadow", request, writing)


@write_command(None)
def apply(
    session: Session,
    writing: Writing,
    file: Annotated[Path, typer.Option("-f", "--file", help="YAML or JSON; - for standard input.")],
) -> None:
    """Bring wishes to what a file says, all or none; what it does not name stays as it is.

    The file has any of models, devices, nodes (lists of wishes) and cluster, as
    `mirage model get NAME -o yaml` shows them under `wish`.
    """
    request = pb.ApplyRequest()
    from_document(_load(file), request, str(file))
    request.options.CopyFrom(writing.options)
    response = session.client.call("Apply", request)
    if session.printer.form is Format.TABLE:
        session.printer.show(response.changes, CHANGES)
        done = "dry run: nothing was changed" if writing.options.dry_run else "accepted"
        session.printer.say(f"{done}; revision {response.revision}")
    else:
        session.printer.document(to_document(response))


@operator_command(None)
def events(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", help="And those to come.")] = False,
    subject: Annotated[
        str, typer.Option(help="Only of model/NAME, device/ID, node/NAME or cluster.")
    ] = "",
    last: Annotated[int, typer.Option(help="So many of the newest.", min=0, max=1000)] = 100,
) -> None:
    """What happened, the oldest first."""
    found = _events(session, subject, last)
    if not follow:
        session.printer.show(found, EVENTS)
        return
    for event in found:
        session.printer.stream(event, event_line(event))
    seen = found[-1].sequence if found else 0
    watch = pb.WatchRequest(kinds=[pb.RESOURCE_KIND_EVENT])
    for response in session.client.watch(watch):
        event = response.event
        if response.HasField("event") and event.sequence > seen:
            seen = event.sequence
            if not subject or event.subject == subject:
                session.printer.stream(event, event_line(event))


@operator_command(directives, "list")
def list_directives(
    session: Session, device: Annotated[str, typer.Option(help="Only of this device.")] = ""
) -> None:
    """The latest directive of each key, and its answer."""
    request = pb.ListDirectivesRequest(device=device)
    found = session.client.list_all("ListDirectives", request, "directives")
    session.printer.show(found, DIRECTIVES)


@operator_command(directives, "get")
def get_directive(
    session: Session, operation: Annotated[str, typer.Argument(help="Its operation id.")]
) -> None:
    """One directive; -o yaml shows what it says."""
    request = pb.GetDirectiveRequest(operation_id=operation)
    found = session.client.call("GetDirective", request).directive
    session.printer.show([found], DIRECTIVES, one=True)


def _events(session: Session, subject: str, last: int) -> list[Any]:
    if last == 0:
        return []
    if not subject:
        request = pb.ListEventsRequest(page=pb.PageOptions(page_size=last))
        return list(session.client.call("ListEvents", request).events)
    request = pb.ListEventsRequest(subject=subject)
    return session.client.list_all("ListEvents", request, "events")[-last:]


def _read(session: Session) -> pb.Cluster:
    return session.client.call("GetCluster", pb.GetClusterRequest()).cluster


def _write(session: Session, method: str, request: Any, writing: Writing) -> None:
    cluster = session.client.call(method, request).cluster
    show_written(session, cluster, CLUSTER, writing, lambda: _read(session))


def _load(file: Path) -> dict[str, Any]:
    text = sys.stdin.buffer.read() if str(file) == "-" else read_bytes(file)
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is neither YAML nor JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{file} must be a mapping with models, devices, nodes or cluster")
    if "options" in document:
        raise ConfigError(f"{file}: options are given on the command line, not in the file")
    return document
