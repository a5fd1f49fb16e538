"""KV swapping: the KV cache spills to host memory and is brought back layer by layer in each step.

Models Pie (the paper's §7.4): static weights; what of the KV cache does not fit on the device is
swapped in as its layer needs it while other blocks are swapped out, so every token of the host's
part crosses the link in *both* directions each step, and the slower direction decides.  Expansion
is adaptive: it stops where transfers would no longer hide.

Leaves out: the time to prefetch a first layer, CUDA copies' launch cost, and HBM bandwidth that the
copies take; all favour the arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mirage_core.simulator.arms.host_kv import HostKvPort
from mirage_core.simulator.config import DeviceSpec, EngineSpec
from mirage_core.simulator.link import Direction
from mirage_core.simulator.memory_port import Site

HOST_BYTES = 100 * 10**9


@dataclass(frozen=True, slots=True)
class KvSwapArm:
    """``host_bytes``: host memory that each engine may fill with KV cache."""

    name: str = "kv_swap"
    host_bytes: int = HOST_BYTES
    adaptive: bool = True

    def attach(self, device: DeviceSpec, site: Site) -> Sequence[HostKvPort]:
        return [
            HostKvPort(
                spec,
                self.host_bytes // spec.block_bytes,
                partial(_token_s, spec, device.name, site),
                adaptive=self.adaptive,
                streams=partial(_stream, device.name, f"kv/{index}", site),
            )
            for index, spec in enumerate(device.engines)
        ]


def _token_s(spec: EngineSpec, device: str, site: Site) -> float:
    slower = min(site.link.rate_bytes_per_s(device, direction) for direction in Direction)
    return spec.block_bytes / spec.limits.block_tokens / slower


def _stream(device: str, stream: str, site: Site, streams: bool) -> None:
    change = site.link.open_stream if streams else site.link.close_stream
    for direction in Direction:
        change(device, stream, direction)
