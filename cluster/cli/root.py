"""``mirage``: finds its sub-commands through the entry-point group ``mirage.commands``.

An entry point's name is the command's.  It names a function (one command) or a ``typer.Typer``
(a group of commands).  Only the command that is called is imported, so a missing dependency of
one is no matter to another; where all are listed, such a command says what it lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

import typer

from mirage_core.errors import MirageError

GROUP = "mirage.commands"


def build_app(arguments: Sequence[str], commands: Mapping[str, EntryPoint]) -> typer.Typer:
    """The app for ``arguments``: with the command that they name, else with all ``commands``."""
    app = typer.Typer(
        name="mirage",
        help="Many models, few GPUs: idle models' weights become KV cache for busy ones.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)  # keeps `mirage NAME` a sub-command even where there is one alone
    named = next((word for word in arguments if not word.startswith("-")), None)
    for name in [named] if named is not None and named in commands else sorted(commands):
        _add(app, name, commands[name])
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``mirage``; MIRAGE's own errors end it with status 2 and one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {command.name: command for command in entry_points(group=GROUP)}
    try:
        build_app(words, commands)(args=words, prog_name="mirage")
    except MirageError as error:
        print(f"mirage: {error}", file=sys.stderr)
        sys.exit(2)


def _root() -> None:
    pass


def _add(app: typer.Typer, name: str, command: EntryPoint) -> None:
    try:
        loaded = command.load()
    except ImportError as error:
        reason = str(error)

        def unavailable() -> None:
            raise MirageError(f"{name} cannot run here: {reason}")

        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(name, help=f"Not available: {reason}.", context_settings=anything)(unavailable)
        return
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name)(loaded)
