"""What is fixed before a run and stated in its result: models, device, cores, loads, lengths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.models import (
    VOCABULARY,
    ModelSpec,
    build,
    large_spec,
    native_dtype,
    small_spec,
    weight_bytes,
)
from benchmarks.sharing.workload import WorkloadSpec
from mirage_core.errors import ConfigError
from mirage_core.simulator.workloads.quantiles import (
    AZURE_CODE,
    SHAREGPT,
    GapSource,
    LengthSource,
)


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model and the cores on which its engine's worker runs."""

    name: str
    spec: ModelSpec
    folder: Path
    cores: tuple[int, ...]

    @property
    def weight_bytes(self) -> int:
        return weight_bytes(self.folder)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one KV block over all layers."""
        return self.spec.kv_bytes_per_token * block_size


@dataclass(frozen=True, slots=True)
class Conditions:
    """One run's conditions; nothing in it changes after the first engine starts."""

    models: tuple[HostedModel, HostedModel]
    """the model that is on first stands first"""
    kv_share: float
    """part of the device that is not weights"""
    page_bytes: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    eager: bool
    splits: tuple[float, ...]
    """static parts of the KV memory that the first model gets; stock takes its best"""
    loads: tuple[float, ...]
    """multiples of stock's own saturation, ascending; the last gives the top-level figures"""
    saturation_s: float
    """how long saturation is measured"""
    horizon_s: float
    period_s: float
    lengths: LengthSource
    lengths_name: str
    length_scale: float
    gaps: GapSource
    gaps_name: str
    seed: int

    @property
    def device_bytes(self) -> int:
        """Weights and KV memory together, in whole pages; the same for every arm."""
        weights = sum(model.weight_bytes for model in self.models)
        return round(weights / (1 - self.kv_share)) // self.page_bytes * self.page_bytes

    @property
    def kv_bytes(self) -> int:
        return self.device_bytes - sum(model.weight_bytes for model in self.models)

    @property
    def limit_s(self) -> float:
        """After this long a run of one load is cut off, and what is unfinished has failed."""
        return 6 * self.horizon_s

    def pools(self, split: float) -> dict[str, int]:
        """Static KV pools in bytes, whole blocks, by model.

        Raises ConfigError if the longest request would not fit in one of them.
        """
        first, second = self.models
        shares = ((first, split), (second, 1 - split))
        return {model.name: self._pool(model, share) for model, share in shares}

    def _pool(self, model: HostedModel, share: float) -> int:
        block_bytes = model.block_bytes(self.block_size)
        blocks = int(self.kv_bytes * share) // block_bytes
        usable_tokens = (blocks - 1) * self.block_size
        if usable_tokens < self.max_model_len:
            raise ConfigError(
                f"{share:.0%} of the KV memory gives {model.name} {blocks} blocks, one of them "
                f"vLLM's null block: a request of {self.max_model_len} tokens would not fit; "
                "raise kv_share, lower max_model_len or choose another split"
            )
        return blocks * block_bytes

    def workload(self) -> WorkloadSpec:
        return WorkloadSpec(
            horizon_s=self.horizon_s,
            period_s=self.period_s,
            gaps=self.gaps,
            lengths=self.lengths,
            length_scale=self.length_scale,
            longest_tokens=self.max_model_len,
            vocabulary=VOCABULARY,
            seed=self.seed,
        )

    def stated(self) -> dict[str, object]:
        """For the result's JSON."""
        return {
            "models": {
                model.name: {
                    "folder": model.folder.name,
                    "weight_bytes": model.weight_bytes,
                    "kv_bytes_per_token": model.spec.kv_bytes_per_token,
                    "worker_cores": list(model.cores),
                }
                for model in self.models
            },
            "dtype": self.models[0].spec.dtype,
            "device_bytes": self.device_bytes,
            "kv_share": self.kv_share,
            "page_bytes": self.page_bytes,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "eager": self.eager,
            "splits": list(self.splits),
            "loads": list(self.loads),
            "saturation_s": self.saturation_s,
            "horizon_s": self.horizon_s,
            "period_s": self.period_s,
            "lengths": self.lengths_name,
            "length_scale": self.length_scale,
            "arrivals": self.gaps_name,
            "limit_s": self.limit_s,
            "seed": self.seed,
            "cpu": _cpu_name(),
            "cpus": os.cpu_count(),
        }


def full(model_root: Path, seed: int) -> Conditions:
    """All loads, compiled as vLLM does by default, stock with the best of three splits."""
    return Conditions(
        models=_pair(model_root),
        kv_share=0.10,
        page_bytes=64 * 1024,
        block_size=32,
        max_num_seqs=32,
        max_model_len=256,
        eager=False,
        splits=(0.4, 0.3, 0.5),
        loads=(0.5, 1.0, 1.5, 2.0),
        saturation_s=20.0,
        horizon_s=32.0,
        period_s=8.0,
        lengths=SHAREGPT,
        lengths_name="ShareGPT quantiles",
        length_scale=0.2,
        gaps=AZURE_CODE,
        gaps_name="Azure 2023 code quantiles",
        seed=seed,
    )


def quick(model_root: Path, seed: int) -> Conditions:
    """The highest load alone; eager and one split, since starting engines takes most of the time,
    and shorter bursts.

    The split is the one at which both pools hold about as many requests.
    """
    return replace(
        full(model_root, seed),
        eager=True,
        splits=(0.4,),
        loads=(2.0,),
        saturation_s=12.0,
        horizon_s=24.0,
        period_s=6.0,
    )


def demo(model_root: Path, seed: int) -> Conditions:
    """``quick`` with one burst for each model."""
    return replace(quick(model_root, seed), saturation_s=6.0, horizon_s=9.0, period_s=4.5)


def _pair(model_root: Path) -> tuple[HostedModel, HostedModel]:
    """The pair, each on a core of its own if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    dtype = native_dtype()
    specs: Mapping[str, ModelSpec] = {"small": small_spec(dtype), "large": large_spec(dtype)}
    small, large = (
        HostedModel(name, spec, build(spec, model_root), (core,))
        for (name, spec), core in zip(specs.items(), (cores[0], cores[-1]), strict=True)
    )
    return small, large


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
