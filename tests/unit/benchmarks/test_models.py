"""Model folders: complete, the same each time, and different where it matters."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from benchmarks import models
from benchmarks.models import VOCABULARY, Family, ModelSpec, build, native_dtype, weight_bytes

LLAMA = ModelSpec(Family.LLAMA, hidden=128, layers=2, heads=2, kv_heads=1, ffn=192, dtype="float32")
OPT = replace(LLAMA, family=Family.OPT, kv_heads=2)
QWEN3 = replace(LLAMA, family=Family.QWEN3, head_size=32)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("spec", [LLAMA, OPT, QWEN3], ids=lambda spec: spec.family.value)
def test_the_stated_sizes_are_those_of_the_weights(root: Path, spec: ModelSpec) -> None:
    folder = build(spec, root)
    linears = [
        tensor.nbytes
        for name, tensor in weights(folder).items()
        if ".layers." in name and tensor.ndim == 2
    ]
    assert spec.linear_bytes == sum(linears)
    assert weight_bytes(folder) >= sum(tensor.nbytes for tensor in weights(folder).values())
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"][0].lower().startswith(spec.family.value)
    assert config["vocab_size"] == VOCABULARY


def test_the_families_carry_what_sets_them_apart(root: Path) -> None:
    llama, opt, qwen3 = (weights(build(spec, root)) for spec in (LLAMA, OPT, QWEN3))

    assert not [name for name in llama if name.endswith("bias")]
    assert "lm_head.weight" in llama
    biases = [tensor for name, tensor in opt.items() if name.endswith("q_proj.bias")]
    assert len(biases) == OPT.layers
    assert all(bias.abs().min() > 0 for bias in biases)
    assert "lm_head.weight" not in opt
    assert [name for name in qwen3 if name.endswith("q_norm.weight")]
    assert qwen3["model.layers.0.self_attn.q_proj.weight"].shape == (64, 128)


def test_no_two_layers_have_the_same_weights(root: Path) -> None:
    first, second = (
        weights(build(LLAMA, root))[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1)
    )
    assert not torch.equal(first, second)


def test_a_model_is_the_same_wherever_it_is_built_and_another_with_another_seed(
    root: Path, tmp_path: Path
) -> None:
    here, there = build(LLAMA, root), build(LLAMA, tmp_path)
    assert here.name == there.name
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    other = build(replace(LLAMA, seed=1), root)
    assert other.name != here.name
    assert not torch.equal(weights(here)["lm_head.weight"], weights(other)["lm_head.weight"])


def test_a_model_is_built_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(LLAMA, root)
    monkeypatch.setattr(models, "_write_weights", None)
    assert build(LLAMA, root).is_dir()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(folder: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(models, "_write_tokenizer", full_disk)
    with pytest.raises(OSError, match="no space"):
        build(LLAMA, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_reads_back_what_it_wrote(root: Path) -> None:
    tokenizer = Tokenizer.from_file(str(build(LLAMA, root) / "tokenizer.json"))
    text = "Two models share one device; ünïcode too."
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == VOCABULARY


def test_bfloat16_halves_the_bytes(root: Path) -> None:
    half = replace(LLAMA, dtype="bfloat16")
    assert half.kv_bytes_per_token == LLAMA.kv_bytes_per_token // 2
    assert weights(build(half, root))["lm_head.weight"].dtype == torch.bfloat16
    assert native_dtype() in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dtype": "float16"}, "dtype must be"),
        ({"kv_heads": 3}, "do not divide"),
        ({"family": Family.OPT}, "as many KV heads"),
        ({"hidden": 100}, "heads x head_size"),
    ],
)
def test_a_spec_that_makes_no_model_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(LLAMA, **change)
