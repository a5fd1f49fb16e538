"""The agent's settings: one frozen value, from a file and the command line, checked once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mirage_core.errors import ConfigError
from mirage_core.policy.settings import Policy
from mirage_core.policy.when import Reversion
from mirage_core.policy.which_model import DonorOrder
from node_agent.uplink_settings import UplinkSettings

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(value: object) -> object:
    """``"24GiB"`` in bytes; what is not a text is left to pydantic."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    unit = match[2].upper() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"a size is a number with B, KiB, MiB, GiB or TiB, got {value!r}")
    size = float(match[1]) * _UNITS[unit]
    if not size.is_integer() or not math.isfinite(size):
        raise ValueError(f"{value!r} is no whole number of bytes")
    return int(size)


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class AgentConfig(BaseModel):
    """Settings of one agent; unknown keys are errors.

    socket             where engines connect; its folder is made with mode 0700
    state_dir          keeps the device's id and which engines hold pages, across restarts
    device_bytes       size of the host device
    page_bytes         size of a page, a power of two
    report_interval_s  how often engines report
    metrics_port       Prometheus metrics on this port of the loopback address
    otlp_endpoint      where spans go, HOST:PORT of an OTLP collector; none: nowhere
    timeline           file that gets each engine's pages over time, as JSON lines
    event_log          file that gets every event and decision, as JSON lines
    uplink             how to reach the cluster controller; none: the agent decides alone
    The rest is the policy (``mirage_core.policy.settings``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    socket: Path
    state_dir: Path
    device_bytes: Size
    page_bytes: Size = 2 << 20
    report_interval_s: float = Field(default=0.05, gt=0, le=10)
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    otlp_endpoint: str | None = None
    timeline: Path | None = None
    event_log: Path | None = None
    json_logs: bool = False
    uplink: UplinkSettings | None = None

    order: DonorOrder = DonorOrder.MRU
    weights_move: bool = True
    cap_share: float = Field(default=1.0, ge=0, le=1)
    max_added_share: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    reversion: bool = True
    reversion_margin_share: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    reversion_hold_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    recall: bool = True
    recall_share: float = Field(default=0.25, ge=0, allow_inf_nan=False)

    @property
    def pages(self) -> int:
        return self.device_bytes // self.page_bytes

    def policy(self) -> Policy:
        return Policy(
            order=self.order,
            cap_share=self.cap_share,
            max_added_share=self.max_added_share,
            reversion=(
                Reversion(self.reversion_margin_share, self.reversion_hold_s)
                if self.reversion
                else None
            ),
            recall_share=self.recall_share if self.recall else None,
            weights_move=self.weights_move,
        )


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> AgentConfig:
    """Settings of the file at ``path`` (YAML or JSON), then ``overrides``, whose ``uplink`` joins
    the file's; ConfigError names the setting at fault."""
    values: dict[str, Any] = {}
    if path is not None:
        values.update(_read(path))
    uplink = {**(values.get("uplink") or {}), **overrides.get("uplink", {})}
    values.update(overrides)
    if uplink:
        values["uplink"] = uplink
    try:
        config = AgentConfig.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise ConfigError(f"agent settings: {faults}") from None
    if config.device_bytes % config.page_bytes:
        raise ConfigError(
            f"device_bytes: {config.device_bytes} is no whole number of pages of"
            f" {config.page_bytes} bytes"
        )
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read settings {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings {path} are neither YAML nor JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"settings {path} must be a mapping of names to values")
    return values
