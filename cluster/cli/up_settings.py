"""Settings of ``mirage up``: models in folders, one device, where all of it is kept."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Self

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cluster.cli.documents import parse_size
from cluster.files import read_bytes
from mirage_core.errors import ConfigError

_WORKER = "mirage_core.engines.vllm.worker.MirageWorker"
_SCHEDULER = "mirage_core.engines.vllm.scheduler.MirageScheduler"
_POOL_BYTES = 512 << 20
"""Of a model, where the device's size is not given."""
_MEMORY_SHARE = 0.6
"""Of what this machine has free, at most, where the device's size is not given."""


def _size(value: object) -> object:
    try:
        return parse_size(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(str(error)) from None


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]


class UpModel(BaseModel):
    """One model and its engine.

    folder       of the model, as vLLM loads it
    port         of its OpenAI server on the loopback address; None: the next free one
    cores        of its worker; None: cores are dealt in turn
    pool_tokens  KV tokens that it has at least
    arguments    more of vLLM's own
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,100}$")
    folder: Path
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    port: int | None = Field(default=None, ge=1, le=65535)
    cores: tuple[int, ...] | None = None
    pool_tokens: int = Field(default=1024, gt=0)
    max_model_len: int | None = Field(default=None, gt=0)
    max_num_seqs: int = Field(default=32, gt=0)
    block_size: int = Field(default=32, gt=0)
    dtype: str = "auto"
    arguments: tuple[str, ...] = ()

    def weight_files(self) -> list[Path]:
        """Raises ConfigError if the folder holds none."""
        found = sorted(self.folder.glob("*.safetensors"))
        if not found:
            raise ConfigError(
                f"model {self.name}: {self.folder} holds no *.safetensors: give the folder of a"
                " model"
            )
        return found

    @property
    def weights_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.weight_files())

    def weights_digest(self) -> str:
        """SHA-256 of all weight files, each hashed first; reads them all."""
        digest = hashlib.sha256()
        for file in self.weight_files():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()

    def command(self, python: str, port: int, agent: Path, *, eager: bool) -> list[str]:
        """vLLM's own server with the plug-in."""
        mirage = {
            "agent": str(agent),
            "pool_tokens": self.pool_tokens,
            "priority": self.priority,
        }
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--model", str(self.folder), "--served-model-name", self.name]
        command += ["--dtype", self.dtype, "--block-size", str(self.block_size)]
        command += ["--max-num-seqs", str(self.max_num_seqs)]
        if self.max_model_len is not None:
            command += ["--max-model-len", str(self.max_model_len)]
        command += ["--enforce-eager"] if eager else []
        command += ["--worker-cls", _WORKER, "--scheduler-cls", _SCHEDULER]
        command += ["--additional-config", json.dumps({"mirage": mirage})]
        return command + list(self.arguments)


class UpSettings(BaseModel):
    """Unknown keys are errors.

    device_bytes  of the host device; None: the models' weights and some room
    admin_port, agent_port  of the controller; 0: any free one
    eager         engines start in half the time and run somewhat slower
    otlp_endpoint  where spans of all processes go, HOST:PORT of an OTLP collector; None: nowhere
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[UpModel, ...] = ()
    state_dir: Path
    device_bytes: Size | None = None
    page_bytes: Size = 256 << 10
    admin_port: int = Field(default=7611, ge=0, le=65535)
    agent_port: int = Field(default=7612, ge=0, le=65535)
    eager: bool = True
    otlp_endpoint: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("a model's name occurs twice")
        if self.page_bytes & (self.page_bytes - 1):
            raise ValueError("page_bytes must be a power of two")
        return self

    def sized(self) -> int:
        """Bytes of the device, whole pages.  Raises ConfigError if they cannot be had."""
        wanted = self.device_bytes
        if wanted is None:
            weights = sum(model.weights_bytes for model in self.models)
            wanted = weights + _POOL_BYTES * max(1, len(self.models))
            most = int(_MEMORY_SHARE * _available_bytes())
            if weights > most:
                raise ConfigError(
                    f"the models' weights are {weights >> 20} MiB and {most >> 20} MiB may be"
                    " taken here: leave a model out, or set device_bytes"
                )
            wanted = min(wanted, most)
        return wanted // self.page_bytes * self.page_bytes


def load_up_settings(path: Path | None, overrides: dict[str, Any]) -> UpSettings:
    """Settings of the YAML file at ``path``, then ``overrides``; its models come first."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(read_bytes(path)) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"settings {path} are not YAML: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"settings {path} must be a mapping of names to values")
    models = [*(values.get("models") or []), *overrides.pop("models")]
    values.update({name: value for name, value in overrides.items() if value is not None})
    values["models"] = models
    values.setdefault("state_dir", default_state_dir())
    try:
        settings = UpSettings.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"mirage up: {faults}") from None
    return settings


def parse_model(text: str) -> dict[str, str]:
    """``NAME=FOLDER``."""
    name, equals, folder = text.partition("=")
    if not equals or not folder:
        raise ConfigError(f"--model {text}: write NAME=FOLDER")
    return {"name": name, "folder": folder}


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "mirage"


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
