"""Arms: the ways of sharing a device that a run sets side by side.

An arm says which processes to run and which counters to read; the harness does the rest the same
way for all.  Two arms that return equal setups share the running processes, and ``enter`` turns
them from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from benchmarks.sharing.conditions import Conditions
from benchmarks.sharing.servers import Engine, EngineSpec, ServerSpec, read_metric

PREEMPTIONS = "vllm:num_preemptions_total"


@dataclass(frozen=True, slots=True)
class Setup:
    """Processes of an arm."""

    engines: tuple[EngineSpec, ...]
    before: tuple[ServerSpec, ...] = ()
    """started first, each ready before the next: the agent"""
    timeline: Path | None = None
    """that the agent writes, in the format of ``timeline``"""


class Arm(Protocol):
    """One way of sharing the device."""

    @property
    def name(self) -> str: ...

    @property
    def same_kernels(self) -> bool:
        """Whether its answers must be those of every other arm for which this holds."""
        ...

    def setup(self, conditions: Conditions) -> Setup:
        """Starts nothing; the same conditions give an equal setup."""
        ...

    async def enter(self, engines: Mapping[str, Engine]) -> None:
        """Prepare processes that may have served another arm with the same setup."""
        ...

    async def counters(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        """Figures that only grow, read before and after each run; ``preemptions`` at least."""
        ...


@dataclass(frozen=True, slots=True)
class StockArm:
    """Unmodified vLLM, each engine with a static pool."""

    split: float
    """part of the KV memory that the first model gets"""

    @property
    def name(self) -> str:
        return "stock"

    @property
    def same_kernels(self) -> bool:
        return False

    def setup(self, conditions: Conditions) -> Setup:
        # An installed plug-in would be loaded into every engine; stock takes none.
        bare = {"VLLM_PLUGINS": ""}
        engines = static_engines(conditions, self.split)
        return Setup(tuple(replace(engine, extra_environment=bare) for engine in engines))

    async def enter(self, engines: Mapping[str, Engine]) -> None:
        """Nothing to prepare: no other arm runs stock engines."""

    async def counters(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        return {"preemptions": await preemptions(engines)}


def static_engines(conditions: Conditions, split: float) -> tuple[EngineSpec, ...]:
    """Engines with static pools, for stock or for an arm to add its arguments to."""
    pools = conditions.pools(split)
    return tuple(
        EngineSpec(
            name=model.name,
            model=model.folder,
            cores=model.cores,
            kv_bytes=pools[model.name],
            dtype=model.spec.dtype,
            block_size=conditions.block_size,
            max_num_seqs=conditions.max_num_seqs,
            max_model_len=conditions.max_model_len,
            eager=conditions.eager,
        )
        for model in conditions.models
    )


async def preemptions(engines: Mapping[str, Engine]) -> float:
    """Preemptions since the engines started, all engines together."""
    return sum([await read_metric(engine.url, PREEMPTIONS) for engine in engines.values()])
