"""What an agent must know after a restart: which engines hold pages of which device.

Page numbers are not kept: engines know better (``Rejoin``).  The file is replaced whole, and
before an engine gets its first page, so it never misses one.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mirage_core.errors import ConfigError
from mirage_core.model import DeviceGeometry, DeviceId
from node_agent.processes import ProcessId


class RecordedEngine(BaseModel):
    """An engine and its worker, whose end frees the engine's pages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    worker_pid: int
    worker_start_ticks: int

    @property
    def worker(self) -> ProcessId:
        return ProcessId(self.worker_pid, self.worker_start_ticks)


class RecordedDevice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    device_id: str
    page_bytes: int
    pages: int

    @classmethod
    def of(cls, geometry: DeviceGeometry) -> RecordedDevice:
        return cls(device_id=geometry.device, page_bytes=geometry.page_bytes, pages=geometry.pages)

    @property
    def geometry(self) -> DeviceGeometry:
        return DeviceGeometry(DeviceId(self.device_id), self.page_bytes, self.pages)


class AgentState(BaseModel):
    """``boot_id``: start times count from a boot, so another boot's engines are gone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    boot_id: str
    device: RecordedDevice
    engines: dict[str, RecordedEngine]


def load_state(path: Path) -> AgentState | None:
    """What the last agent wrote; None if there was none.  ConfigError if it cannot be read."""
    try:
        return AgentState.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"cannot read the agent's state {path}: {error}; remove it only if no engine of this"
            " device is alive"
        ) from None


def save_state(path: Path, state: AgentState) -> None:
    aside = path.with_suffix(".new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(state.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
