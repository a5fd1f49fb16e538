"""Arms with the plug-in: one agent, two engines, and how much of the device may move.

passive   nothing moves: the static split of stock, with the plug-in's kernels
elastic   KV pools share what is not weights; weights never move (as kvcached does)
mirage    weights of idle models, and cycled units of busy ones, become KV cache too
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from benchmarks.models import ModelSpec
from benchmarks.sharing.arms import Setup, preemptions, static_engines
from benchmarks.sharing.conditions import Conditions, HostedModel
from benchmarks.sharing.servers import Engine, ServerError, ServerSpec, free_ports
from mirage_core.kv.geometry import PoolGeometry

_WORKER = "mirage_core.engines.vllm.worker.MirageWorker"
_SCHEDULER = "mirage_core.engines.vllm.scheduler.MirageScheduler"
LEAST_POOL_SHARE = 0.5
"""Of a pool that shares: part of its static size that it keeps whatever happens, so that a model
that wakes can begin at once; the rest is for whoever needs it.  But always enough for the longest
request: where nothing is taken from busy models (elastic), one that outgrew its own pool would stop
all behind it until the other model is idle."""
_COUNTERS = {
    "remaps": "mirage_remaps_total",
    "reversions": "mirage_reversions_total",
    "denials": "mirage_denials_total",
    "fetched_bytes": "mirage_fetched_bytes_total",
    "fetch_busy_s": "mirage_fetch_busy_seconds_total",
    "stall_s": "mirage_stall_seconds_total",
}


@dataclass(frozen=True, slots=True)
class PlugInArm:
    """One of the three; ``folder`` is for the agent's socket, state, timeline and logs."""

    name: str
    passive: bool
    weights_move: bool
    folder: Path
    metrics_port: int
    split: float
    link_bytes_per_s: float | None = None
    """limits fetches, to stand for a slower link"""

    @property
    def same_kernels(self) -> bool:
        return True

    def setup(self, conditions: Conditions) -> Setup:
        pools = _static_pool_tokens(conditions, self.split)
        longest = conditions.max_model_len
        engines = tuple(
            replace(
                spec,
                extra_arguments=(
                    *("--worker-cls", _WORKER),
                    *("--scheduler-cls", _SCHEDULER),
                    *(
                        "--additional-config",
                        json.dumps({"mirage": self._settings(pools[spec.name], longest)}),
                    ),
                ),
            )
            for spec in static_engines(conditions, self.split)
        )
        return Setup(engines, before=(self._agent(conditions),), timeline=self._timeline)

    async def enter(self, engines: Mapping[str, Engine]) -> None:
        """Nothing to prepare: each arm has an agent of its own."""

    async def counters(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        counted = await _read_counters(f"http://127.0.0.1:{self.metrics_port}/metrics")
        return {"preemptions": await preemptions(engines), **counted}

    def _settings(self, static_tokens: int, longest_tokens: int) -> dict[str, object]:
        """Of the engine whose static pool holds ``static_tokens``."""
        least_tokens = max(round(LEAST_POOL_SHARE * static_tokens), longest_tokens)
        settings: dict[str, object] = {
            "agent": str(self._socket),
            "passive": self.passive,
            "pool_tokens": static_tokens if self.passive else min(least_tokens, static_tokens),
        }
        if self.link_bytes_per_s is not None:
            settings["link_bytes_per_s"] = self.link_bytes_per_s
        return settings

    def _agent(self, conditions: Conditions) -> ServerSpec:
        command = [sys.executable, "-m", "node_agent"]
        command += ["--socket", str(self._socket), "--state-dir", str(self.folder / "state")]
        command += ["--device-bytes", str(conditions.device_bytes)]
        command += ["--page-bytes", str(conditions.page_bytes)]
        command += ["--metrics-port", str(self.metrics_port)]
        command += ["--timeline", str(self._timeline)]
        command += ["--event-log", str(self.folder / "events.jsonl")]
        command += ["--weights-move" if self.weights_move else "--no-weights-move"]
        return ServerSpec(
            f"agent of {self.name}", command, self.folder / "agent.log", ready=self._socket
        )

    @property
    def _socket(self) -> Path:
        return self.folder / "run" / "agent.sock"

    @property
    def _timeline(self) -> Path:
        return self.folder / "timeline.jsonl"


def plug_in_arms(conditions: Conditions, folder: Path) -> tuple[PlugInArm, ...]:
    """The three arms, in the table's order; the first is the reference for all outputs."""
    ports = free_ports(3)
    split = conditions.splits[0]
    names = (("passive", True, False), ("elastic", False, False), ("mirage", False, True))
    return tuple(
        PlugInArm(name, passive, weights_move, folder.absolute() / name, port, split)
        for (name, passive, weights_move), port in zip(names, ports, strict=True)
    )


def _static_pool_tokens(conditions: Conditions, split: float) -> dict[str, int]:
    """Tokens of each model's static pool: the device less all weights, by ``split``."""
    page_bytes = conditions.page_bytes
    weights = sum(_weight_pages(model, page_bytes) for model in conditions.models)
    left = conditions.device_bytes // page_bytes - weights
    tokens = {}
    for model, share in zip(conditions.models, (split, 1 - split), strict=True):
        layer_block_bytes = model.block_bytes(conditions.block_size) // model.spec.layers
        granule = PoolGeometry.compact(
            layers=model.spec.layers, block_bytes=layer_block_bytes, page_bytes=page_bytes, blocks=1
        )
        granules = int(left * share) // granule.granule_pages
        usable = granules * granule.granule_blocks - 1  # less vLLM's null block
        tokens[model.name] = usable * conditions.block_size
    return tokens


def _weight_pages(model: HostedModel, page_bytes: int) -> int:
    """Pages of a Llama-like model: each layer's linears, and all that never moves."""
    spec: ModelSpec = model.spec
    layer_pages = -(-(spec.linear_bytes // spec.layers) // page_bytes)
    static_pages = -(-(model.weight_bytes - spec.linear_bytes) // page_bytes)
    return layer_pages * spec.layers + static_pages


async def _read_counters(url: str) -> dict[str, float]:
    """The agent's counters, all engines together; one that never counted is 0."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            lines = (await answer.text()).splitlines()
    except aiohttp.ClientError as error:
        raise ServerError(f"{url}: the agent's metrics cannot be read: {error}") from error
    return {
        name: sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{metric}{{", f"{metric} "))
        )
        for name, metric in _COUNTERS.items()
    }
