"""Where the metadata store is and how to reach it; the one place that builds Redis clients.

Passwords come from files, never from a URL or a command line: a URL ends up in logs and in
``ps``.  The file is read at each new connection, so a rotated password needs no restart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from redis.asyncio import ConnectionPool, Redis, Sentinel, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from mirage_core.errors import ConfigError

_HOST_PORT = re.compile(r"^(?P<host>\[[^\]]+\]|[^\s:]+):(?P<port>\d{1,5})$")


class StoreSettings(BaseModel):
    """Settings of the store.

    url              redis://HOST:PORT[/DB], rediss:// for TLS, or unix:///PATH of a server
    sentinels        HOST:PORT of each Sentinel, instead of ``url``
    sentinel_service what the Sentinels call the server
    cluster          names this MIRAGE cluster; several may share a server
    username         ACL user; empty: the default one
    password_file    first line is the password
    ca_file          who signs the server's certificate; None: the system's authorities
    certificate, key of this client, if the server wants one
    wait_replicas    replicas that must confirm a write before it is reported
    timeout_s        without an answer, after which the server counts as unreachable
    connections      for calls; more calls at once wait their turn (each watch has its own)
    answers_kept_s   answers of requests are kept, so that retries get them
    changes_kept     in the stream that watches read; a watch that falls behind starts anew
    events_kept      in the event stream
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = ""
    sentinels: tuple[str, ...] = ()
    sentinel_service: str = "mirage"
    sentinel_username: str = ""
    sentinel_password_file: Path | None = None
    sentinel_tls: bool = False
    cluster: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    username: str = ""
    password_file: Path | None = None
    tls: bool = False
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    wait_replicas: int = Field(default=0, ge=0, le=16)
    wait_s: float = Field(default=1.0, gt=0)
    timeout_s: float = Field(default=3.0, gt=0)
    connections: int = Field(default=64, ge=1)
    answers_kept_s: float = Field(default=24 * 3600.0, gt=0)
    changes_kept: int = Field(default=10_000, ge=1)
    events_kept: int = Field(default=10_000, ge=1)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url:
            return url
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        if parts.username or parts.password or parts.query:
            # Said without the URL, which may hold a password.
            raise ValueError(
                "must hold no user, password or options: set username and password_file"
            )
        return url

    @field_validator("sentinels")
    @classmethod
    def _check_sentinels(cls, sentinels: tuple[str, ...]) -> tuple[str, ...]:
        for each in sentinels:
            if not _HOST_PORT.match(each):
                raise ValueError(f"{each!r} is not HOST:PORT")
        return sentinels

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if bool(self.url) == bool(self.sentinels):
            raise ValueError("give either url or sentinels")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self

    @property
    def where(self) -> str:
        """For messages; holds no secret."""
        if self.sentinels:
            return f"the Redis {self.sentinel_service!r} of Sentinels {', '.join(self.sentinels)}"
        return f"Redis at {self.url}"


class _FileCredentials(CredentialProvider):
    def __init__(self, username: str, file: Path) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_password(self._file)
        except ConfigError as error:  # as redis-py, which then drops the half-made connection
            raise AuthenticationError(str(error)) from None
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def read_password(file: Path) -> str:
    """The file's first line; ConfigError names the file if there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read the password file {file}: {reason}") from None
    if not lines or not lines[0]:
        raise ConfigError(f"the password file {file} is empty: its first line is the password")
    return lines[0]


def connect(settings: StoreSettings) -> Redis:
    """A client of the server, or of the master that the Sentinels name; connects when first used.

    Raises ConfigError if a file that is named cannot be read.
    """
    for file in (settings.ca_file, settings.certificate, settings.key):
        if file is not None and not file.is_file():
            raise ConfigError(f"cannot read {file}: no such file")
    # Retrying is RedisStore's: only it knows which calls may be repeated.
    common: dict[str, Any] = {
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    server = common | _credentials(settings.username, settings.password_file)
    if settings.sentinels:
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            [_host_port(each) for each in settings.sentinels],
            sentinel_kwargs=common
            | _credentials(settings.sentinel_username, settings.sentinel_password_file)
            | ({"ssl": True} | _tls(settings) if settings.sentinel_tls else {}),
            **server,
            **({"ssl": True} | _tls(settings) if settings.tls else {}),
        )
        client: Redis = sentinel.master_for(settings.sentinel_service)
        return client
    address: dict[str, Any] = dict(parse_url(settings.url))
    if address.get("connection_class") is SSLConnection:
        address |= _tls(settings)
    if not address.get("path"):
        address.setdefault("host", "localhost")
    return Redis.from_pool(ConnectionPool(**address, **server))


def _credentials(username: str, file: Path | None) -> dict[str, Any]:
    if file is None:
        return {"username": username} if username else {}
    read_password(file)
    return {"credential_provider": _FileCredentials(username, file)}


def _tls(settings: StoreSettings) -> dict[str, Any]:
    required: Literal["required"] = "required"
    return {
        "ssl_cert_reqs": required,
        "ssl_check_hostname": True,
        "ssl_ca_certs": str(settings.ca_file) if settings.ca_file else None,
        "ssl_certfile": str(settings.certificate) if settings.certificate else None,
        "ssl_keyfile": str(settings.key) if settings.key else None,
    }


def _host_port(text: str) -> tuple[str, int]:
    match = _HOST_PORT.match(text)
    assert match is not None, "checked by StoreSettings"
    return match["host"].strip("[]"), int(match["port"])
