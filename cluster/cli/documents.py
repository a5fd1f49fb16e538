"""Messages as plain documents for people and programs: JSON and YAML, both ways.

An enum's value is its last words in lower case (``MODEL_STATE_ACTIVE`` is ``active``), a size may
be written as ``24GiB``, and a field that was not reported is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from mirage_core.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """``24GiB`` in bytes."""
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{text!r} is no size: a number with B, KiB, MiB, GiB or TiB")
    return round(float(match[1]) * unit)


def show_size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024 or unit == "TiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes all")


def show_enum(enum: EnumDescriptor, number: int) -> str:
    """Its short name; a number that this version does not know as it is."""
    value = enum.values_by_number.get(number)
    return str(number) if value is None else value.name.removeprefix(_prefix(enum)).lower()


def to_document(message: Any) -> dict[str, Any]:
    """``message`` with the fields that are set, and those that have no presence."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            document[field.name] = dict(value)
        elif hasattr(value, "__len__") and not isinstance(value, str | bytes):
            document[field.name] = [_plain(field, each) for each in value]
        else:
            document[field.name] = _plain(field, value)
    return document


def from_document(document: Any, message: Any, what: str) -> Any:
    """Fill ``message`` from ``document``; ConfigError names the field at fault in ``what``."""
    try:
        return json_format.ParseDict(_long(document, message.DESCRIPTOR), message)
    except json_format.ParseError as error:
        raise ConfigError(f"{what}: {error}") from None


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return to_document(value)
    if field.enum_type is not None:
        return show_enum(field.enum_type, value)
    return value


def _long(document: Any, kind: Descriptor) -> Any:
    """The document in protobuf's own JSON: full names of enum values, sizes as numbers."""
    if not isinstance(document, Mapping):
        return document
    long: dict[str, Any] = {}
    for name, value in document.items():
        field = kind.fields_by_name.get(name)
        if field is None or _is_map(field):
            long[name] = value
        elif isinstance(value, list):
            long[name] = [_long_value(each, field) for each in value]
        else:
            long[name] = _long_value(value, field)
    return long


def _long_value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _long(value, field.message_type)
    if isinstance(value, str):
        if field.enum_type is not None:
            full = _prefix(field.enum_type) + value.upper()
            return full if full in field.enum_type.values_by_name else value
        if field.name.endswith("_bytes") and not value.isdecimal():
            return parse_size(value)
    return value


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _prefix(enum: EnumDescriptor) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper() + "_"
