"""MIRAGE: KV pools share what is free, idle models lend weights, busy ones their spare layers.

Models the product itself: its Remapper for each engine, its Arbiter for the device and its policy
decide (``mirage_engine``, ``mirage_agent``); worker, link, clock and device are simulated
(``mirage_worker``, ``mirage_stalls``).  Pages cost time to map and unmap, messages take a while,
units that return are fetched, and cycled ones stall steps as the cost model's recurrence says.

Pages move in *bundles* of so many as every granule has a whole number of, where that wastes less
than ``BUNDLE_WASTE`` of the weights' pages: the books are then some ten times shorter.

Leaves out: which block lies in which granule (``mirage_engine``), starts beside engines that
already lend, lost links, and the cost of hashing and bookkeeping in a step.

With ``Policy(weights_move=False)`` it is the product's own elastic pool: pools share, weights stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_core.control.foresight import HORIZON_STEPS
from mirage_core.errors import ConfigError
from mirage_core.model import EngineId
from mirage_core.policy.settings import Policy
from mirage_core.simulator.arms.granules import granule_of
from mirage_core.simulator.config import DeviceSpec, EngineSpec
from mirage_core.simulator.memory_port import Site
from mirage_core.simulator.mirage_agent import SimulatedAgent
from mirage_core.simulator.mirage_engine import Geometry, SimulatedEngineMemory
from mirage_core.simulator.mirage_stalls import StallModel, Unit, units_of
from mirage_core.simulator.mirage_worker import CUDA_COSTS, MemoryCosts, SimulatedWorker

BUNDLE_WASTE = 0.01


@dataclass(frozen=True, slots=True)
class MirageArm:
    """MIRAGE under one policy; every ablation is one of these settings.

    policy             order, cap, reversion, slots ... (``policy.settings``)
    parts_per_unit     cuts each unit of the models into so many: 1 whole layers, 4 quarters
    horizon_steps      how far a shortage is foreseen; 0: not at all
    least_pool_share   part of a pool's start that it keeps whatever happens; the rest is free
                       for whoever asks
    report_interval_s  how often a busy engine reports (an agent's setting; 0.05 by default there)
    latency_s          of a message between engine and agent
    """

    name: str = "mirage"
    policy: Policy = field(default_factory=Policy)
    parts_per_unit: int = 1
    horizon_steps: int = HORIZON_STEPS
    least_pool_share: float = 0.5
    costs: MemoryCosts = CUDA_COSTS
    report_interval_s: float = 0.25
    latency_s: float = 100e-6
    tick_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.least_pool_share <= 1.0:
            raise ConfigError(f"least_pool_share is 0 to 1, got {self.least_pool_share}")
        if self.horizon_steps < 0 or self.latency_s < 0:
            raise ConfigError("horizon_steps and latency_s must not be negative")
        if not (self.report_interval_s > 0 and self.tick_s > 0):
            raise ConfigError("report_interval_s and tick_s must be above 0")

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[SimulatedEngineMemory]:
        if device.memory_bytes < device.page_bytes:
            raise ConfigError(f"device {device.name}: memory_bytes must hold a page or more")
        units = [
            units_of(spec.unit_bytes, spec.unit_compute_share, self.parts_per_unit)
            for spec in device.engines
        ]
        bundle = bundle_of(
            [granule_of(spec, device.page_bytes)[0] for spec in device.engines],
            [-(-unit.size_bytes // device.page_bytes) for parts in units for unit in parts],
        )
        pages = device.memory_bytes // device.page_bytes // bundle
        geometries = [
            self._geometry(spec, parts, pages, device.page_bytes, bundle)
            for spec, parts in zip(device.engines, units, strict=True)
        ]
        need = sum(geometry.start_pages for geometry in geometries)
        if need > pages:
            raise ConfigError(
                f"device {device.name}: weights and least pools need"
                f" {need * bundle * device.page_bytes} bytes, it has {device.memory_bytes}: place"
                " fewer models on it, or give them smaller pools"
            )
        agent = SimulatedAgent(
            pages, self.policy, site, latency_s=self.latency_s, tick_s=self.tick_s
        )
        costs = self.costs.of_pages(bundle)
        return [
            self._start_engine(device, index, geometry, parts, costs, site, agent)
            for index, (geometry, parts) in enumerate(zip(geometries, units, strict=True))
        ]

    def _geometry(
        self, spec: EngineSpec, units: Sequence[Unit], pages: int, page_bytes: int, bundle: int
    ) -> Geometry:
        """In bundles; ``pages``, the device's, are bundles too."""
        granule_pages, granule_blocks = granule_of(spec, page_bytes)
        bundle_bytes = page_bytes * bundle
        least_blocks = int(spec.pool_blocks * self.least_pool_share)
        return Geometry(
            unit_pages=tuple(-(-unit.size_bytes // bundle_bytes) for unit in units),
            static_pages=-(-spec.static_bytes // bundle_bytes),
            granule_pages=granule_pages // bundle,
            granule_blocks=granule_blocks,
            first_granules=max(1, least_blocks // granule_blocks),
            max_granules=pages // (granule_pages // bundle),
        )

    def _start_engine(
        self,
        device: DeviceSpec,
        index: int,
        geometry: Geometry,
        units: Sequence[Unit],
        costs: MemoryCosts,
        site: Site,
        agent: SimulatedAgent,
    ) -> SimulatedEngineMemory:
        spec = device.engines[index]
        name = EngineId(f"{device.name}/{index}")
        worker = SimulatedWorker(
            agent.admit(name, spec.model, geometry.start_pages),
            unit_pages=geometry.unit_pages,
            static_pages=geometry.static_pages,
            granule_pages=geometry.granule_pages,
            granule_runs=spec.kv_layers,
            first_granules=geometry.first_granules,
            costs=costs,
        )
        memory = SimulatedEngineMemory(
            name,
            (device.name, index),
            spec,
            geometry,
            worker,
            StallModel(units),
            site=site,
            agent=agent,
            policy=self.policy,
            horizon_steps=self.horizon_steps,
            report_interval_s=self.report_interval_s,
        )
        agent.join(memory, spec.model)
        return memory


def bundle_of(granule_pages: Sequence[int], unit_pages: Sequence[int]) -> int:
    """The most pages that can move as one: whole numbers make each granule, and units rounded up
    to it waste ``BUNDLE_WASTE`` of their pages at most."""
    common = math.gcd(*granule_pages)
    total = sum(unit_pages)
    for bundle in range(common, 1, -1):
        if common % bundle == 0:
            rounded = sum(-(-pages // bundle) * bundle for pages in unit_pages)
            if rounded - total <= BUNDLE_WASTE * total:
                return bundle
    return 1
