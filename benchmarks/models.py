"""Small random-weight models on disk, for benchmarks and tests: no download, same bytes each time.

A model is a folder that vLLM loads like any other: configuration, safetensors weights, and a
byte-level BPE tokenizer trained here on seeded pseudo-text.  ``build`` makes a folder once and
names it by a digest of everything that its content depends on.  Weights are random with a fixed
seed, biases and norms included: an engine that used a wrong weight would answer differently.

The command line makes the benchmark's pair: ``python -m benchmarks.models [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

DEFAULT_ROOT = Path("build/models")
VOCABULARY = 4096
SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")
_FORMAT = 1
"""Raised when the same spec would give other bytes, so that old folders are not used."""


class Family(Enum):
    """Architectures that differ in what a remapped unit must carry."""

    LLAMA = "llama"
    """gated MLP, no bias, head of its own"""
    OPT = "opt"
    """biases on every linear, learned positions, head tied to the embedding"""
    QWEN3 = "qwen3"
    """norms on queries and keys, head size apart from hidden / heads"""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides a model's bytes."""

    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    dtype: str
    """``float32`` or ``bfloat16``, see ``native_dtype``"""
    head_size: int = 64
    positions: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be float32 or bfloat16, not {self.dtype!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide among {self.kv_heads} KV heads")
        if self.family is Family.OPT and self.kv_heads != self.heads:
            raise ValueError("OPT has as many KV heads as heads")
        if self.family is not Family.QWEN3 and self.hidden != self.heads * self.head_size:
            raise ValueError(f"hidden must be heads x head_size for {self.family.value}")

    @property
    def element_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.element_bytes

    @property
    def linear_bytes(self) -> int:
        """Weights of the decoder layers' linears, biases left out: what can move."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        matrices = 2 if self.family is Family.OPT else 3
        return self.layers * (attention + matrices * self.hidden * self.ffn) * self.element_bytes

    @property
    def digest(self) -> str:
        content = json.dumps(
            [_FORMAT, {k: getattr(v, "value", v) for k, v in asdict(self).items()}], sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def native_dtype() -> str:
    """The dtype whose linears run at full speed on this CPU.

    bfloat16 needs AVX512-BF16; without it a bfloat16 linear takes several times a float32 one.
    """
    import torch

    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


def build(spec: ModelSpec, root: Path = DEFAULT_ROOT) -> Path:
    """Folder of the model, made on the first call.

    Two processes may build at once: each writes a folder of its own and the first to rename wins.
    Raises OSError if the disk is full; nothing half-made is left behind.
    """
    folder = root / f"{spec.family.value}-{spec.hidden}x{spec.layers}-{spec.digest}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
    try:
        _write_weights(spec, scratch)
        _write_tokenizer(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def weight_bytes(folder: Path) -> int:
    """Bytes of all weights of a model folder: what the model needs on a device."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _config(spec: ModelSpec) -> PretrainedConfig:
    from transformers import LlamaConfig, OPTConfig, Qwen3Config

    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "max_position_embeddings": spec.positions,
        "dtype": spec.dtype,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "tie_word_embeddings": spec.family is Family.OPT,
    }
    if spec.family is Family.OPT:
        return OPTConfig(ffn_dim=spec.ffn, word_embed_proj_dim=spec.hidden, **shared)
    shared |= {
        "num_key_value_heads": spec.kv_heads,
        "intermediate_size": spec.ffn,
        "head_dim": spec.head_size,
    }
    return LlamaConfig(**shared) if spec.family is Family.LLAMA else Qwen3Config(**shared)


def _write_weights(spec: ModelSpec, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        _config(spec), dtype=getattr(torch, spec.dtype)
    )
    generator = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(_random_like(name, parameter, generator))
    model.save_pretrained(folder)


def _random_like(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values as at the start of training; norms stay near one, biases are not zero."""
    import torch

    noise = torch.randn(like.shape, generator=generator) * 0.02
    return 1 + noise if "norm" in name and name.endswith("weight") else noise


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(_trained_tokenizer()),
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    fast.save_pretrained(folder)


@cache
def _trained_tokenizer() -> str:
    """A byte-level BPE of ``VOCABULARY`` entries in JSON; the same for every model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pseudo_text(), trainer)
    return str(tokenizer.to_str())


def _pseudo_text(words: int = 40_000) -> list[str]:
    """Seeded made-up words with a Zipf-like frequency, enough of them for the vocabulary."""
    rng = random.Random(0)
    openings, endings = "bcdfghklmnprstvwz", ("", "n", "r", "s")
    syllables = [c + v + e for c in openings for v in "aeiou" for e in endings]
    known = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(8000)]
    weights = [1 / rank for rank in range(1, len(known) + 1)]
    return rng.choices(known, weights, k=words)


def small_spec(dtype: str) -> ModelSpec:
    """The pair's smaller model."""
    return ModelSpec(
        Family.LLAMA, hidden=384, layers=10, heads=6, kv_heads=6, ffn=1152, dtype=dtype
    )


def large_spec(dtype: str) -> ModelSpec:
    """The pair's larger model."""
    return ModelSpec(
        Family.LLAMA, hidden=512, layers=12, heads=8, kv_heads=8, ffn=1536, dtype=dtype, seed=1
    )


def main(arguments: list[str]) -> None:
    root = Path(arguments[0]) if arguments else DEFAULT_ROOT
    for spec in (small_spec(native_dtype()), large_spec(native_dtype())):
        folder = build(spec, root)
        print(f"{folder}  {weight_bytes(folder) / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
