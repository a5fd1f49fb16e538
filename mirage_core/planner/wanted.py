"""What an operator asks of ``mirage plan``: models, GPUs, traffic; from a file or options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mirage_core.errors import ConfigError
from mirage_core.model import UnitGrain
from mirage_core.sizing.catalogue import find_model
from mirage_core.sizing.documents import Document
from mirage_core.sizing.hardware import Hardware, find_hardware, read_hardware
from mirage_core.sizing.model import ModelSizing
from mirage_core.sizing.weights import parse_dtype

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuWanted(_Strict):
    """``gpus``: a kind of GPU and how many of it, each a node of its own unless ``per_node``."""

    gpu: str
    count: Count = 1
    per_node: Count = 1
    price_per_hour: Positive | None = None


class ModelWanted(_Strict):
    """``models``: a known name or the path of a config.json, and what it is given.

    share     part of a GPU's memory (of the smallest kind) for its weights and KV cache; left out:
              weights, room for one longest request, and an equal part of what is left
    replicas  so many times, each on ``ranks`` GPUs of one node
    """

    model: str
    name: str | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    priority: int = 0
    replicas: Count = 1
    ranks: Count = 1
    dtype: str | None = None
    kv_dtype: str | None = None

    @property
    def label(self) -> str:
        return self.name or Path(self.model).name

    def sizing(self) -> ModelSizing:
        """Of one rank; raises ConfigError."""
        return find_model(
            self.model,
            ranks=self.ranks,
            dtype=parse_dtype(self.dtype) if self.dtype else None,
            kv_dtype=parse_dtype(self.kv_dtype) if self.kv_dtype else None,
        )


class Wanted(_Strict):
    """The whole file.

    hardware        more GPUs than the package knows, in the form of its ``data/gpus.yaml``
    usable_share    part of a GPU's memory that weights and KV caches may take; the rest is for
                    activations, graphs and the runtime
    page_bytes      unit of device memory
    block_tokens    vLLM's block size
    grain           what moves as one
    longest_tokens  most tokens of a request, prompt and reply
    lengths         of prompts and replies: a dataset's statistics, or a table of lengths by path
    arrivals        whose gaps requests come with
    loads           parts of what a GPU can do at most; empty: nothing is predicted
    requests        of each predicted point
    """

    gpus: Annotated[tuple[GpuWanted, ...], Field(min_length=1)]
    models: Annotated[tuple[ModelWanted, ...], Field(min_length=1)]
    hardware: Path | None = None
    usable_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    page_bytes: Count = 2 << 20
    block_tokens: Count = 16
    grain: UnitGrain = UnitGrain.LAYER
    longest_tokens: Annotated[int, Field(ge=2)] = 2048
    lengths: str = "sharegpt"
    arrivals: Literal["azure-code", "azure-conv", "poisson"] = "azure-code"
    loads: tuple[Positive, ...] = (0.25, 0.5, 1.0, 1.5)
    requests: Count = 400
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Wanted:
        labels = [model.label for model in self.models]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"two models are called {', '.join(sorted(twice))}: give each a name")
        return self


class Question:
    """A ``Wanted`` with its models and GPUs looked up; errors name the place in the file."""

    def __init__(self, wanted: Wanted, document: Document | None = None) -> None:
        self.wanted = wanted
        self._document = document
        others = read_hardware(wanted.hardware) if wanted.hardware else {}
        self.gpus: list[tuple[GpuWanted, Hardware]] = []
        for index, gpu in enumerate(wanted.gpus):
            try:
                self.gpus.append((gpu, find_hardware(gpu.gpu, others)))
            except ConfigError as error:
                raise self.fault(error, "gpus", index, "gpu") from None
        self.models: list[tuple[ModelWanted, ModelSizing]] = []
        for index, model in enumerate(wanted.models):
            try:
                self.models.append((model, model.sizing()))
            except ConfigError as error:
                raise self.fault(error, "models", index, "model") from None

    def fault(self, error: ConfigError, *place: str | int) -> ConfigError:
        """``error``, with the line that it is about where there is a file."""
        if self._document is None:
            return error
        return type(error)(f"{self._document.where(place)}: {error}")


def read_question(path: Path) -> Question:
    """The question that a file asks; ConfigError names file, line and field."""
    document = Document.read(path)
    return Question(document.parse(Wanted), document)


def parse_model_option(text: str) -> ModelWanted:
    """``NAME`` or ``NAME:SHARE``, as in ``opt-13b:0.35``."""
    name, colon, share = text.rpartition(":")
    if not colon:
        return ModelWanted(model=text)
    try:
        return ModelWanted(model=name, share=float(share))
    except ValueError:
        raise ConfigError(
            f"--model {text}: write NAME or NAME:SHARE, with a share above 0 and at most 1"
        ) from None


def parse_gpu_options(names: Sequence[str], price_per_hour: float | None) -> tuple[GpuWanted, ...]:
    """One GPU a name; equal names count."""
    return tuple(
        GpuWanted(gpu=name, count=names.count(name), price_per_hour=price_per_hour)
        for name in dict.fromkeys(names)
    )
