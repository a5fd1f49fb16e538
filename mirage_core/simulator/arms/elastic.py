"""Elastic shared pool: weights stay, all other memory is KV cache for whoever needs it first.

Models kvcached (FACTS §6): pages are mapped as blocks are needed and unmapped as soon as a granule
is empty, every engine sees what the whole device has left, and nobody arbitrates: first come, first
served, no reclaim.  Waiting requests count as soon as they could be admitted.  Mapping and
unmapping hold up the step that needs them.

Leaves out: kvcached's page list kept ready in the background (its steps are then a little shorter
than here), its races and its page layout, which cost throughput on small models.  Which block lies
in which granule is left out as in ``mirage_engine``, to the arm's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_core.control.foresight import granules_holding
from mirage_core.errors import ConfigError
from mirage_core.policy.when import needed_blocks
from mirage_core.simulator.arms.granules import granule_of
from mirage_core.simulator.config import DeviceSpec, EngineSpec
from mirage_core.simulator.memory_port import EngineView, Site, StepMemory
from mirage_core.simulator.mirage_worker import CUDA_COSTS, MemoryCosts
from mirage_core.simulator.quiet import QUIET_STEPS, claims_of, steps_until_more
from mirage_core.simulator.units import to_ps

HORIZON_STEPS = 1
"""Blocks are mapped as they are needed."""


@dataclass(frozen=True, slots=True)
class ElasticArm:
    name: str = "elastic"
    costs: MemoryCosts = CUDA_COSTS

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[ElasticPort]:
        page_bytes = device.page_bytes
        weights = sum(
            -(-size // page_bytes)
            for spec in device.engines
            for size in (*spec.unit_bytes, spec.static_bytes)
        )
        kv_pages = device.memory_bytes // page_bytes - weights
        free = FreePages(kv_pages, site)
        ports = [
            ElasticPort(index, spec, *granule_of(spec, page_bytes), free, self.costs)
            for index, spec in enumerate(device.engines)
        ]
        least = sum(port.granule_pages for port in ports)
        if kv_pages < least:
            raise ConfigError(
                f"device {device.name}: weights leave {max(0, kv_pages)} pages for KV cache, its"
                f" models need {least} at least: place fewer models on it"
            )
        for port in ports:
            port.start(kv_pages - least)
        free.ports = ports
        return ports


class FreePages:
    """Pages of a device that no engine has; ports that are short hear when there are more."""

    def __init__(self, pages: int, site: Site) -> None:
        self.pages = pages
        self.ports: Sequence[ElasticPort] = ()
        self._site = site

    def give_back(self, pages: int) -> None:
        self.pages += pages
        for port in self.ports:
            if port.short:
                self._site.wake(port.index)


class ElasticPort:
    """The pool of one engine; it keeps one granule, vLLM's null block in it."""

    def __init__(
        self,
        index: int,
        spec: EngineSpec,
        granule_pages: int,
        granule_blocks: int,
        free: FreePages,
        costs: MemoryCosts,
    ) -> None:
        self.index = index
        self.granule_pages = granule_pages
        self.granules = 0
        self.short = False
        self._limits = spec.limits
        self._granule_blocks = granule_blocks
        self.free = free
        self._map_s = costs.map_s(granule_pages, spec.kv_layers) + granule_pages * costs.zero_page_s
        self._unmap_s = costs.unmap_s(granule_pages, spec.kv_layers)
        self._limit_granules = 0

    def start(self, room_pages: int) -> None:
        """Take the first granule; ``room_pages`` are left when every engine has its own."""
        self._limit_granules = 1 + room_pages // self.granule_pages
        self._change(1)

    @property
    def limit_blocks(self) -> int:
        return self._limit_granules * self._granule_blocks - 1

    def on_step(self, view: EngineView, now_ps: int) -> StepMemory:
        tokens = self._limits.block_tokens
        claims = claims_of(view, (self.limit_blocks + 1) * tokens, waiting=view.active)
        horizon = HORIZON_STEPS if view.active else 0
        blocks = needed_blocks(
            claims,
            block_tokens=tokens,
            max_running=self._limits.max_num_seqs,
            horizon_steps=horizon,
        )
        wanted = min(granules_holding(blocks, self._granule_blocks), self._limit_granules)
        more = min(wanted - self.granules, self.free.pages // self.granule_pages)
        delay_s = more * self._map_s if more > 0 else -more * self._unmap_s
        self._change(more)
        self.short = view.active and wanted > self.granules
        capacity = self.granules * self._granule_blocks - 1
        quiet = QUIET_STEPS
        if not self.short and wanted < self._limit_granules:
            quiet = steps_until_more(
                claims,
                block_tokens=tokens,
                horizon_steps=horizon,
                spare_blocks=capacity - blocks,
            )
        return StepMemory(
            capacity, delay_ps=to_ps(delay_s) if view.active else 0, quiet_steps=quiet
        )

    def _change(self, granules: int) -> None:
        self.granules += granules
        if granules > 0:
            self.free.pages -= granules * self.granule_pages
        elif granules < 0:
            self.free.give_back(-granules * self.granule_pages)
