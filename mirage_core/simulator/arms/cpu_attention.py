"""Attention on the CPU: part of the KV cache stays in host memory and the CPU attends over it.

Models NEO: requests beyond the device's pool keep their KV cache in host memory; the CPU computes
their attention, bound by the host's memory bandwidth, while the device computes the rest of the
step.  Its scheduler offloads only as much as hides behind the device's work.

Leaves out: the second pass over the weights that NEO's two half batches need, queries and results
on the link, moving a finished prompt's KV cache to the host, and one CPU's limit of compute; all
favour the arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mirage_core.errors import ConfigError
from mirage_core.simulator.arms.host_kv import HostKvPort
from mirage_core.simulator.config import DeviceSpec, EngineSpec
from mirage_core.simulator.memory_port import Site

HOST_BYTES = 100 * 10**9
GRACE_BYTES_PER_S = 400e9
"""STREAM of a Grace CPU with 120 GB of LPDDR5X: at least (NVIDIA's Grace benchmarking guide)."""


@dataclass(frozen=True, slots=True)
class CpuAttentionArm:
    """``host_bytes_per_s``: of the host's memory, for all engines of a device together.

    Under spatial sharing they would share it; here each has it all (to the arm's advantage).
    """

    name: str = "cpu_attention"
    host_bytes: int = HOST_BYTES
    host_bytes_per_s: float = GRACE_BYTES_PER_S
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not self.host_bytes_per_s > 0:
            raise ConfigError(f"host_bytes_per_s must be above 0, got {self.host_bytes_per_s}")

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[HostKvPort]:
        return [
            HostKvPort(
                spec,
                self.host_bytes // spec.block_bytes,
                partial(self._token_s, spec),
                adaptive=self.adaptive,
            )
            for spec in device.engines
        ]

    def _token_s(self, spec: EngineSpec) -> float:
        return spec.block_bytes / spec.limits.block_tokens / self.host_bytes_per_s
