"""Checks of single fields, for codecs whose faults must name the field.

A path is that of a field in its message, as in ``wish.placement.devices[2]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from mirage_core.errors import ProtocolError

MAX_NAME_CHARS = 256
MAX_TEXT_CHARS = 4096

E = TypeVar("E", bound=Enum)


class FieldError(ProtocolError):
    """A field of a message is wrong.  ``field`` is its path, ``description`` says what may be."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


def read_name(value: str, path: str) -> str:
    """A name of one printable line."""
    if not value:
        raise FieldError(path, "must be set")
    if not value.isprintable():
        raise FieldError(path, "must be one printable line")
    return read_text(value, path, MAX_NAME_CHARS)


def read_text(value: str, path: str, most_chars: int = MAX_TEXT_CHARS) -> str:
    if len(value) > most_chars:
        raise FieldError(path, f"is longer than {most_chars} characters")
    return value


def read_number(value: float, path: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise FieldError(path, f"must be a finite number from 0, got {value}")
    return value


def read_count(value: int, path: str, most: int) -> int:
    if not 0 <= value <= most:
        raise FieldError(path, f"must be from 0 to {most}, got {value}")
    return value


def read_enum(value: int, values: Mapping[int, E], path: str) -> E:
    """The member of a wire value; ``values`` has none for ``_UNSPECIFIED``."""
    member = values.get(value)
    if member is None:
        names = ", ".join(each.name for each in values.values())
        raise FieldError(path, f"must be one of {names}")
    return member


def optional(message: Any, name: str) -> Any:
    """A field with presence; None if it was not reported."""
    return getattr(message, name) if message.HasField(name) else None


def bounded(items: Iterable[Any], path: str, most: int) -> Iterator[tuple[Any, str]]:
    """Each item of a repeated field with its path; FieldError if there are more than ``most``."""
    for index, item in enumerate(items):
        if index >= most:
            raise FieldError(path, f"has more than {most} items")
        yield item, f"{path}[{index}]"
