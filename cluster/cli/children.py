"""The processes of ``mirage up``: each with a log, a process group of its own, and an end.

They end with ``up`` whichever way it ends: asked and then killed by their group, so that what an
engine started ends too, or by the kernel's word if ``up`` itself is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster.cli.faults import USAGE, CommandError
from cluster.processes import end_with

_STOP_LIMIT_S = 20.0
_TAIL_LINES = 20
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ChildSpec:
    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """added to this process's own"""


class Child:
    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self._process = process

    @classmethod
    async def start(cls, spec: ChildSpec) -> Child:
        """Its output is added to the log, which is made for its owner alone."""
        descriptor = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **spec.environment},
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )
        return cls(spec, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its status, once it has ended."""
        return await self._process.wait()

    def require_running(self) -> None:
        if self._process.returncode is not None:
            raise self.error(f"ended with status {self._process.returncode}")

    def error(self, problem: str) -> CommandError:
        """With the end of its log."""
        with self.spec.log.open("rb") as log:
            log.seek(max(0, self.spec.log.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines)
        return CommandError(
            f"{self.spec.name} {problem}; the end of {self.spec.log}:\n{tail}", USAGE
        )

    async def stop(self) -> None:
        """Ask it to end, then kill what is left of its group.  Safe to call twice."""
        self._signal_group(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_LIMIT_S)
        finally:
            self._signal_group(signal.SIGKILL)
        await self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
