"""Weights of a model as one rank of its tensor-parallel group holds them.

A *weight* is what one operation reads: a linear with its bias, the linears of all experts of a
layer, a norm, an embedding.  What moves with what is said here and nowhere else:

- linears of decoder layers move, alone, with their half of the layer, or with the whole layer;
- norms, convolutions, state matrices and routers of a layer never move: they are kilobytes, and
  compiled code reads them between the linears;
- embeddings, the head and encoders never move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from mirage_core.errors import ConfigError


class Half(Enum):
    """The half of a layer that a weight belongs to (``model.UnitGrain.HALF``)."""

    MIXER = "attention"
    """attention, or the mixer in its place"""
    MLP = "mlp"


class Dtype(Enum):
    """Types of weights and caches; the value is the name in configs."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def size_bytes(self) -> int:
        return {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}[self.value]


def parse_dtype(name: str) -> Dtype:
    """``"bfloat16"``, ``"torch.float16"``, ``"fp8_e4m3"`` and the like; ConfigError if unknown."""
    short = name.removeprefix("torch.").replace("half", "float16")
    short = "fp8" if short.startswith(("fp8", "float8")) else short
    try:
        return Dtype(short)
    except ValueError:
        known = ", ".join(dtype.value for dtype in Dtype)
        raise ConfigError(f"unknown dtype {name!r}; there are {known}") from None


@dataclass(frozen=True, slots=True)
class Weight:
    """One operation's weights on one rank.

    params             elements; ``padding_params`` of them are rows that fill a vocabulary up
    size_bytes         all of them
    moves              whether it is (part of) a unit
    half               of the layer; None outside the decoder layers
    experts            linears of so many experts, of which a token uses ``experts_per_token``
    multiplies         whether every token multiplies it, and so reads it; not so embeddings, which
                       are looked up, and encoders, which have run before
    """

    name: str
    params: int
    size_bytes: int
    half: Half | None = None
    moves: bool = False
    experts: int = 1
    experts_per_token: int = 1
    multiplies: bool = True
    padding_params: int = 0

    @property
    def token_flops(self) -> int:
        """Operations of one token: a multiplication and an addition for each element it uses."""
        used = self.params * self.experts_per_token // self.experts
        return 2 * used if self.multiplies else 0

    def read_bytes(self, tokens: float) -> float:
        """Bytes that a step of ``tokens`` tokens reads: of experts, those that any token uses.

        Tokens choose experts independently and evenly, the usual assumption; skew reads fewer.
        """
        if not self.multiplies:
            return 0.0
        if self.experts == 1:
            return float(self.size_bytes)
        missed: float = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.size_bytes * (1.0 - missed)

    def of_half(self, half: Half | None) -> Weight:
        return replace(self, half=half)
