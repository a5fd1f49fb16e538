"""Models by name, from data files: ``data/models.yaml``, or the operator's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mirage_core.errors import ConfigError
from mirage_core.sizing.architectures import size_model
from mirage_core.sizing.documents import Document
from mirage_core.sizing.model import ModelSizing
from mirage_core.sizing.weights import Dtype


class Entry(BaseModel):
    """One model of a file: where its figures are from, and its Hugging Face config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    config: dict[str, Any]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[str, Entry]


@cache
def known_models() -> Mapping[str, Entry]:
    """The models that the package knows, by name."""
    return Document.read(files(__package__) / "data" / "models.yaml").parse(_File).models


def find_model(
    name: str, *, ranks: int = 1, dtype: Dtype | None = None, kv_dtype: Dtype | None = None
) -> ModelSizing:
    """A known model, or the one whose ``config.json`` (or its folder) is at the path ``name``.

    Raises ConfigError if there is neither, and as ``size_model`` does.
    """
    entry = known_models().get(name.casefold())
    if entry is not None:
        config: Mapping[str, Any] = entry.config
    else:
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            known = ", ".join(sorted(known_models()))
            raise ConfigError(f"unknown model {name!r}; no such config, and not one of {known}")
        config = Document.read(path).values
    return size_model(config, name=name, ranks=ranks, dtype=dtype, kv_dtype=kv_dtype)
