"""Splits a loaded vLLM model into units and the part that never moves.

A unit is a group of linears of one decoder layer: their packed weights and biases.  All other
parameters are static: embeddings and a head tied to them (shared storage), the head, norms (a few
kilobytes, read by compiled code between the linears).  Static parameters live on device pages
too, so that the device's size accounts for them.  Buffers, which layers share (rotary caches),
stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mirage_core.engines.vllm.architectures import LayerShape
from mirage_core.engines.vllm.linears import CapturedLinear
from mirage_core.errors import UnsupportedError
from mirage_core.model import UnitGrain


@dataclass(frozen=True, slots=True)
class UnitLinears:
    """The linears of one unit, in order of execution."""

    name: str
    linears: tuple[CapturedLinear, ...]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor of all that moves, in a fixed order."""
        found: list[tuple[str, torch.Tensor]] = []
        for index, linear in enumerate(self.linears):
            found.append((f"{index}.weight", linear.packed))
            if linear.bias is not None:
                found.append((f"{index}.bias", linear.bias))
        return found


@dataclass(frozen=True, slots=True)
class SplitModel:
    """Units in order of execution, linears that stay, and all other parameters."""

    units: tuple[UnitLinears, ...]
    static_linears: tuple[CapturedLinear, ...]
    parameters: tuple[tuple[str, torch.nn.Parameter], ...]
    """Static parameters, one entry for each storage."""

    def static_tensors(self) -> list[tuple[str, torch.Tensor]]:
        found = [(name, parameter.data) for name, parameter in self.parameters]
        for index, linear in enumerate(self.static_linears):
            found.append((f"linear.{index}.weight", linear.packed))
            if linear.bias is not None:
                found.append((f"linear.{index}.bias", linear.bias))
        return found


def split_model(
    model: torch.nn.Module,
    shape: LayerShape,
    grain: UnitGrain,
    captured: Sequence[CapturedLinear],
) -> SplitModel:
    """Sort a model's parameters; UnsupportedError if a decoder layer has a linear too many."""
    layers = model.get_submodule(shape.layers)
    by_layer = {id(linear.layer): linear for linear in captured}
    units: list[UnitLinears] = []
    for index, layer in enumerate(layers.children()):
        inside = {id(module): name for name, module in layer.named_modules()}
        groups = shape.groups(grain)
        named = [name for group in groups for name in group]
        found = sorted(
            inside[id(linear.layer)] for linear in captured if id(linear.layer) in inside
        )
        if found != sorted(named):
            raise UnsupportedError(
                f"decoder layer {index} has the linears {found}, MIRAGE expects {sorted(named)}"
            )
        for group in groups:
            linears = tuple(by_layer.pop(id(layer.get_submodule(name))) for name in group)
            units.append(UnitLinears(f"{shape.layers}.{index}:{'+'.join(group)}", linears))
    static_linears = tuple(by_layer.values())

    moved = {t.data_ptr() for unit in units for _, t in unit.tensors()}
    moved |= {
        linear.layer.bias.data_ptr()
        for linear in captured
        if getattr(linear.layer, "bias", None) is not None
    }
    parameters: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.numel() and parameter.data_ptr() not in moved:
            parameters.setdefault(parameter.data_ptr(), (name, parameter))
    return SplitModel(tuple(units), static_linears, tuple(parameters.values()))
