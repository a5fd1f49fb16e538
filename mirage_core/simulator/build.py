"""From a sized model and a GPU to a simulated engine: roofline, units, KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_core.errors import ConfigError
from mirage_core.model import UnitGrain
from mirage_core.simulator.config import EngineSpec, LinkSpec, SchedulerLimits
from mirage_core.simulator.step_models import RooflineCosts, RooflineStepTime
from mirage_core.sizing.caches import CacheKind
from mirage_core.sizing.hardware import Hardware
from mirage_core.sizing.model import ModelSizing, UnitSizing


@dataclass(frozen=True, slots=True)
class Overheads:
    """Time of a step that no bandwidth explains: launches, sampling, scheduling.

    The defaults are assumed for CUDA graphs on a recent GPU, not measured by this project.
    """

    step_s: float = 1e-3
    request_s: float = 5e-6


def with_rates(gpu: Hardware, memory: float, link: float) -> Hardware:
    """``gpu`` with its memory (and arithmetic) at one place of the measured range, its link at
    another: 0.0 slow, 1.0 fast."""
    linked = gpu.at(link)
    return replace(
        gpu.at(memory),
        h2d_bytes_per_s=linked.h2d_bytes_per_s,
        d2h_bytes_per_s=linked.d2h_bytes_per_s,
        domain_h2d_bytes_per_s=linked.domain_h2d_bytes_per_s,
    )


def roofline(
    model: ModelSizing,
    hardware: Hardware,
    overheads: Overheads,
    compute_share: float = 1.0,
) -> RooflineStepTime:
    """Step times of ``model`` on ``compute_share`` of a GPU whose rates are fixed.

    The middle of a range of rates is taken (``Hardware.at`` fixes another).  Caches that do not
    grow with every token (windows, states) count as if they did: an upper bound.
    """
    weights = list(model.weights())
    experts = [weight for weight in weights if weight.experts > 1]
    return RooflineStepTime(
        RooflineCosts(
            weight_bytes=sum(w.read_bytes(1) for w in weights if w.experts == 1),
            kv_bytes_per_token=model.kv_bytes_per_token,
            flops_per_token=model.token_flops,
            flops_per_pair=sum(c.pair_flops for c in model.caches() if c.kind != CacheKind.CROSS),
            bytes_per_s=hardware.hbm_bytes_per_s.typical * compute_share,
            flops_per_s=hardware.flops_per_s.typical * compute_share,
            step_overhead_s=overheads.step_s,
            request_overhead_s=overheads.request_s,
            expert_bytes=sum(w.size_bytes for w in experts),
            expert_share=max((w.experts_per_token / w.experts for w in experts), default=0.0),
        )
    )


def engine_spec(
    model: ModelSizing,
    hardware: Hardware,
    memory_bytes: int,
    limits: SchedulerLimits,
    *,
    overheads: Overheads | None = None,
    grain: UnitGrain = UnitGrain.LAYER,
    compute_share: float = 1.0,
    priority: int = 0,
) -> EngineSpec:
    """An engine whose weights and KV pool take ``memory_bytes``.

    Raises ConfigError if not even one block is left beside the weights.
    """
    if model.state_bytes_per_request:
        raise ConfigError(
            f"{model.name} keeps a state of each request; the simulator knows KV caches by token "
            "only"
        )
    overheads = overheads or Overheads()
    block_bytes = model.kv_block_bytes(limits.block_tokens)
    left_bytes = memory_bytes - model.weight_bytes
    if left_bytes < block_bytes:
        raise ConfigError(
            f"{model.name}: {memory_bytes / 1e9:.1f} GB hold its weights "
            f"({model.weight_bytes / 1e9:.1f} GB) but no KV block; give it more memory"
        )
    units = model.units(grain)
    return EngineSpec(
        model=model.name,
        step_time=roofline(model, hardware, overheads, compute_share),
        pool_blocks=left_bytes // block_bytes,
        limits=limits,
        block_bytes=block_bytes,
        kv_layers=sum(1 for layer in model.layers if layer.caches),
        unit_bytes=tuple(unit.size_bytes for unit in units),
        static_bytes=model.static_bytes,
        unit_compute_share=_compute_shares(model, units, hardware, overheads),
        priority=priority,
    )


def _compute_shares(
    model: ModelSizing, units: Sequence[UnitSizing], hardware: Hardware, overheads: Overheads
) -> tuple[float, ...]:
    """Each unit's part of a decode step by the bytes it reads; head and overheads are the end."""
    rate = hardware.hbm_bytes_per_s.typical
    step_s = sum(weight.read_bytes(1) for weight in model.weights()) / rate + overheads.step_s
    return tuple(
        sum(weight.read_bytes(1) for weight in unit.weights) / rate / step_s for unit in units
    )


def link_spec(name: str, hardware: Hardware) -> LinkSpec:
    """The host-link domain of one GPU of this kind (two GB200 GPUs share one)."""
    return LinkSpec(
        name=name,
        h2d_bytes_per_s=hardware.domain_h2d_bytes_per_s.typical,
        d2h_bytes_per_s=hardware.d2h_bytes_per_s.typical * hardware.domain_gpus,
        device_h2d_bytes_per_s=hardware.h2d_bytes_per_s.typical,
        device_d2h_bytes_per_s=hardware.d2h_bytes_per_s.typical,
    )
