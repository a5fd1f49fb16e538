"""Output of the commands: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from cluster.cli.documents import to_document

_WIDE_CHARS = 1000


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column:
    """``of`` a message, the text of its cell; ``numbers`` stand at the right."""

    title: str
    of: Callable[[Any], str]
    numbers: bool = False


class Printer:
    def __init__(self, form: Format) -> None:
        self.form = form
        # What is not a terminal gets its tables unbroken, so that grep and awk can read them.
        wide = None if sys.stdout.isatty() else _WIDE_CHARS
        self.console = Console(highlight=False, width=wide)

    def show(
        self, messages: Sequence[Any], columns: Sequence[Column], *, one: bool = False
    ) -> None:
        """Messages of one kind; ``one``: as a document, not a list of one."""
        if self.form is Format.TABLE:
            self.console.print(table_of(messages, columns))
            return
        documents = [to_document(each) for each in messages]
        self.document(documents[0] if one else documents)

    def document(self, document: Any) -> None:
        if self.form is Format.YAML:
            sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        else:
            sys.stdout.write(json.dumps(document, indent=2) + "\n")

    def stream(self, message: Any, text: str) -> None:
        """One of an endless series: a line of text, a line of JSON, or a YAML document."""
        if self.form is Format.TABLE:
            self.console.print(text, soft_wrap=True)
        elif self.form is Format.JSON:
            sys.stdout.write(json.dumps(to_document(message)) + "\n")
        else:
            document = yaml.safe_dump(to_document(message), sort_keys=False, allow_unicode=True)
            sys.stdout.write(f"---\n{document}")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """For people only: beside a document it goes to the error output."""
        if self.form is Format.TABLE:
            self.console.print(text, soft_wrap=True)
        else:
            print(text, file=sys.stderr)


def table_of(messages: Sequence[Any], columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.numbers else "left", overflow="fold"
        )
    for message in messages:
        table.add_row(*(column.of(message) for column in columns))
    return table
