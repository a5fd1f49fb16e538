"""``mirage top``: the devices and their engines as they are now, drawn again as they change."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster.cli.columns import CLUSTER
from cluster.cli.documents import show_size
from cluster.cli.options import Session, operator_command
from cluster.cli.output import table_of
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

_BAR_CHARS = 32
_LEGEND = (
    "[green]█[/] weights  [magenta]█[/] slots  [cyan]█[/] KV cache  [yellow]█[/] moving  ░ free"
)


@operator_command(None)
def top(
    session: Session,
    interval: Annotated[float, typer.Option(help="Seconds between looks.", min=0.1)] = 1.0,
    devices: Annotated[int, typer.Option(help="Devices shown at most.", min=1)] = 16,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
) -> None:
    """Live view: who owns which part of each device. Ctrl-C ends it."""
    console: Console = session.printer.console
    if once or not sys.stdout.isatty():
        console.print(_look(session, devices))
        return
    with Live(_look(session, devices), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_look(session, devices), refresh=True)


def _look(session: Session, most: int) -> RenderableType:
    client = session.client
    cluster = client.call("GetCluster", pb.GetClusterRequest()).cluster
    page = pb.PageOptions(page_size=most)
    listed = client.call("ListDevices", pb.ListDevicesRequest(page=page))
    parts: list[RenderableType] = [table_of([cluster], CLUSTER), ""]
    parts += [_device(device) for device in listed.devices]
    if listed.next_page_token:
        parts.append(f"[dim]the first {most} devices; --devices shows more[/dim]")
    parts.append(f"[dim]{_LEGEND}[/dim]")
    return Group(*parts)


def _device(device: pb.Device) -> RenderableType:
    seen = device.observation
    silent = device.reachability == pb.REACHABILITY_SILENT
    head = Text.from_markup(
        f"[bold]{escape(device.wish.device)}[/bold] on {escape(device.node)},"
        f" {show_size(device.pages * device.page_bytes)}"
    )
    if silent:
        head.append("  silent: as it last said", style="red")
    if not device.HasField("observation"):
        return Group(head, "  nothing reported yet", "")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("  MODEL", "", "PRIO", "PAGES", "LENT", "RUN/WAIT", "KV FREE"):
        numbers = title not in ("  MODEL", "")
        table.add_column(title, justify="right" if numbers else "left", no_wrap=True)
    for engine in seen.engines:
        table.add_row(*_engine(engine, device.pages))
    table.add_row(
        "  [dim]free[/dim]", _bar((), seen.free_pages, device.pages), "", f"{seen.free_pages}"
    )
    return Group(head, table, "")


def _engine(engine: common.EngineObservation, pages: int) -> tuple[str | Text, ...]:
    owned = (
        (engine.resident_pages, "green"),
        (engine.slot_pages, "magenta"),
        (engine.pool_pages, "cyan"),
        (engine.in_flight_pages, "yellow"),
    )
    active = engine.HasField("active") and engine.active
    name = f"  [{'bold' if active else 'dim'}]{escape(engine.model)}[/]"
    known = engine.HasField("running_requests")
    requests = f"{engine.running_requests}/{engine.waiting_requests}" if known else "?"
    return (
        name,
        _bar(owned, 0, pages),
        str(engine.priority) if engine.HasField("priority") else "?",
        str(sum(count for count, _ in owned)),
        str(engine.lent_pages) if engine.HasField("lent_pages") else "?",
        requests,
        f"{engine.free_kv_tokens}" if engine.HasField("free_kv_tokens") else "?",
    )


def _bar(owned: tuple[tuple[int, str], ...], free: int, pages: int) -> Text:
    """Shares of the device; what is owned shows at least one character."""
    bar = Text()
    for count, colour in owned:
        chars = round(_BAR_CHARS * count / pages) if pages else 0
        bar.append("█" * max(chars, 1 if count else 0), style=colour)
    bar.append("░" * round(_BAR_CHARS * free / pages if pages else 0), style="dim")
    return bar
