"""One Hugging Face config, read field by field: what is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_core.errors import ConfigError

_REQUIRED: Any = object()


class Fields:
    """Fields of one config; ``where`` (a model's name or a file) stands in errors.

    A field may have several names (``n_layer`` of old configs is ``num_hidden_layers``); the first
    that is there and not null counts.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def has(self, *names: str) -> bool:
        return self._raw(names) is not None

    def count(self, *names: str, default: int = _REQUIRED, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._get(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(names, f"a whole number of at least {least}", value)
        return value

    def flag(self, *names: str, default: bool = _REQUIRED) -> bool:
        value = self._get(names, default)
        if not isinstance(value, bool):
            raise self._wrong(names, "true or false", value)
        return value

    def text(self, *names: str, default: str = _REQUIRED) -> str:
        value = self._get(names, default)
        if not isinstance(value, str):
            raise self._wrong(names, "a text", value)
        return value

    def number(self, *names: str, default: float = _REQUIRED) -> float:
        value = self._get(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(names, "a number", value)
        return float(value)

    def items(self, *names: str, default: list[Any] = _REQUIRED) -> list[Any]:
        value = self._get(names, default)
        if not isinstance(value, list):
            raise self._wrong(names, "a list", value)
        return value

    def first_text(self, name: str) -> str:
        """The first item of a list of texts."""
        value = self.items(name)
        if not value or not isinstance(value[0], str):
            raise self._wrong((name,), "a list of texts", value)
        return value[0]

    def _raw(self, names: tuple[str, ...]) -> Any:
        return next(
            (self._values[name] for name in names if self._values.get(name) is not None), None
        )

    def _get(self, names: tuple[str, ...], default: Any) -> Any:
        value = self._raw(names)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConfigError(f"{self.where}: {' or '.join(names)} is missing")
        return default

    def _wrong(self, names: tuple[str, ...], expected: str, value: object) -> ConfigError:
        name = next((name for name in names if self._values.get(name) is not None), names[0])
        return ConfigError(f"{self.where}: {name} must be {expected}, got {value!r}")
