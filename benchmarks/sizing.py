"""Sizes against vLLM's own: ``python -m benchmarks.sizing`` writes ``build/bench/sizing.json``.

Every model of ``mirage_core/sizing/data/models.yaml`` is built by vLLM's own class on the meta
device, as one rank of one, two and eight, and with an fp8 KV cache; its parameters are counted and
its layers asked for their KV cache specs.  A config is exact if all of these agree, to the last
element and byte, for all ranks that can hold it.  ``count_exact`` does so in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mirage_core.errors import ConfigError
from mirage_core.sizing.architectures import size_model
from mirage_core.sizing.catalogue import known_models
from mirage_core.sizing.model import ModelSizing
from mirage_core.sizing.weights import Dtype

OUTPUT = Path("build/bench/sizing.json")


class Variant(NamedTuple):
    ranks: int
    kv_dtype: Dtype | None


VARIANTS = (Variant(1, None), Variant(2, None), Variant(8, None), Variant(1, Dtype.FP8))


class LayerCache(NamedTuple):
    """One cache of one layer: its kind, the bytes of a block, and its window."""

    layer: int
    kind: str
    block_tokens: int
    block_bytes: int
    window_tokens: int


class Sizes(NamedTuple):
    """What is compared; caches are sorted."""

    params: int
    weight_bytes: int
    caches: list[LayerCache]


Reference = Callable[[Mapping[str, Any], Variant], Sizes]
"""Raises NotImplementedError where this build of vLLM has no kernel for the variant's shapes."""


class Compared(NamedTuple):
    """One config: how many variants agree, what differs, and what could not be compared."""

    exact: int
    faults: list[str]
    not_compared: list[str]


def our_sizes(model: ModelSizing, block_tokens: Mapping[str, int]) -> Sizes:
    """Ours, with the block size that vLLM chose for each kind of cache."""
    return Sizes(
        model.params,
        model.weight_bytes,
        sorted(
            LayerCache(
                index,
                cache.kind.value,
                block_tokens.get(cache.kind.value, 0),
                cache.block_bytes(block_tokens.get(cache.kind.value, 0)),
                cache.window_tokens or 0,
            )
            for index, layer in enumerate(model.layers)
            for cache in layer.caches
        ),
    )


def compare(
    name: str, config: Mapping[str, Any], reference: Reference, variants: Sequence[Variant]
) -> Compared:
    exact, faults, not_compared = 0, [], []
    for variant in variants:
        label = f"{variant.ranks} ranks" + (", KV in fp8" if variant.kv_dtype else "")
        try:
            model = size_model(config, name=name, ranks=variant.ranks, kv_dtype=variant.kv_dtype)
            theirs = reference(config, variant)
        except (ConfigError, NotImplementedError) as error:
            not_compared.append(f"{label}: {error}")
            continue
        ours = our_sizes(model, {cache.kind: cache.block_tokens for cache in theirs.caches})
        differing = [
            f"{label}: {field}: ours {our}, vLLM's {their}"
            for field, our, their in zip(Sizes._fields, ours, theirs, strict=True)
            if our != their
        ]
        faults += differing
        exact += not differing
    return Compared(exact, faults, not_compared)


def measure(variants: Sequence[Variant]) -> dict[str, Any]:
    """Compare all known models; imports vLLM, so only in a process of its own."""
    from benchmarks.sizing_vllm import vllm_sizes

    models = {
        name: compare(name, entry.config, vllm_sizes, variants)
        for name, entry in known_models().items()
    }
    return {
        "sizing_configs_exact": sum(
            found.exact > 0 and not found.faults for found in models.values()
        ),
        "sizing_configs_total": len(models),
        "sizing_variants_exact": sum(found.exact for found in models.values()),
        "models": {name: found._asdict() for name, found in models.items()},
    }


def count_exact(*, quick: bool = False, timeout_s: float = 600.0) -> dict[str, Any]:
    """``measure`` in a process of its own; ``quick``: one rank, KV cache as the weights."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "sizing.json"
        command = [sys.executable, "-m", "benchmarks.sizing", "--output", str(output)]
        subprocess.run(
            [*command, "--quick"] if quick else command,
            check=True,
            timeout=timeout_s,
            stdout=subprocess.DEVNULL,
        )
        result: dict[str, Any] = json.loads(output.read_text())
        return result


def main(output: Path = OUTPUT, quick: bool = False) -> None:
    """Compare every known model's sizes with vLLM's."""
    result = measure(VARIANTS[:1] if quick else VARIANTS)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=2) + "\n")
    for name, found in result["models"].items():
        for line in found["faults"]:
            print(f"{name}: {line}")
    print(f"{result['sizing_configs_exact']} of {result['sizing_configs_total']} configs exact")


if __name__ == "__main__":
    typer.run(main)
