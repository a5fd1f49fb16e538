"""Columns of each kind's table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

from cluster.cli.documents import show_enum, show_size
from cluster.cli.output import Column
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

_COLOURS = {common.TRUTH_TRUE: "green", common.TRUTH_FALSE: "red", common.TRUTH_UNKNOWN: "yellow"}
_GOOD_WHEN_TRUE = ("Applied", "Placed", "Running", "Reachable")


def enum_of(message: Any, field: str) -> str:
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    return show_enum(descriptor.enum_type, getattr(message, field))


def applied(status: common.Status) -> str:
    """What was accepted, and whether it was applied."""
    if status.HasField("observed_revision") and status.observed_revision >= status.desired_revision:
        return f"[green]{status.desired_revision}[/green]"
    seen = status.observed_revision if status.HasField("observed_revision") else "-"
    return f"[yellow]{seen} of {status.desired_revision}[/yellow]"


def conditions(status: common.Status) -> str:
    """Those that are not as they should be, with their reasons; their messages are in -o yaml."""
    notable = [
        f"[{_COLOURS.get(each.status, 'yellow')}]{escape(each.kind)}"
        f"[/]={enum_of(each, 'status')} ({escape(each.reason)})"
        for each in status.conditions
        if (each.kind in _GOOD_WHEN_TRUE) != (each.status == common.TRUTH_TRUE)
    ]
    return ", ".join(notable)


def _placed(model: pb.Model) -> str:
    return escape(", ".join("+".join(replica.devices) for replica in model.replicas)) or "-"


def _observed(device: pb.Device, pages: int) -> str:
    return show_size(pages * device.page_bytes) if device.HasField("observation") else "?"


def _age(device: pb.Device) -> str:
    return f"{device.observed_age_s:.0f} s" if device.HasField("observed_age_s") else "-"


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).astimezone().strftime("%H:%M:%S")


def _lends(model: Any) -> str:
    """The operator's bounds, where there are any."""
    lending = model.wish.lending
    most = show_size(lending.at_most_bytes) if lending.HasField("at_most_bytes") else ""
    least = show_size(lending.at_least_bytes) if lending.at_least_bytes else ""
    return f"{least} to {most or 'any'}" if least else f"up to {most}" if most else "auto"


MODELS = (
    Column("NAME", lambda m: escape(m.wish.name)),
    Column("STATE", lambda m: enum_of(m.wish, "state")),
    Column("PRIORITY", lambda m: str(m.wish.priority), numbers=True),
    Column("WEIGHTS", lambda m: show_size(m.wish.spec.weights_bytes), numbers=True),
    Column(
        "FLOOR",
        lambda m: show_size(m.wish.floor_bytes) if m.wish.HasField("floor_bytes") else "-",
        numbers=True,
    ),
    Column("PINNED", lambda m: "yes" if m.wish.pinned else "no"),
    Column("LENDS", _lends),
    Column("DEVICES", _placed),
    Column("APPLIED", lambda m: applied(m.status), numbers=True),
    Column("CONDITIONS", lambda m: conditions(m.status)),
)
DEVICES = (
    Column("DEVICE", lambda d: escape(d.wish.device)),
    Column("NODE", lambda d: escape(d.node)),
    Column("REACHABLE", lambda d: enum_of(d, "reachability")),
    Column("SIZE", lambda d: show_size(d.pages * d.page_bytes), numbers=True),
    Column("FREE", lambda d: _observed(d, d.observation.free_pages), numbers=True),
    Column("ENGINES", lambda d: str(len(d.observation.engines)), numbers=True),
    Column("SHARING", lambda d: enum_of(d.wish, "sharing")),
    Column("DRAIN", lambda d: "yes" if d.wish.drain else "no"),
    Column("SEEN", _age, numbers=True),
    Column("CONDITIONS", lambda d: conditions(d.status)),
)
NODES = (
    Column("NODE", lambda n: escape(n.wish.node)),
    Column("DEVICES", lambda n: str(len(n.devices)), numbers=True),
    Column("DRAIN", lambda n: "yes" if n.wish.drain else "no"),
    Column("APPLIED", lambda n: applied(n.status), numbers=True),
    Column("CONDITIONS", lambda n: conditions(n.status)),
)
CLUSTER = (
    Column("LEADER", lambda c: escape(c.leader_address) or "none"),
    Column("EPOCH", lambda c: str(c.leader_epoch), numbers=True),
    Column("REVISION", lambda c: str(c.revision), numbers=True),
    Column("AGENTS", lambda c: str(c.connected_agents), numbers=True),
    Column("SILENT", lambda c: str(c.silent_agents), numbers=True),
    Column("FROZEN", lambda c: "yes" if c.wish.freeze else "no"),
    Column("SHADOW", lambda c: "yes" if c.wish.shadow else "no"),
    Column("APPLIED", lambda c: applied(c.status), numbers=True),
    Column("CONDITIONS", lambda c: conditions(c.status)),
)
DIRECTIVES = (
    Column("DEVICE", lambda d: escape(d.device)),
    Column("KEY", lambda d: escape(d.key)),
    Column("OPERATION", lambda d: escape(d.directive.operation_id)),
    Column("REVISION", lambda d: str(d.directive.authority.revision), numbers=True),
    Column("ANSWER", lambda d: enum_of(d, "outcome") if d.outcome else "awaited"),
    Column(
        "AFTER",
        lambda d: f"{1000 * d.answered_after_s:.1f} ms" if d.HasField("answered_after_s") else "-",
        numbers=True,
    ),
    Column("REASON", lambda d: escape(d.reason)),
)
EVENTS = (
    Column("AT", lambda e: _clock(e.at_unix_s)),
    Column("SEVERITY", lambda e: enum_of(e, "severity")),
    Column("KIND", lambda e: escape(e.kind)),
    Column("SUBJECT", lambda e: escape(e.subject)),
    Column("BY", lambda e: escape(e.actor)),
    Column("MESSAGE", lambda e: escape(e.message)),
)
CHANGES = (
    Column("SUBJECT", lambda c: escape(c.subject)),
    Column("CHANGE", lambda c: enum_of(c, "kind")),
    Column("FIELDS", lambda c: escape(", ".join(c.fields))),
)


def event_line(event: common.Event) -> str:
    colour = "yellow" if event.severity == common.SEVERITY_WARNING else "cyan"
    by = f" [dim]by {escape(event.actor)}[/dim]" if event.actor else ""
    return (
        f"[dim]{_clock(event.at_unix_s)}[/dim] [{colour}]{escape(event.kind)}[/{colour}]"
        f" {escape(event.subject)}: {escape(event.message)}{by}"
    )
