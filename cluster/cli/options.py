"""Options that every command which calls a controller has, written once.

``@operator_command(app, "get")`` makes a command of ``function(session, ...)``: the session is made
of the shared options, and what fails ends the command with one line, advice, and an exit code.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.cli.client import Client, load_settings
from cluster.cli.faults import USAGE, CommandError
from cluster.cli.output import Format, Printer
from mirage_core.errors import MirageError

CONFIG_VARIABLE = "MIRAGE_CONFIG"


def default_config() -> Path:
    """Where ``mirage up`` writes how to reach it, and every command looks."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "mirage" / "client.yaml"


@dataclass(frozen=True, slots=True)
class Session:
    """What a command works with."""

    client: Client
    printer: Printer


_PANEL = "Connection"
_SHARED: tuple[tuple[str, Any, Any], ...] = (
    (
        "output",
        Annotated[Format, typer.Option("-o", "--output", help="Form of the output.")],
        Format.TABLE,
    ),
    (
        "server",
        Annotated[
            list[str] | None,
            typer.Option(
                help="Controller, HOST:PORT; may be repeated.",
                envvar="MIRAGE_SERVER",
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
    (
        "token_file",
        Annotated[
            Path | None,
            typer.Option(
                help="File with your token.", envvar="MIRAGE_TOKEN_FILE", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    (
        "ca",
        Annotated[
            Path | None,
            typer.Option(
                help="Authority of the controllers' certificates, PEM.",
                envvar="MIRAGE_CA",
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
    (
        "certificate",
        Annotated[
            Path | None,
            typer.Option(
                help="Your certificate, PEM.", envvar="MIRAGE_CERTIFICATE", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    (
        "key",
        Annotated[
            Path | None,
            typer.Option(help="Its key, PEM.", envvar="MIRAGE_KEY", rich_help_panel=_PANEL),
        ],
        None,
    ),
    (
        "server_name",
        Annotated[
            str | None,
            typer.Option(
                help="Name in the controllers' certificate.",
                envvar="MIRAGE_SERVER_NAME",
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
    (
        "allow_insecure",
        Annotated[
            bool | None,
            typer.Option(
                "--allow-insecure", help="Plain text beyond this machine.", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    (
        "timeout",
        Annotated[
            float | None,
            typer.Option(help="Seconds for a call (10).", min=0.001, rich_help_panel=_PANEL),
        ],
        None,
    ),
    (
        "client_config",
        Annotated[
            Path | None,
            typer.Option(
                help="Settings of this client (~/.config/mirage/client.yaml).",
                envvar=CONFIG_VARIABLE,
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
)
_NAMES = tuple(name for name, _, _ in _SHARED)


def operator_command(
    app: typer.Typer | None, name: str = "", **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register ``function(session, ...)`` with the shared options; ``app`` None: only wrap it."""

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]

        def command(**given: Any) -> None:
            shared = {each: given.pop(each) for each in _NAMES}
            run(lambda: _call(function, shared, given))

        shared = [
            inspect.Parameter(
                each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for each, annotation, default in _SHARED
        ]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in [*own, *shared]}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        if app is not None:
            app.command(name, **settings)(command)
        return command

    return wrap


def _call(function: Callable[..., None], shared: dict[str, Any], own: dict[str, Any]) -> None:
    printer = Printer(shared.pop("output"))
    config = shared.pop("client_config") or default_config()
    shared["servers"] = shared.pop("server") or None
    shared["timeout_s"] = shared.pop("timeout")
    with Client(load_settings(config, shared)) as client:
        function(Session(client, printer), **own)


def run(action: Callable[[], None]) -> None:
    """Do ``action``; what it raises on purpose becomes a line of the error output and a status."""
    try:
        action()
    except MirageError as error:
        print(f"mirage: {error}", file=sys.stderr)
        advice = error.advice if isinstance(error, CommandError) else ""
        if advice:
            print(f"  {advice}", file=sys.stderr)
        raise typer.Exit(error.exit_code if isinstance(error, CommandError) else USAGE) from None
    except BrokenPipeError:
        # The reader of the output has seen enough (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
