"""The controller's settings: one frozen value, from a file and the command line, checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cluster.election import Timing
from cluster.files import read_bytes
from cluster.security import TlsFiles, check_transport
from cluster.store.settings import StoreSettings
from mirage_core.control.reconciler import ReconcilerSettings
from mirage_core.errors import ConfigError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}")


class Limits(BaseModel):
    """What one caller may cost.

    message_bytes       of one message; longer ones are refused before they are read
    agents              sessions at once
    agent_messages_per_s  of one session, on average over ten seconds
    calls_per_s, calls_burst  of one operator
    watches             streams of operators at once
    call_s              of a call that names no deadline
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    message_bytes: int = Field(default=1 << 20, ge=1 << 12, le=64 << 20)
    agents: int = Field(default=20_000, ge=1)
    agent_messages_per_s: float = Field(default=200.0, gt=0)
    calls_per_s: float = Field(default=200.0, gt=0)
    calls_burst: int = Field(default=400, ge=1)
    watches: int = Field(default=256, ge=1)
    call_s: float = Field(default=30.0, gt=0)


class ControllerConfig(BaseModel):
    """Settings of one controller; unknown keys are errors.

    store             the metadata store (``cluster.store.settings``)
    admin_listen      where operators call, HOST:PORT; port 0: any free one
    agent_listen      where agents dial
    admin_address     as operators reach it, if not as ``admin_listen`` says (behind 0.0.0.0, NAT)
    agent_address     as agents reach it
    admin_tls, agent_tls  certificates; None: plain text, on loopback only
    tokens            file of bearer tokens (``cluster.security``); None: whoever the transport
                      lets in may operate
    allow_insecure    plain text, or unknown callers, on other addresses too
    metrics_port      Prometheus metrics on this port of the loopback address
    otlp_endpoint     where spans go, HOST:PORT of an OTLP collector; None: nowhere
    heartbeat_s       both ways; three missed end a stream
    report_interval_s how often agents report
    flush_s           how often observations reach the store
    lease_s           of the leader's lease
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: StoreSettings
    admin_listen: str = "127.0.0.1:7611"
    agent_listen: str = "127.0.0.1:7612"
    admin_address: str | None = None
    agent_address: str | None = None
    admin_tls: TlsFiles | None = None
    agent_tls: TlsFiles | None = None
    tokens: Path | None = None
    allow_insecure: bool = False
    limits: Limits = Limits()
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    otlp_endpoint: str | None = None
    json_logs: bool = False
    heartbeat_s: float = Field(default=1.0, ge=0.05, le=60)
    report_interval_s: float = Field(default=1.0, ge=0.05, le=60)
    flush_s: float = Field(default=5.0, gt=0)
    lease_s: float = Field(default=2.0, gt=0.5, le=60)
    lost_after_s: float = Field(default=60.0, gt=0)
    short_after_s: float = Field(default=5.0, gt=0)
    relief_pause_s: float = Field(default=60.0, gt=0)
    retire_after_s: float = Field(default=300.0, gt=0)

    @field_validator("admin_listen", "agent_listen", "admin_address", "agent_address")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is not HOST:PORT")
        return address

    def timing(self) -> Timing:
        return Timing(self.lease_s, self.lease_s / 5, self.lease_s / 5)

    def reconciler(self) -> ReconcilerSettings:
        return ReconcilerSettings(
            lost_after_s=self.lost_after_s,
            short_after_s=self.short_after_s,
            relief_pause_s=self.relief_pause_s,
            retire_after_s=self.retire_after_s,
        )

    def check_addresses(self) -> None:
        """Raises ConfigError if either address is open to whoever comes, or cannot be told to
        others."""
        for name in ("admin", "agent"):
            listen, told = getattr(self, f"{name}_listen"), getattr(self, f"{name}_address")
            if told is None and listen.rpartition(":")[0] in ("0.0.0.0", "[::]"):
                raise ConfigError(
                    f"{name}_address: {listen} is every address of this machine: say by which"
                    " one others reach it"
                )
        known = self.admin_tls is not None and self.admin_tls.client_ca is not None
        check_transport(
            self.admin_listen,
            what="admin_listen",
            tls=self.admin_tls,
            callers_known=known or self.tokens is not None,
            allow_insecure=self.allow_insecure,
        )
        check_transport(
            self.agent_listen,
            what="agent_listen",
            tls=self.agent_tls,
            callers_known=self.agent_tls is not None and self.agent_tls.client_ca is not None,
            allow_insecure=self.allow_insecure,
        )


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> ControllerConfig:
    """Settings of the YAML or JSON file at ``path``, then ``overrides`` (a mapping in it is merged
    into the file's); ConfigError names the setting at fault."""
    values = _read(path) if path is not None else {}
    for name, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(values.get(name), dict):
            values[name] = {**values[name], **value}
        else:
            values[name] = value
    try:
        config = ControllerConfig.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"controller settings: {faults}") from None
    config.check_addresses()
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(read_bytes(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings {path} are neither YAML nor JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"settings {path} must be a mapping of names to values")
    return values
