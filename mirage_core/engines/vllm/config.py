"""The plug-in's settings: the ``mirage`` key of vLLM's ``--additional-config``.

vLLM hashes ``additional_config`` into its compile-cache key, so an engine with the plug-in never
picks up a graph that stock vLLM compiled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mirage_core.errors import ConfigError
from mirage_core.model import UnitGrain

KEY = "mirage"


class PrivateDevice(BaseModel):
    """A host device of the engine's own, without an agent: one model, remapping its own layers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int = Field(gt=0)
    page_bytes: int = Field(default=2 << 20, gt=0)


class EngineConfig(BaseModel):
    """What an operator sets for one engine; exactly one of ``agent`` and ``device`` is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: Path | None = None
    """Unix socket of the device's agent."""
    device: PrivateDevice | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Higher is more important: a donor before models above it."""
    pool_tokens: int = Field(gt=0)
    """KV tokens mapped at start; the pool never shrinks below them."""
    pool_max_tokens: int | None = Field(default=None, gt=0)
    """KV tokens that the pool's addresses can hold; default: the whole device."""
    grain: UnitGrain | None = None
    """What moves as one; default: chosen at start from measured times (see grain.py)."""
    passive: bool = False
    """Nothing moves: the reference that outputs are compared with (DESIGN §8.5)."""
    pinned: bool = False
    """Never a donor."""
    verify: bool = False
    """Debugging: poison pages at every change of owner, check sums after every fetch."""
    link_bytes_per_s: float | None = Field(default=None, gt=0)
    """Limits fetches, to stand for a slower link than this machine's memory."""
    fetch_cpus: tuple[int, ...] | None = None
    """Cores of the fetching thread; default: any core that the engine may use."""

    @model_validator(mode="after")
    def _one_device(self) -> EngineConfig:
        if (self.agent is None) == (self.device is None):
            raise ValueError("give exactly one of 'agent' (a socket) and 'device' (a private one)")
        return self


def engine_config(additional_config: Any) -> EngineConfig:
    """Parse vLLM's ``additional_config``; ConfigError names the key that is wrong."""
    if not isinstance(additional_config, dict) or KEY not in additional_config:
        raise ConfigError(
            "MIRAGE's worker and scheduler classes need --additional-config "
            '\'{"mirage": {"agent": "/path/to/agent.sock", "pool_tokens": 4096}}\''
        )
    try:
        return EngineConfig.model_validate(additional_config[KEY])
    except ValidationError as error:
        lines = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'mirage'}: {e['msg']}" for e in error.errors()
        )
        raise ConfigError(f"--additional-config, key 'mirage': {lines}") from None
