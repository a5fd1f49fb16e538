"""What every command that changes something has: its options, and waiting until it is applied."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cluster.cli.faults import NO, CommandError
from cluster.cli.options import Session, operator_command
from cluster.cli.output import Column
from mirage_core.wire.v1 import admin_pb2 as pb

_POLL_S = 0.1
_PANEL = "Writing"
_SHARED: tuple[tuple[str, Any, Any], ...] = (
    (
        "expected_revision",
        Annotated[
            int | None,
            typer.Option(
                help="Change nothing unless it is at this revision (0: it must not exist).",
                min=0,
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
    (
        "request_id",
        Annotated[
            str,
            typer.Option(
                help="Repeated with the same id within a day, it is done once.",
                rich_help_panel=_PANEL,
            ),
        ],
        "",
    ),
    (
        "dry_run",
        Annotated[
            bool,
            typer.Option("--dry-run", help="Check all, change nothing.", rich_help_panel=_PANEL),
        ],
        False,
    ),
    (
        "wait",
        Annotated[
            float | None,
            typer.Option(
                help="Until it is applied, for at most so many seconds.",
                min=0.1,
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
)
_NAMES = tuple(name for name, _, _ in _SHARED)


@dataclass(frozen=True, slots=True)
class Writing:
    """How a write is to be done; ``wait_s`` None: it is accepted, and that is all."""

    options: pb.WriteOptions
    wait_s: float | None


def write_command(
    app: typer.Typer | None, name: str = "", **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``operator_command``, for ``function(session, writing, ...)``."""

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        session, _, *own = inspect.signature(function, eval_str=True).parameters.values()

        def command(session: Session, **given: Any) -> None:
            wait_s = given.pop("wait")
            fields = {each: given.pop(each) for each in _NAMES if each != "wait"}
            function(session, Writing(pb.WriteOptions(**fields), wait_s), **given)

        shared = [
            inspect.Parameter(
                each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for each, annotation, default in _SHARED
        ]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        command.__signature__ = inspect.Signature([session, *own, *shared])  # type: ignore[attr-defined]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return operator_command(app, name, **settings)(command)

    return wrap


def show_written(
    session: Session,
    subject: Any,
    columns: tuple[Column, ...],
    writing: Writing,
    read: Callable[[], Any],
) -> None:
    """Say what was accepted, which is not yet applied; ``read`` it again until it is, if the
    caller waits for that."""
    revision = subject.provenance.revision
    if writing.options.dry_run:
        session.printer.say("[bold]dry run[/bold]: nothing was changed; it would be")
    elif writing.wait_s is not None:
        subject = _await_applied(read, revision, writing.wait_s)
    session.printer.show([subject], columns, one=True)
    if not writing.options.dry_run and writing.wait_s is None:
        session.printer.say(f"accepted at revision {revision}")


def _await_applied(read: Callable[[], Any], revision: int, wait_s: float) -> Any:
    until_s = time.monotonic() + wait_s
    while True:
        subject = read()
        status = subject.status
        if status.HasField("observed_revision") and status.observed_revision >= revision:
            return subject
        if time.monotonic() > until_s:
            why = "; ".join(
                f"{each.reason}: {each.message}"
                for each in status.conditions
                if each.kind == "Applied"
            )
            raise CommandError(
                f"accepted at revision {revision}, but not applied after {wait_s:g} s ({why})",
                NO,
                "it is kept, and will be applied as soon as its agents are reached",
            )
        time.sleep(_POLL_S)
