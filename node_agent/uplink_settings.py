"""How an agent reaches its controllers: addresses, identity, and what may go in plain text."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import grpc
import grpc.aio
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mirage_core.errors import ConfigError

MAX_MESSAGE_BYTES = 4 << 20
_OPTIONS = (
    # Channels of one process share connections unless told otherwise: simulated agents each need
    # their own, as real ones have.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Messages are small and few: to probe the link's bandwidth would answer each with a ping.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class UplinkSettings(BaseModel):
    """Unknown keys are errors.

    controllers      addresses, host:port, tried in turn
    node             name of this node (its host name); with mTLS the certificate must bear it
    host_link        domain of the host link; devices that name the same one share it
    ca               certificates that controllers' are checked against (PEM); none: plain text,
                     which only loopback addresses may have
    certificate, key the agent's own, for mTLS (PEM); read anew for each connection
    server_name      name in the controllers' certificate, if it is not their address
    token            file with a bearer token; read anew for each connection
    allow_plaintext  let plain text leave this machine
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    controllers: tuple[str, ...] = Field(min_length=1)
    node: str = Field(default_factory=socket.gethostname, min_length=1, max_length=256)
    host_link: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    token: Path | None = None
    allow_plaintext: bool = False

    @model_validator(mode="after")
    def _check(self) -> UplinkSettings:
        for address in self.controllers:
            require_address(address)
            if self.ca is None and not self.allow_plaintext and not is_loopback(address):
                raise ValueError(
                    f"{address} would be reached in plain text: name the certificate authority"
                    " in `ca`, or set `allow_plaintext`"
                )
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        if self.certificate is not None and self.ca is None:
            raise ValueError("`certificate` needs `ca`")
        return self

    def may_dial(self, address: str) -> bool:
        """Whether an address that a controller named may be dialled as the others are."""
        try:
            require_address(address)
        except ValueError:
            return False
        return self.ca is not None or self.allow_plaintext or is_loopback(address)


def require_address(address: str) -> None:
    """ValueError unless ``address`` is host:port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is no address: write host:port")


def is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(settings: UplinkSettings, address: str) -> grpc.aio.Channel:
    """A channel of one connection.  ConfigError if a certificate cannot be read."""
    if settings.ca is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(settings.ca),
        private_key=_read(settings.key) if settings.key else None,
        certificate_chain=_read(settings.certificate) if settings.certificate else None,
    )
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    if settings.server_name is not None:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    return grpc.aio.secure_channel(address, credentials, options=options)


def metadata(settings: UplinkSettings) -> tuple[tuple[str, str], ...]:
    """What each call carries.  ConfigError if the token cannot be read."""
    if settings.token is None:
        return ()
    token = _read(settings.token).decode(errors="replace").strip()
    return (("authorization", f"Bearer {token}"),)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
