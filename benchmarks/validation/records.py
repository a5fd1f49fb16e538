"""Raw timelines of real runs (``benchmarks.sharing.record``), read strictly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mirage_core.errors import ConfigError

Shape = TypeVar("Shape", bound=BaseModel)


class ModelFacts(BaseModel):
    """What the simulator needs of one model."""

    model_config = ConfigDict(frozen=True)

    layers: int = Field(ge=1)
    unit_bytes: int = Field(ge=1)
    weight_bytes: int = Field(ge=1)
    kv_bytes_per_token: int = Field(ge=1)
    pool_tokens: int = Field(ge=1)


class Head(BaseModel):
    """Under what a run was made; runs that differ in ``repeat`` alone are repeats."""

    model_config = ConfigDict(frozen=True)

    arm: str
    kernels: str
    load: float
    split: float | None
    length_scale: float
    lengths: str
    seed: int
    eager: bool
    repeat: int
    device_bytes: int
    page_bytes: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    preemptions: float
    counted: dict[str, float]
    models: dict[str, ModelFacts]

    @property
    def conditions(self) -> tuple[object, ...]:
        """Equal for repeats of one run."""
        return (
            *(self.arm, self.load, self.split, self.length_scale, self.lengths),
            *(self.seed, self.eager, self.device_bytes),
        )

    @property
    def name(self) -> str:
        return f"{self.arm} {self.load:g}x, split {self.split}, lengths x {self.length_scale:g}"


class Served(BaseModel):
    """What became of one request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    arrival_s: float = Field(ge=0)
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    token_times_s: tuple[float, ...]
    finished: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One real run."""

    head: Head
    requests: tuple[Served, ...]


def read_records(folder: Path) -> list[Record]:
    """All runs of a folder, by file name; ConfigError names the file and line of a fault."""
    paths = sorted(folder.glob("*.jsonl"))
    return [read_record(path) for path in paths]


def read_record(path: Path) -> Record:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if len(lines) < 2:
        raise ConfigError(f"{path}: holds no request; the run was not finished")
    head = _parse(Head, path, 1, lines[0])
    requests = tuple(_parse(Served, path, n, line) for n, line in enumerate(lines[1:], start=2))
    for number, request in enumerate(requests, start=2):
        if request.model not in head.models:
            raise ConfigError(f"{path}:{number}: no model {request.model!r} in the first line")
    return Record(head, requests)


def _parse(shape: type[Shape], path: Path, number: int, line: str) -> Shape:
    try:
        return shape.model_validate(json.loads(line))
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{path}:{number}: {field}: {fault['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: not JSON: {error}") from None


def repeats(records: Sequence[Record]) -> list[list[Record]]:
    """Runs grouped by their conditions and their requests (a load follows what was measured)."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        asked = tuple(
            (r.model, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in record.requests
        )
        groups.setdefault((record.head.conditions, asked), []).append(record)
    return list(groups.values())
