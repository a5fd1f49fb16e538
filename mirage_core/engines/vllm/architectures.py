"""Which linears of a decoder layer move, in the order in which a forward pass runs them.

The order is what makes waiting and releasing right, so it is written down for each architecture
and an unknown one is refused, not guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_core.errors import UnsupportedError
from mirage_core.model import UnitGrain


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Names of a decoder layer's linears, relative to the layer, in order of execution."""

    layers: str
    """Path of the list of decoder layers in the model."""
    attention: tuple[str, ...]
    mlp: tuple[str, ...]

    def groups(self, grain: UnitGrain) -> tuple[tuple[str, ...], ...]:
        """The layer's units, each a tuple of linears."""
        match grain:
            case UnitGrain.LAYER:
                return (self.attention + self.mlp,)
            case UnitGrain.HALF:
                return (self.attention, self.mlp)
            case UnitGrain.LINEAR:
                return tuple((name,) for name in self.attention + self.mlp)


_LLAMA_LIKE = LayerShape(
    layers="model.layers",
    attention=("self_attn.qkv_proj", "self_attn.o_proj"),
    mlp=("mlp.gate_up_proj", "mlp.down_proj"),
)
_OPT = LayerShape(
    layers="model.decoder.layers",
    attention=("self_attn.qkv_proj", "self_attn.out_proj"),
    mlp=("fc1", "fc2"),
)

ARCHITECTURES: dict[str, LayerShape] = {
    "LlamaForCausalLM": _LLAMA_LIKE,
    "MistralForCausalLM": _LLAMA_LIKE,
    "Qwen2ForCausalLM": _LLAMA_LIKE,
    "Qwen3ForCausalLM": _LLAMA_LIKE,
    "OPTForCausalLM": _OPT,
}


def layer_shape(architecture: str) -> LayerShape:
    shape = ARCHITECTURES.get(architecture)
    if shape is None:
        raise UnsupportedError(
            f"MIRAGE does not know the order of the linears of {architecture}; "
            f"it supports {', '.join(sorted(ARCHITECTURES))}"
        )
    return shape
