"""Who may call: bearer tokens with two roles, TLS and mTLS, and the refusal of plain text.

A token is a secret of the operator's; the file holds only its SHA-256, so reading the file does
not let anyone in.  The comparison takes the same time wherever the difference lies.

Transport and caller are two questions.  An address that is not loopback needs TLS; an address with
TLS needs callers that prove who they are, by a client certificate or by a token.  Both can be
waived only by ``allow_insecure``, which says so in the log.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import grpc
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.files import Watched, read_bytes
from mirage_core.errors import ConfigError

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Role(IntEnum):
    """What a caller may do; each role may do all that a lesser one may."""

    VIEW = 1
    OPERATE = 2


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, by the name that the audit records."""

    name: str
    role: Role


class TlsFiles(BaseModel):
    """PEM files of one listening address; replaced files are used for new connections.

    client_ca  who signs client certificates; given, every client must show one (mTLS)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: Path
    key: Path
    client_ca: Path | None = None


class _TokenEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=128)
    role: str = Field(pattern="^(view|operate)$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: tuple[_TokenEntry, ...]


class Tokens:
    """The tokens of one file."""

    def __init__(self, entries: Iterable[tuple[str, Principal]]) -> None:
        """``entries`` are (lower-case hexadecimal SHA-256 of the token, who it stands for)."""
        self._entries = tuple(entries)

    def principal_of(self, token: str) -> Principal | None:
        """Whose token it is; every entry is compared, in constant time each."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        found: Principal | None = None
        for known, principal in self._entries:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def read_tokens(path: Path) -> Tokens:
    """Tokens of a YAML file ``tokens: [{name, role: view|operate, sha256}]``; ConfigError names
    the fault, never a token."""
    try:
        values = yaml.safe_load(read_bytes(path))
        entries = _TokenFile.model_validate(values).tokens
    except yaml.YAMLError:
        raise ConfigError(f"token file {path} is not YAML") from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}"
            for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"token file {path}: {faults}") from None
    if len({entry.name for entry in entries}) != len(entries):
        raise ConfigError(f"token file {path}: a name occurs twice")
    return Tokens(
        (entry.sha256, Principal(entry.name, Role[entry.role.upper()])) for entry in entries
    )


def watch_tokens(path: Path) -> Watched[Tokens]:
    return Watched((path,), lambda: read_tokens(path))


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token of an ``authorization: Bearer TOKEN`` entry; None if there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
    return None


# ---- addresses and certificates


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` or ``unix:path`` can be reached from this machine only."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_transport(
    address: str, *, what: str, tls: TlsFiles | None, callers_known: bool, allow_insecure: bool
) -> None:
    """Raises ConfigError if ``address`` would be open to callers that nobody vouches for."""
    if allow_insecure or is_loopback(address):
        return
    if tls is None:
        raise ConfigError(
            f"{what} {address} is not loopback and has no TLS: give a certificate and key, listen"
            " on 127.0.0.1, or set allow_insecure if the network itself is trusted"
        )
    if not callers_known:
        raise ConfigError(
            f"{what} {address} would let anyone in: give a client_ca"
            " (or, for operators, a token file), or set allow_insecure"
        )


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that follow their files: a replaced certificate is used for new connections."""
    paths = tuple(path for path in (tls.certificate, tls.key, tls.client_ca) if path is not None)
    watched = Watched(paths, lambda: _read_configuration(tls))

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        return watched.value if watched.refresh() else None

    return grpc.dynamic_ssl_server_credentials(
        watched.value, fetch, require_client_authentication=tls.client_ca is not None
    )


def _read_configuration(tls: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(read_bytes(tls.key), read_bytes(tls.certificate))],
        root_certificates=read_bytes(tls.client_ca) if tls.client_ca is not None else None,
    )


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """Names that the client's certificate vouches for; empty without one."""
    return frozenset(
        name.decode(errors="replace")
        for name in auth_context.get("x509_subject_alternative_name", ())
    )
