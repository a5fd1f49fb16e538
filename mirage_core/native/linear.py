"""Packed weights of ``mirage::linear``, and what a compiler must know of the operators.

``torch.ops.mirage`` after ``load()``:

- ``pack_linear(weight [N, K]) -> packed [ceil(N/16), K, 16]``, contiguous, of the weight's dtype;
- ``linear(x [..., K], packed, bias [N] | None, N, unit_first, unit_last) -> y [..., N]``:
  ``unit_first`` names the unit whose first linear this is (waits for its bytes), ``unit_last``
  the unit whose last linear this is (then gives its slot to the next); -1 for neither;
- ``unit_wait(x, unit)`` and ``unit_done(y, unit)``: the same two acts for other kernels; they
  change nothing in x and y, which only order them under ``torch.compile``.

Without a transfer engine in the process the units are taken as resident.  A unit that cannot be
brought to the device raises TransferError, units out of order MisuseError.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch

from mirage_core.native import library

PANEL_COLUMNS = 16
"""Outputs that the kernel computes together; a packed weight is padded to whole panels."""


@functools.cache
def load() -> ModuleType:
    """Load the native library and register its operators' shapes; see ``library.load``."""
    module = library.load()
    for operator, fake in (
        ("pack_linear", _fake_pack_linear),
        ("linear", _fake_linear),
        ("unit_wait", _fake_unit),
        ("unit_done", _fake_unit),
    ):
        torch.library.register_fake(f"mirage::{operator}", fake)
    return module


def _fake_pack_linear(weight: torch.Tensor) -> torch.Tensor:
    return weight.new_empty(packed_shape(weight.shape[0], weight.shape[1]))


def _fake_linear(
    x: torch.Tensor,
    packed_weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_features: int,
    unit_first: int,
    unit_last: int,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _fake_unit(x: torch.Tensor, unit: int) -> None:
    return None


def packed_shape(out_features: int, in_features: int) -> tuple[int, int, int]:
    """Shape of the packed weight of a linear [out_features, in_features]."""
    return (-(-out_features // PANEL_COLUMNS), in_features, PANEL_COLUMNS)


def packed_bytes(out_features: int, in_features: int, dtype: torch.dtype) -> int:
    """Size of the packed weight in bytes."""
    panels, depth, columns = packed_shape(out_features, in_features)
    return panels * depth * columns * dtype.itemsize
