"""Static prefetch offload: a fixed part of the layers is always cycled through a few buffers.

Models vLLM's prefetch offloader (``model_executor/offloader``): evenly spaced layers live in host
memory and are fetched ahead, in turn, into ``buffers`` buffers; the memory that they free is KV
cache of the same model, from the start and for good.  Stalls are those of the cost model.

Leaves out: nothing else moves, whatever the load; that is the arm's point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_core.errors import ConfigError
from mirage_core.model import RESIDENT, RemapPlan, UnitId
from mirage_core.policy.which_units import assign_slots, choose_even_units
from mirage_core.simulator.batch_watch import BatchWatch
from mirage_core.simulator.config import DeviceSpec, EngineSpec
from mirage_core.simulator.link import Direction
from mirage_core.simulator.memory_port import EngineView, Site, StepMemory
from mirage_core.simulator.mirage_stalls import StallModel, units_of
from mirage_core.simulator.quiet import QUIET_STEPS


@dataclass(frozen=True, slots=True)
class StaticOffloadArm:
    """``share`` of each model's units is offloaded, through ``buffers`` buffers."""

    name: str = "static_offload"
    share: float = 0.3
    buffers: int = 2

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0 or self.buffers < 1:
            raise ConfigError("static offload: share is 0 to 1, buffers at least 1")

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[StaticOffloadPort]:
        return [
            StaticOffloadPort(device.name, spec, self.plan_for(len(spec.unit_bytes)), site)
            for spec in device.engines
        ]

    def plan_for(self, units: int) -> RemapPlan:
        cycled = round(self.share * units)
        if cycled < 2 * self.buffers:
            return RESIDENT
        chosen = choose_even_units([UnitId(unit) for unit in range(units)], cycled)
        return RemapPlan(assign_slots(chosen, self.buffers))


class StaticOffloadPort:
    def __init__(self, device: str, spec: EngineSpec, plan: RemapPlan, site: Site) -> None:
        self.plan = plan
        self._device = device
        self._stream = f"offload/{spec.model}"
        self._site = site
        self._stalls = StallModel(units_of(spec.unit_bytes, spec.unit_compute_share))
        self._batch = BatchWatch(spec.step_time)
        freed_bytes = plan.freed_pages(spec.unit_bytes)  # bytes here: one "page" is one byte
        self.limit_blocks = spec.pool_blocks + freed_bytes // spec.block_bytes
        self._memory = StepMemory(self.limit_blocks, quiet_steps=QUIET_STEPS)

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        if self._batch.observe(view) and self.plan.slots:
            link = self._site.link
            change = link.open_stream if view.active else link.close_stream
            change(self._device, self._stream, Direction.TO_DEVICE)
            rate = link.rate_bytes_per_s(self._device, Direction.TO_DEVICE)
            stretch = self._stalls.stretch(self.plan, self._batch.plain_s, rate)
            self._memory = self._memory._replace(stretch=stretch)
        return self._memory
