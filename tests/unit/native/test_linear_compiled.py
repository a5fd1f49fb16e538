"""The operators under torch.compile: opaque, in order, one graph for every batch size and plan."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mirage_core import native
from mirage_core.errors import TransferError
from mirage_core.model import UnitId
from mirage_core.transfer import TransferEngine, UnitSpan

native.load()
ops = torch.ops.mirage

HIDDEN = 32
LAYERS = 4


class Layers(torch.nn.Module):
    """Layers whose two linears are a unit each; the last stands for kernels that are not ours."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = [ops.pack_linear(torch.randn(48, HIDDEN) / 6) for _ in range(LAYERS)]
        self.down = [ops.pack_linear(torch.randn(HIDDEN, 48) / 7) for _ in range(LAYERS)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in range(LAYERS - 1):
            hidden = torch.relu(ops.linear(x, self.up[unit], None, 48, unit, -1))
            x = x + ops.linear(hidden, self.down[unit], None, HIDDEN, -1, unit)
        x = x * 2
        ops.unit_wait(x, LAYERS - 1)
        hidden = torch.relu(ops.linear(x, self.up[-1], None, 48, -1, -1))
        y = ops.linear(hidden, self.down[-1], None, HIDDEN, -1, -1)
        ops.unit_done(y, LAYERS - 1)
        return x + y


def spans_of(model: Layers) -> tuple[list[UnitSpan], list[ctypes.Array[ctypes.c_char]]]:
    """Each layer's ``down`` weight as a unit, and the host copies that the spans point to."""
    copies = []
    spans = []
    for weight in model.down:
        size_bytes = weight.numel() * weight.element_size()
        copy = ctypes.create_string_buffer(size_bytes)
        ctypes.memmove(copy, weight.data_ptr(), size_bytes)
        copies.append(copy)
        spans.append(UnitSpan(weight.data_ptr(), ctypes.addressof(copy), size_bytes))
    return spans, copies


def test_compiled_model_waits_for_its_units_and_plans_change_without_recompiling() -> None:
    model = Layers()
    x = torch.randn(6, HIDDEN)
    expected = model(x)
    spans, copies = spans_of(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    with torch.inference_mode(), TransferEngine(verify=True) as engine:
        engine.register_units(spans)
        plans: list[list[list[UnitId]]] = [
            [],
            [[UnitId(0), UnitId(2)], [UnitId(1), UnitId(3)]],
            [[UnitId(0), UnitId(1), UnitId(3)]],
        ]
        for plan in plans:
            engine.drain()
            # The slots' pages are another's meanwhile: a unit that is not fetched would show.
            for unit in {unit for members in plan for unit in members}:
                model.down[unit].fill_(float("nan"))
            before = engine.stats().fetches
            everything = {UnitId(unit) for unit in range(LAYERS)}
            engine.set_slots(plan, landed=everything.difference(*plan))
            torch.testing.assert_close(compiled(x), expected)
            engine.drain()
            cycled = sum(len(members) for members in plan)
            assert engine.stats().fetches - before == cycled + len(plan)
        for rows in (1, 2, 6):
            torch.testing.assert_close(compiled(x[:rows]), expected[:rows])
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # one row is its own
        engine.drain()
        assert engine.mismatched_units() == ()

        engine.debug_fail_copies(3)
        with pytest.raises(TransferError, match="unit 1 cannot be fetched"):
            compiled(x)
    del copies


@pytest.mark.parametrize("operator", ["linear", "pack_linear", "unit_wait", "unit_done"])
def test_operator_is_registered_as_compilers_expect(operator: str) -> None:
    x = torch.randn(3, HIDDEN)
    weight = torch.randn(20, HIDDEN)
    arguments = {
        "linear": (x, ops.pack_linear(weight), torch.randn(20), 20, -1, -1),
        "pack_linear": (weight,),
        "unit_wait": (x, 0),
        "unit_done": (x, 0),
    }[operator]
    torch.library.opcheck(
        getattr(ops, operator).default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )
