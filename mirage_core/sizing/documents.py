"""Settings and data in YAML or JSON (which is YAML): an error names file, line and field."""

from __future__ import annotations

from collections.abc import Hashable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError

from mirage_core.errors import ConfigError

Place = tuple[Hashable, ...]
"""Keys and indices that lead to a value, as pydantic gives them."""
Model = TypeVar("Model", bound=BaseModel)


class Document:
    """One file's values, and the line of each.

    ``name`` stands in errors.  Raises ConfigError if the text is no YAML mapping or a key is twice
    in one mapping.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._lines: dict[Place, int] = {}
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            self.values: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{name} is neither YAML nor JSON: {error}") from None
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{name} must be a mapping of names to values")
        self._note(root, ())

    @classmethod
    def read(cls, path: Path | Traversable) -> Document:
        try:
            return cls(str(path), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None

    def where(self, place: Place) -> str:
        """``file:line: field`` of a value, or of the nearest one around it."""
        inner = place
        while inner and inner not in self._lines:
            inner = inner[:-1]
        field = ".".join(map(str, place))
        return f"{self.name}:{self._lines[inner]}: {field}" if field else self.name

    def parse(self, model: type[Model]) -> Model:
        """The values as ``model``; ConfigError lists every fault with its line."""
        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            faults = {fault["loc"]: fault for fault in error.errors()}
            raise ConfigError(
                "\n".join(
                    f"{self.where(place)}: {_said(fault['type'], fault['msg'])}"
                    for place, fault in faults.items()
                    # A list with a wrong item is wrong too, says pydantic: the item is enough.
                    if not any(len(o) > len(place) and o[: len(place)] == place for o in faults)
                )
            ) from None

    def _note(self, node: yaml.Node, place: Place) -> None:
        self._lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._note(item, (*place, index))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*place, key.value)
                if inner in self._lines:
                    raise ConfigError(f"{self.name}:{key.start_mark.line + 1}: {key.value} twice")
                self._note(value, inner)
                self._lines[inner] = key.start_mark.line + 1


def _said(kind: str, message: str) -> str:
    return "unknown field" if kind == "extra_forbidden" else message
