"""``mirage explain``: why a model's pages moved, or did not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel

from cluster.cli.columns import enum_of
from cluster.cli.completion import complete_model
from cluster.cli.documents import to_document
from cluster.cli.options import Session, operator_command
from cluster.cli.output import Column, Format, table_of
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import common_pb2 as common

_INPUTS = (
    Column("MODEL", lambda i: escape(i.model)),
    Column("PRIORITY", lambda i: str(i.priority), numbers=True),
    Column("ACTIVE", lambda i: "yes" if i.active else "no"),
    Column("IDLE", lambda i: f"{i.idle_s:.1f} s" if i.HasField("idle_s") else "-", numbers=True),
    Column("POOL", lambda i: str(i.pool_pages), numbers=True),
    Column("SPARE", lambda i: str(i.spare_pages), numbers=True),
    Column("UNITS", lambda i: str(i.unit_pages), numbers=True),
    Column("LENT", lambda i: str(i.lent_pages), numbers=True),
    Column("FLOOR", lambda i: str(i.floor_pages), numbers=True),
    Column("PINNED", lambda i: "yes" if i.pinned else "no"),
)
_RULES = (
    Column("RULE", lambda r: escape(r.rule)),
    Column("ENGINE", lambda r: escape(r.engine_id) or "-"),
    Column("ASKED", lambda r: str(r.asked_pages), numbers=True),
    Column("GAVE", lambda r: str(r.given_pages), numbers=True),
    Column("WHY", lambda r: escape(r.why)),
)


@operator_command(None)
def explain(
    session: Session,
    model: Annotated[str, typer.Argument(help="Name of the model.", autocompletion=complete_model)],
    device: Annotated[str, typer.Option(help="Only on this device.")] = "",
    limit: Annotated[int, typer.Option(help="So many of the newest.", min=1, max=100)] = 1,
) -> None:
    """Why were this model's pages moved: the decisions, what they saw and on what grounds."""
    request = pb.ExplainRequest(model=model, device=device, limit=limit)
    response = session.client.call("Explain", request)
    if session.printer.form is not Format.TABLE:
        session.printer.document(to_document(response))
        return
    for each in response.explanations:
        session.printer.console.print(_shown(each))
    if response.note:
        session.printer.say(escape(response.note))


def _shown(each: common.Explanation) -> RenderableType:
    at = datetime.fromtimestamp(each.at_unix_s, UTC).astimezone().strftime("%H:%M:%S")
    wished = any(rule.rule == "lending" for rule in each.rules)
    nobody = "nobody (an operator's wish)" if wished else "all (lent pages go back)"
    for_whom = escape(each.borrower) if each.borrower else nobody
    moves = [
        f"[bold]{escape(move.model)}[/bold]: {escape(move.action)},"
        f" {abs(move.pages)} pages {'come free' if move.pages >= 0 else 'are taken'}"
        for move in each.moves
    ] or ["nothing moves"]
    return Panel(
        Group(
            f"for {for_whom}: {each.short_pages} pages short, {each.free_pages} free",
            *moves,
            "",
            table_of(each.inputs, _INPUTS),
            "",
            table_of(each.rules, _RULES),
        ),
        title=f"decision {each.number} at {at}, {enum_of(each, 'effect')}",
        subtitle=escape(each.device),
        title_align="left",
        subtitle_align="right",
    )
