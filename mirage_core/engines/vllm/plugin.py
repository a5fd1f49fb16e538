"""vLLM's ``general_plugins`` entry point: loaded in every process of every vLLM on the machine.

An engine without MIRAGE's classes must not notice: the only change made here gives a
``MirageScheduler`` its engine core, once the core exists and before it serves.
"""

from __future__ import annotations

import functools
from typing import Any


def register() -> None:
    """Let a scheduler of ours meet its engine core (and so its input queue and its worker)."""
    from vllm.v1.engine.core import EngineCoreProc

    original = EngineCoreProc.run_busy_loop
    if getattr(original, "_mirage", False):
        return

    @functools.wraps(original)
    def run_busy_loop(self: Any) -> Any:
        attach = getattr(self.scheduler, "attach", None)
        if attach is not None:
            attach(self)
        return original(self)

    run_busy_loop._mirage = True  # type: ignore[attr-defined]
    EngineCoreProc.run_busy_loop = run_busy_loop
