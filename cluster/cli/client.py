"""The commands' one way to the controllers: settings, connection, and whom to ask next.

A write carries a request id, so it is repeated without fear when its answer was lost or when the
controller asked does not lead.  The leader that a controller names is dialled by the same rules as
the servers that were given: with TLS, or on this machine.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.cli.faults import UNREACHABLE, CommandError, Fault, fault_of
from cluster.files import read_bytes
from cluster.security import is_loopback
from mirage_core.errors import ConfigError
from mirage_core.wire.v1 import admin_pb2 as pb
from mirage_core.wire.v1 import admin_pb2_grpc
from mirage_core.wire.v1 import common_pb2 as common

DEFAULT_SERVER = "127.0.0.1:7611"
_PAUSE_S = 0.2
_LARGEST_PAGE = 1000
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0))


class ClientSettings(BaseModel):
    """Unknown keys are errors.

    servers         controllers' addresses for operators, HOST:PORT, tried in turn
    ca              who signs the controllers' certificates (PEM); None: plain text
    certificate, key this operator's own, for mTLS (PEM)
    server_name     name in the controllers' certificate, if it is not their address
    token_file      file with the bearer token
    allow_insecure  plain text beyond this machine
    timeout_s       for a command's call, repetitions included
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: tuple[str, ...] = Field(default=(DEFAULT_SERVER,), min_length=1)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    token_file: Path | None = None
    allow_insecure: bool = False
    timeout_s: float = Field(default=10.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        if self.certificate is not None and self.ca is None:
            raise ValueError("certificate needs ca")
        for server in self.servers:
            if not server.rpartition(":")[0] or not server.rpartition(":")[2].isdecimal():
                raise ValueError(f"{server!r} is no address: write HOST:PORT")
            if not self.may_dial(server):
                raise ValueError(
                    f"{server} would be reached in plain text: give ca, or allow_insecure"
                )
        return self

    def may_dial(self, server: str) -> bool:
        return self.ca is not None or self.allow_insecure or is_loopback(server)


def load_settings(file: Path, given: dict[str, Any]) -> ClientSettings:
    """Settings of ``file``, if it exists, then those ``given`` (None: not given)."""
    values: dict[str, Any] = {}
    if file.exists():
        try:
            values = yaml.safe_load(read_bytes(file)) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"client settings {file} are not YAML: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"client settings {file} must be a mapping of names to values")
    values.update({name: value for name, value in given.items() if value is not None})
    try:
        return ClientSettings.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"client settings: {faults}") from None


class Client:
    """Use as a context; raises CommandError for every call that is not answered with OK."""

    def __init__(self, settings: ClientSettings) -> None:
        """Raises ConfigError if a file cannot be read."""
        self._settings = settings
        self._credentials = _credentials(settings)
        self._metadata = _metadata(settings)
        self._turn = 0
        self._channel: grpc.Channel | None = None
        self.server = settings.servers[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()

    def call(self, method: str, request: Any) -> Any:
        """The answer to one call, whoever leads; repeated while that may help."""
        options = getattr(request, "options", None)
        if options is not None and not options.request_id:
            options.request_id = uuid.uuid4().hex
        until_s = time.monotonic() + self._settings.timeout_s
        silent = 0
        while True:
            left_s = max(0.01, until_s - time.monotonic())
            try:
                return getattr(self._stub(), method)(
                    request, timeout=left_s, metadata=self._metadata
                )
            except grpc.RpcError as error:
                fault = fault_of(error)
            silent = silent + 1 if fault.unreachable else 0
            if silent >= len(self._settings.servers) or not self._may_repeat(fault):
                raise fault.error(self.server)
            if not self._turn_to_another(fault):
                pause_s = min(_PAUSE_S, until_s - time.monotonic())
                if pause_s <= 0:
                    raise fault.error(self.server)
                time.sleep(pause_s)

    def watch(self, request: pb.WatchRequest) -> Iterator[pb.WatchResponse]:
        """What is and what changes, for as long as it is iterated; taken up where it stopped.

        Raises CommandError when no controller answers for the settings' timeout.
        """
        failing_since_s: float | None = None
        incarnation = request.store_incarnation
        while True:
            try:
                for response in self._stub().Watch(request, metadata=self._metadata):
                    failing_since_s = None
                    if response.HasField("snapshot_end"):
                        incarnation = response.snapshot_end.store_incarnation
                    if incarnation:
                        request.after_sequence = response.sequence
                        request.store_incarnation = incarnation
                    yield response
            except grpc.RpcError as error:
                fault = fault_of(error)
                if fault.reason == common.ERROR_REASON_TRIMMED and request.store_incarnation:
                    request.ClearField("after_sequence")
                    request.store_incarnation = ""
                elif not fault.unreachable and not self._may_repeat(fault):
                    raise fault.error(self.server) from None
                now_s = time.monotonic()
                failing_since_s = failing_since_s or now_s
                if now_s - failing_since_s > self._settings.timeout_s:
                    raise fault.error(self.server) from None
                if not self._turn_to_another(fault):
                    time.sleep(_PAUSE_S)

    def list_all(self, method: str, request: Any, field: str) -> list[Any]:
        """All pages of a listing."""
        found: list[Any] = []
        while True:
            request.page.page_size = _LARGEST_PAGE
            response = self.call(method, request)
            found.extend(getattr(response, field))
            if not response.next_page_token:
                return found
            request.page.page_token = response.next_page_token

    # ---- whom to ask

    def _may_repeat(self, fault: Fault) -> bool:
        if fault.detail is None:
            return fault.unreachable
        return fault.detail.retryable and fault.reason != common.ERROR_REASON_RATE_LIMITED

    def _turn_to_another(self, fault: Fault) -> bool:
        """Whether there is somebody else to ask at once."""
        leader = fault.detail.leader_address if fault.detail is not None else ""
        if leader and leader != self.server and self._settings.may_dial(leader):
            self._dial(leader)
            return True
        if fault.unreachable or fault.reason == common.ERROR_REASON_NOT_LEADER:
            self._turn += 1
            self._dial(self._settings.servers[self._turn % len(self._settings.servers)])
        return False

    def _dial(self, server: str) -> None:
        self._hang_up()
        self.server = server

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _stub(self) -> Any:
        if self._channel is None:
            options: list[tuple[str, Any]] = list(_OPTIONS)
            if self._settings.server_name is not None:
                options.append(("grpc.ssl_target_name_override", self._settings.server_name))
            self._channel = (
                grpc.insecure_channel(self.server, options=options)
                if self._credentials is None
                else grpc.secure_channel(self.server, self._credentials, options=options)
            )
        return admin_pb2_grpc.AdminServiceStub(self._channel)


def await_leader(client: Client, patience_s: float) -> Any:
    """The cluster once it has a leader; CommandError if it has none in time."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            cluster = client.call("GetCluster", pb.GetClusterRequest()).cluster
            if cluster.leader_epoch:
                return cluster
            reason = "the controllers have no leader"
        except CommandError as error:
            if error.exit_code != UNREACHABLE:
                raise
            reason = str(error)
        if time.monotonic() > until_s:
            raise CommandError(reason, UNREACHABLE)
        time.sleep(_PAUSE_S)


def _credentials(settings: ClientSettings) -> grpc.ChannelCredentials | None:
    if settings.ca is None:
        return None
    return grpc.ssl_channel_credentials(
        read_bytes(settings.ca),
        read_bytes(settings.key) if settings.key is not None else None,
        read_bytes(settings.certificate) if settings.certificate is not None else None,
    )


def _metadata(settings: ClientSettings) -> tuple[tuple[str, str], ...]:
    if settings.token_file is None:
        return ()
    token = read_bytes(settings.token_file).decode(errors="replace").strip()
    if not token or not token.isprintable() or not token.isascii():
        raise ConfigError(f"{settings.token_file} holds no token: one line of printable ASCII")
    return (("authorization", f"Bearer {token}"),)
