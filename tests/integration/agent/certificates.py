"""Certificates for tests, made anew each time."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class CertificateAuthority:
    name: x509.Name
    private: ec.EllipticCurvePrivateKey
    certificate: bytes


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def authority(common: str) -> CertificateAuthority:
    private = ec.generate_private_key(ec.SECP256R1())
    name = _name(common)
    certificate = (
        _builder(name, name, private.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    return CertificateAuthority(name, private, certificate.public_bytes(serialization.Encoding.PEM))


def issue(issuer: CertificateAuthority, common: str, address: str = "") -> tuple[bytes, bytes]:
    """Key and certificate, PEM, for ``common`` and perhaps an IP address."""
    private = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(common)]
    if address:
        names.append(x509.IPAddress(ipaddress.ip_address(address)))
    certificate = (
        _builder(_name(common), issuer.name, private.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer.private, hashes.SHA256())
    )
    return _pem(private), certificate.public_bytes(serialization.Encoding.PEM)
