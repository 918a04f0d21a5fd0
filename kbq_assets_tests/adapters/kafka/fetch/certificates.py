"""Certificates for a broker and a client, made for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_PASSWORD = "sesame-key"
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, a broker's certificate and key, a client's with its key under a password."""

    authority: Path
    stranger: Path
    broker: Path
    client: Path
    client_key: Path


def write_certificates(folder: Path, *, host: str) -> Certificates:
    """Certificates of a broker at ``host``; ``stranger`` is an authority that signed none of them."""
    authority, authority_key = _certificate("authority", None)
    stranger, _ = _certificate("stranger", None)
    broker, broker_key = _certificate("broker", (authority, authority_key), host)
    client, client_key = _certificate("client", (authority, authority_key))
    secret = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    return Certificates(
        _write(folder / "authority.pem", _pem(authority)),
        _write(folder / "stranger.pem", _pem(stranger)),
        _write(folder / "broker.pem", _key(broker_key, serialization.NoEncryption()) + _pem(broker)),
        _write(folder / "client.pem", _pem(client)),
        _write(folder / "client.key", _key(client_key, secret)),
    )


def _certificate(
    name: str, signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None, host: str = ""
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key, subject = ec.generate_private_key(ec.SECP256R1()), _name(name)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=signer[0].subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
    builder = strict(builder, key, signer[1] if signer else key, is_authority=signer is None)
    if host:
        address = x509.IPAddress(ipaddress.ip_address(host))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signer[1] if signer else key, hashes.SHA256()), key


def strict(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """With the extensions that RFC 5280 asks for: from 3.13 on, Python refuses certificates without them."""
    usage = x509.KeyUsage(True, False, False, False, False, is_authority, is_authority, False, False)
    return (
        builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key: ec.EllipticCurvePrivateKey, secret: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
