"""What a GPU can do, from data files with sources: memory, arithmetic, and the link to its host.

A figure is a range, for sources differ and a specification is not a measurement.  Nothing here was
measured by this project on the GPU named (``calibrated`` is False): what is computed from it is an
estimate, and its range is ``low`` to ``high``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mirage_core.errors import ConfigError
from mirage_core.sizing.documents import Document

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure a second and how sure it is.

    spec        the vendor's, as published
    low, high   what was measured; where nothing was, what must be expected
    """

    spec: float
    low: float
    high: float

    @property
    def typical(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2

    def at(self, share: float) -> float:
        """The range's figure at ``share`` of it: 0.0 is ``low``, 1.0 ``high``."""
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU as the sizing, the planner and the simulator see it.

    hbm_bytes           device memory (decimal gigabytes of the vendor, in bytes)
    hbm_bytes_per_s     its bandwidth
    flops_per_s         dense bf16 operations (a multiplication and an addition are two)
    h2d_bytes_per_s     host to device, this GPU alone on its link
    d2h_bytes_per_s     device to host, alone
    domain_gpus         GPUs that share one host-link domain (two GPUs of a GB200 share a Grace)
    domain_h2d_bytes_per_s
                        what the domain's GPUs get together, all active
    calibrated          whether this project measured it
    sources             what was read, and how sure it is
    """

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: Rate
    flops_per_s: Rate
    h2d_bytes_per_s: Rate
    d2h_bytes_per_s: Rate
    domain_gpus: int
    domain_h2d_bytes_per_s: Rate
    calibrated: bool
    sources: tuple[str, ...]

    def at(self, share: float) -> Hardware:
        """The same GPU with every rate fixed at ``share`` of its range (0.0 slow, 1.0 fast)."""
        return self._fixed(lambda rate: rate.at(share))

    def as_published(self) -> Hardware:
        """The same GPU with every rate fixed at its specification, which no kernel reaches."""
        return self._fixed(lambda rate: rate.spec)

    def _fixed(self, figure_of: Callable[[Rate], float]) -> Hardware:
        def fixed(rate: Rate) -> Rate:
            figure = figure_of(rate)
            return Rate(rate.spec, figure, figure)

        return replace(
            self,
            hbm_bytes_per_s=fixed(self.hbm_bytes_per_s),
            flops_per_s=fixed(self.flops_per_s),
            h2d_bytes_per_s=fixed(self.h2d_bytes_per_s),
            d2h_bytes_per_s=fixed(self.d2h_bytes_per_s),
            domain_h2d_bytes_per_s=fixed(self.domain_h2d_bytes_per_s),
        )


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Span = tuple[Positive, Positive]


class _Figure(BaseModel):
    """One figure of a data file, in its unit: published; measured, or else expected, in use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec: Positive | Span
    measured: Positive | Span | None = None
    expected: Positive | Span | None = None
    source: str

    def rate(self, unit: float = GIGA) -> Rate:
        low, high = _span(self.measured or self.expected or self.spec)
        return Rate(spec=_span(self.spec)[1] * unit, low=low * unit, high=high * unit)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hbm_gb: Positive
    hbm_gb_per_s: _Figure
    bf16_tflop_per_s: _Figure
    h2d_gb_per_s: _Figure
    d2h_gb_per_s: _Figure
    domain_gpus: int = Field(default=1, ge=1)
    domain_h2d_gb_per_s: _Figure | None = None
    calibrated: bool = False

    def hardware(self, name: str) -> Hardware:
        h2d = self.h2d_gb_per_s.rate()
        shared = self.domain_h2d_gb_per_s
        figures = {
            "memory": self.hbm_gb_per_s,
            "arithmetic": self.bf16_tflop_per_s,
            "host to device": self.h2d_gb_per_s,
            "device to host": self.d2h_gb_per_s,
            "host-link domain": shared,
        }
        return Hardware(
            name=name,
            hbm_bytes=round(self.hbm_gb * GIGA),
            hbm_bytes_per_s=self.hbm_gb_per_s.rate(),
            flops_per_s=self.bf16_tflop_per_s.rate(1e12),
            h2d_bytes_per_s=h2d,
            d2h_bytes_per_s=self.d2h_gb_per_s.rate(),
            domain_gpus=self.domain_gpus,
            domain_h2d_bytes_per_s=shared.rate() if shared else h2d,
            calibrated=self.calibrated,
            sources=tuple(f"{what}: {figure.source}" for what, figure in figures.items() if figure),
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: dict[str, _Entry]


def read_hardware(path: Path) -> dict[str, Hardware]:
    """GPUs of a file in the form of ``data/gpus.yaml``, by name; ConfigError names the line."""
    return _hardware_of(Document.read(path))


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """The GPUs that the package knows, by name."""
    return _hardware_of(Document.read(files(__package__) / "data" / "gpus.yaml"))


def find_hardware(name: str, others: Mapping[str, Hardware] | None = None) -> Hardware:
    """The GPU called ``name``, of ``others`` first; ConfigError lists those there are."""
    gpus = {**known_hardware(), **(others or {})}
    folded = {known.casefold(): gpu for known, gpu in gpus.items()}
    found = gpus.get(name) or folded.get(name.casefold())
    if found is None:
        raise ConfigError(f"unknown GPU {name!r}; there are {', '.join(sorted(gpus))}")
    return found


def _hardware_of(document: Document) -> dict[str, Hardware]:
    return {name: entry.hardware(name) for name, entry in document.parse(_File).gpus.items()}


def _span(figure: float | tuple[float, float]) -> tuple[float, float]:
    low, high = figure if isinstance(figure, tuple) else (figure, figure)
    return min(low, high), max(low, high)
