"""Linears whose weights live in a device's pages.

vLLM's CPU build packs each weight into a oneDNN handler that owns its memory, so nothing of it
could move.  While a model loads, ``capture_linears`` takes the place of that dispatch and keeps
the plain weights; ``bind_linear`` then points a linear at a packed weight in a range.  Two kernels
do so: our own (float32 and bfloat16, AVX2) and, on CPUs with AVX512-BF16, vLLM's packed one.
Both give the same bits whatever the batch, so outputs do not depend on scheduling (DESIGN §8.5).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from mirage_core.errors import UnsupportedError
from mirage_core.model import UnitId

NO_UNIT = -1


class LinearKernel(Protocol):
    """How one kind of CPU multiplies by a weight that is plain memory."""

    name: str

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack ``weight`` [out, in] into a contiguous tensor that can be copied and viewed."""
        ...

    def bias(self, bias: torch.Tensor) -> torch.Tensor:
        """The bias in the dtype that the kernel adds."""
        ...

    def bind(self, layer: torch.nn.Module, out_features: int, first: int, last: int) -> None:
        """Make ``layer`` run this kernel; wait for unit ``first``, release unit ``last``."""
        ...


class NativeKernel:
    """MIRAGE's own kernel (mirage_core.native): waiting and releasing are part of the op."""

    name = "native"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mirage.pack_linear(weight)

    def bias(self, bias: torch.Tensor) -> torch.Tensor:
        return bias

    def bind(self, layer: torch.nn.Module, out_features: int, first: int, last: int) -> None:
        op = torch.ops.mirage.linear

        def cpu_linear(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
        ) -> torch.Tensor:
            return op(x, weight, bias, out_features, first, last)

        layer.cpu_linear = cpu_linear


class PackedBf16Kernel:
    """vLLM's ``weight_packed_linear`` (csrc/cpu/sgl-kernels), where AVX512-BF16 is."""

    name = "vllm-packed-bf16"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops._C.convert_weight_packed(weight)

    def bias(self, bias: torch.Tensor) -> torch.Tensor:
        return bias.to(torch.float32)  # the kernel reads its bias as float32, whatever it is

    def bind(self, layer: torch.nn.Module, out_features: int, first: int, last: int) -> None:
        from vllm._custom_ops import weight_packed_linear_cpu

        wait, done = torch.ops.mirage.unit_wait, torch.ops.mirage.unit_done

        def cpu_linear(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
        ) -> torch.Tensor:
            if first != NO_UNIT:
                wait(x, first)
            y = weight_packed_linear_cpu(x, weight, out_features, bias)
            if last != NO_UNIT:
                done(y, last)
            return y

        layer.cpu_linear = cpu_linear


def choose_kernel(dtype: torch.dtype) -> LinearKernel:
    """The fastest kernel for ``dtype`` on this CPU; UnsupportedError names what is missing."""
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedError(
            f"MIRAGE's CPU linears are float32 or bfloat16, not {dtype}: start with "
            "--dtype bfloat16 or --dtype float32"
        )
    if dtype is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported():
        return PackedBf16Kernel()
    return NativeKernel()


@dataclass(frozen=True, slots=True, eq=False)
class CapturedLinear:
    """A linear met while a model loaded, its weight packed but not yet in a range."""

    layer: torch.nn.Module
    packed: torch.Tensor
    bias: torch.Tensor | None
    out_features: int
    keeps_weight: bool
    """A head tied to the embedding, whose plain weight look-ups still read."""


@contextmanager
def capture_linears(kernel: LinearKernel) -> Iterator[list[CapturedLinear]]:
    """While a model loads, pack its linears into plain tensors, where vLLM would hide them."""
    from vllm.model_executor.layers import utils

    captured: list[CapturedLinear] = []
    original = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.is_meta or layer.weight.ndim != 2:
            raise UnsupportedError(
                f"MIRAGE cannot move {type(layer).__name__} with a weight of shape "
                f"{tuple(layer.weight.shape)}"
            )
        if remove_weight:  # not an embedding, of which only the head multiplies
            captured.append(_capture(kernel, layer, keeps_weight=False))

    utils.dispatch_cpu_unquantized_gemm = dispatch
    try:
        yield captured
    finally:
        utils.dispatch_cpu_unquantized_gemm = original


def capture_head(kernel: LinearKernel, model: torch.nn.Module) -> CapturedLinear:
    """The head, once the model is loaded; tied to the embedding, it keeps its plain weight."""
    head = model.lm_head
    sharing = [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.data_ptr() == head.weight.data_ptr()
    ]
    return _capture(kernel, head, keeps_weight=len(sharing) > 1)


def _capture(kernel: LinearKernel, layer: torch.nn.Module, *, keeps_weight: bool) -> CapturedLinear:
    weight, bias = layer.weight.data, getattr(layer, "bias", None)
    captured = CapturedLinear(
        layer=layer,
        packed=kernel.pack(weight),
        bias=None if bias is None else kernel.bias(bias.data),
        out_features=weight.shape[0],
        keeps_weight=keeps_weight,
    )
    if not keeps_weight:
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    return captured


def bind_linear(
    kernel: LinearKernel,
    linear: CapturedLinear,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    first: UnitId | None,
    last: UnitId | None,
) -> None:
    """Point a linear at ``packed`` and ``bias``, views of a range, and let it run ``kernel``."""
    layer = linear.layer
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    kernel.bind(
        layer,
        linear.out_features,
        NO_UNIT if first is None else int(first),
        NO_UNIT if last is None else int(last),
    )
    if not linear.keeps_weight:
        layer.weight = torch.nn.Parameter(packed, requires_grad=False)
        return
    layer.mirage_packed = torch.nn.Parameter(packed, requires_grad=False)
    run = layer.cpu_linear

    def cpu_linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return run(x, layer.mirage_packed, bias)

    layer.cpu_linear = cpu_linear
