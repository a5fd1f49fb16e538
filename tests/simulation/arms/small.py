"""A small device with three engines, so that a run of any arm takes a fraction of a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mirage_core.simulator.arms import (
    CpuAttentionArm,
    ElasticArm,
    KvSwapArm,
    MirageArm,
    StaticOffloadArm,
)
from mirage_core.simulator.config import (
    DeviceSpec,
    EngineSpec,
    LinkSpec,
    RunConfig,
    SchedulerLimits,
    Sharing,
)
from mirage_core.simulator.memory_port import Arm, MemoryPort, Site, StaticArm
from mirage_core.simulator.request import Requests, requests_from
from mirage_core.simulator.step_models import FittedStepTime

MB = 1 << 20
LAYERS = 8
MODELS = ("a", "b", "c")
STEP = FittedStepTime(
    step_ps=8_000_000_000,
    decode_ps=100_000_000,
    context_ps=1_000_000,
    prefill_ps=2_000_000_000,
    prefill_token_ps=20_000_000,
    pair_ps=1000,
)
"""8 ms a step and more, as a model of 13 B parameters has on a GH200."""
ARMS: tuple[Arm, ...] = (
    StaticArm(),
    ElasticArm(),
    KvSwapArm(host_bytes=200 * MB),
    StaticOffloadArm(share=0.5),
    CpuAttentionArm(host_bytes=200 * MB, host_bytes_per_s=4e9),
    MirageArm(),
)


def engine(model: str, *, priority: int = 0, pool_blocks: int = 40) -> EngineSpec:
    """8 layers of 20 MB; a block of 16 tokens is 1 MB, so a granule has 16 blocks and 8 pages."""
    return EngineSpec(
        model=model,
        step_time=STEP,
        pool_blocks=pool_blocks,
        limits=SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2048),
        block_bytes=LAYERS * MB // 8,
        kv_layers=LAYERS,
        unit_bytes=(20 * MB,) * LAYERS,
        static_bytes=5 * MB,
        priority=priority,
    )


def small_run(
    arm: Arm,
    *,
    sharing: Sharing = Sharing.TEMPORAL,
    quantum_s: float | None = 1.0,
    jump: bool = True,
    link_bytes_per_s: float = 40e9,
    engines: Sequence[EngineSpec] | None = None,
    devices: int = 1,
    memory_bytes: int = 3 * 220 * MB,
) -> RunConfig:
    specs = tuple(engines or (engine(model) for model in MODELS))
    device = DeviceSpec(
        "gpu",
        specs,
        memory_bytes=memory_bytes,
        sharing=sharing,
        quantum_s=quantum_s,
        link="link",
    )
    half = link_bytes_per_s / 2
    return RunConfig(
        models=tuple(spec.model for spec in specs),
        devices=tuple(replace(device, name=f"gpu{index}") for index in range(devices)),
        links=(LinkSpec("link", link_bytes_per_s, half, link_bytes_per_s, half),),
        arm=arm,
        jump=jump,
    )


def load(requests: int, rate_per_s: float, seed: int, models: int = len(MODELS)) -> Requests:
    rng = np.random.default_rng(seed)
    return requests_from(
        np.cumsum(rng.exponential(1.0 / rate_per_s, requests)),
        rng.integers(1, 400, requests),
        rng.integers(1, 200, requests),
        model=rng.integers(0, models, requests),
    )


@dataclass(frozen=True)
class Spied:
    """An arm whose ports a test can look at after the run, device after device."""

    arm: Arm
    ports: list[MemoryPort]

    @property
    def name(self) -> str:
        return self.arm.name

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[MemoryPort]:
        attached = self.arm.attach(device, site)
        self.ports.extend(attached)
        return attached


def spied(arm: Arm) -> Spied:
    return Spied(arm, [])
