"""What a run is: engines on devices on host links, and how requests reach them.

Frozen values, checked where they are made; reading them from files is the command's business.
A replica that is sharded over several GPUs (tensor parallel) is one device here, with the step
times and the memory of the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from mirage_core.errors import ConfigError
from mirage_core.simulator.memory_port import Arm, StaticArm
from mirage_core.simulator.step_time import StepTime

if TYPE_CHECKING:
    from mirage_core.control.reconciler import ReconcilerSettings


class Sharing(Enum):
    """How engines share a device's time.  A MIG slice is a device of its own (``LinkDomain``s
    are shared across slices as across GPUs)."""

    TEMPORAL = "temporal"
    """one engine runs at a time"""
    SPATIAL = "spatial"
    """all run at once and share SMs and bandwidth (MPS)"""


class Routing(Enum):
    """Which replica of its model a request goes to; ties go to the first."""

    ROUND_ROBIN = "round_robin"
    LEAST_REQUESTS = "least_requests"
    """fewest running and waiting requests"""
    PREFIX = "prefix"
    """the replica that served its prefix group before, else the one with fewest requests"""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """vLLM's settings of the same names; defaults are vLLM 0.29.0's for a large GPU.

    ``block_tokens`` is its block_size; ``priority``: policy "priority" instead of "fcfs".
    """

    block_tokens: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 131_072
    prefix_caching: bool = False
    priority: bool = False

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be at least "
                f"max_num_seqs ({self.max_num_seqs}), as vLLM demands"
            )


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One model on one device.

    model            the name that requests are for
    step_time        alone on the device, all weights resident
    pool_blocks      usable KV blocks at the start, without vLLM's null block
    block_bytes      KV bytes of one block, all layers
    kv_layers        layers of KV cache: a granule is whole pages in each
    unit_bytes       weights that may move, a unit each, in order of execution
    static_bytes     weights that never move
    unit_compute_share  each unit's share of a step's time; the rest is the step's end
    priority         the model's: higher is more important
    """

    model: str
    step_time: StepTime
    pool_blocks: int
    limits: SchedulerLimits = SchedulerLimits()
    block_bytes: int = 0
    kv_layers: int = 1
    unit_bytes: tuple[int, ...] = ()
    static_bytes: int = 0
    unit_compute_share: tuple[float, ...] = ()
    priority: int = 0

    def __post_init__(self) -> None:
        if self.pool_blocks < 1:
            raise ConfigError(f"{self.model}: a KV pool of {self.pool_blocks} blocks")
        if self.unit_compute_share and len(self.unit_compute_share) != len(self.unit_bytes):
            raise ConfigError(f"{self.model}: one compute share for each unit")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A host-link domain: what its devices get together, and each at most (bytes a second)."""

    name: str
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    device_h2d_bytes_per_s: float
    device_d2h_bytes_per_s: float

    def __post_init__(self) -> None:
        for name in self.__slots__[1:]:
            if not getattr(self, name) > 0:
                raise ConfigError(f"link {self.name}: {name} must be above 0")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device, the engines on it and how they share it.

    quantum_s        temporal: a turn ends after so long if others wait; None: it runs to idle
    switch_s         temporal: time between two turns
    spatial_overlap  spatial: part of a step that overlaps with other engines' steps for nothing,
                     0 (they take turns, finely) to 1 (each is as fast as alone)
    """

    name: str
    engines: tuple[EngineSpec, ...]
    memory_bytes: int = 0
    page_bytes: int = 2 * 1024 * 1024
    sharing: Sharing = Sharing.TEMPORAL
    quantum_s: float | None = None
    switch_s: float = 0.0
    spatial_overlap: float = 0.0
    link: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        if not self.engines:
            raise ConfigError(f"device {self.name} has no engine")
        if self.quantum_s is not None and not self.quantum_s > 0:
            raise ConfigError(f"device {self.name}: quantum_s must be above 0")
        if not 0.0 <= self.spatial_overlap <= 1.0 or not 0.0 <= self.switch_s < float("inf"):
            raise ConfigError(
                f"device {self.name}: spatial_overlap is 0 to 1, switch_s not below 0"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A device is lost at ``at_s`` with what it computed, and back ``for_s`` later, empty.

    Left out: its memory manager's books; what was lent before is lent when it comes back.
    """

    device: str
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """Ray Serve's autoscaling of one model: replicas by the requests under way at each."""

    model: str
    least: int
    most: int
    target_requests: float
    up_after_s: float = 30.0
    down_after_s: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or not self.target_requests > 0:
            raise ConfigError(
                f"scaling of {self.model}: 1 <= least <= most and target_requests > 0 wanted"
            )


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """A cluster controller in the loop (``controller``); without one all engines serve at once.

    latency_s          of a message between controller and agent
    store_s            of one write of the metadata store
    report_interval_s  between two reports of one agent
    start_s            from a model's placement on a device to an engine that serves
    scaling            models whose replicas follow their load; others are where they are
    settings           the controller's own; None: its defaults
    """

    latency_s: float = 500e-6
    store_s: float = 2e-3
    report_interval_s: float = 5.0
    start_s: float = 10.0
    scaling: tuple[Scaling, ...] = ()
    settings: ReconcilerSettings | None = None

    def __post_init__(self) -> None:
        if min(self.latency_s, self.store_s, self.start_s) < 0 or not self.report_interval_s > 0:
            raise ConfigError("a controller's times must not be negative, its interval above 0")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """All of a run but its requests.

    models        names, in the order that ``Requests.model`` counts
    jump          advance many steps at once where nothing can happen between; False: every one
    record_steps  keep the log of steps (token gaps, time series); off for very large runs
    until_s       stop then; None: run until all requests are done
    network_s     from the router to the engine and back, each way
    controller    who places models and starts engines; None: all serve from the start
    """

    models: tuple[str, ...]
    devices: tuple[DeviceSpec, ...]
    links: tuple[LinkSpec, ...] = ()
    arm: Arm = field(default_factory=StaticArm)
    routing: Routing = Routing.LEAST_REQUESTS
    failures: tuple[Failure, ...] = ()
    seed: int = 0
    jump: bool = True
    record_steps: bool = True
    until_s: float | None = None
    network_s: float = 0.0
    controller: ControllerSpec | None = None

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if len(set(names)) != len(names):
            raise ConfigError("two devices have one name")
        served = {engine.model for device in self.devices for engine in device.engines}
        for model in self.models:
            if model not in served:
                raise ConfigError(f"no device has an engine of model {model!r}")
        links = {link.name for link in self.links}
        for device in self.devices:
            if device.link and device.link not in links:
                raise ConfigError(
                    f"device {device.name} is on link {device.link!r}, which is not given"
                )
        for rule in self.controller.scaling if self.controller is not None else ():
            if rule.model not in self.models:
                raise ConfigError(f"scaling of {rule.model!r}, which is no model of the run")
        for failure in self.failures:
            if failure.device not in names or failure.at_s < 0 or failure.for_s <= 0:
                raise ConfigError(f"no such device, or a time below 0: {failure}")
