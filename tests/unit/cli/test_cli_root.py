"""The command line's root: commands from entry points, each on its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import root
from cluster.cli.root import GROUP, build_app
from mirage_core.errors import MirageError

MODULE = """
import typer
from mirage_core.errors import ConfigError

def greet(name: str) -> None:
    print("hello", name)

def fail() -> None:
    raise ConfigError("the knob is wrong: turn it left")

pair = typer.Typer()

@pair.command()
def left() -> None:
    print("left")

@pair.command()
def right() -> None:
    print("right")
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, EntryPoint]]:
    (tmp_path / "some_commands.py").write_text(MODULE)
    (tmp_path / "heavy_commands.py").write_text("import a_heavy_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    places = {
        "greet": "some_commands:greet",
        "fail": "some_commands:fail",
        "pair": "some_commands:pair",
        "heavy": "heavy_commands:run",
    }
    yield {name: EntryPoint(name, place, GROUP) for name, place in places.items()}
    for module in ("some_commands", "heavy_commands"):
        sys.modules.pop(module, None)


def test_functions_are_commands_and_apps_are_groups(commands: dict[str, EntryPoint]) -> None:
    runner = CliRunner()
    assert "hello you" in runner.invoke(build_app(["greet"], commands), ["greet", "you"]).output
    assert "right" in runner.invoke(build_app(["pair"], commands), ["pair", "right"]).output


def test_a_command_whose_dependency_is_missing_breaks_no_other(
    commands: dict[str, EntryPoint],
) -> None:
    listed = CliRunner().invoke(build_app(["--help"], commands), ["--help"])
    assert listed.exit_code == 0
    assert "greet" in listed.output
    assert "a_heavy_thing" in listed.output


def test_a_command_that_cannot_run_says_what_it_lacks(commands: dict[str, EntryPoint]) -> None:
    called = CliRunner().invoke(build_app(["heavy"], commands), ["heavy", "--any", "thing"])
    assert isinstance(called.exception, MirageError)
    assert "a_heavy_thing" in str(called.exception)


def test_only_the_command_called_is_imported(commands: dict[str, EntryPoint]) -> None:
    build_app(["heavy"], commands)
    assert "some_commands" not in sys.modules


def test_an_error_of_mirage_ends_with_one_line_and_status_2(
    commands: dict[str, EntryPoint], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(root, "entry_points", lambda group: list(commands.values()))
    with pytest.raises(SystemExit) as ended:
        root.main(["fail"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "mirage: the knob is wrong: turn it left\n"
