"""Writes Python's trusted certificate authorities to a file for Java.

A Java runtime has its own list. In a runtime from a wheel, this list lacks the authorities that the system's
administrator added, such as the one of a company's proxy that pip has just used.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

# Java's own key store format ("JKS"), version 2. Entries of kind 2 are trusted certificates.
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
# Not a secret: the format needs a password for its checksum, and Java's own lists use this one.
PASSWORD = "changeit"
# Part of the format's checksum.
_WHITENER = b"Mighty Aphrodite"


def trusted_authorities() -> list[bytes]:
    """Python's trusted certificates (DER), from ``SSL_CERT_FILE`` if set. May be empty."""
    return ssl.create_default_context().get_ca_certs(binary_form=True)


def write_truststore(path: Path, certificates: Sequence[bytes]) -> tuple[str, ...]:
    """Write ``certificates`` (DER) to ``path``; return the Java options that use it."""
    entries = b"".join(_entry(number, certificate) for number, certificate in enumerate(certificates))
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates)) + entries
    checksum = hashlib.sha1(PASSWORD.encode("utf-16-be") + _WHITENER + body, usedforsecurity=False).digest()
    path.write_bytes(body + checksum)
    return (
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    )


def _entry(number: int, certificate: bytes) -> bytes:
    head = struct.pack(">I", _TRUSTED) + _text(f"authority-{number}") + struct.pack(">Q", 0)
    return head + _text("X.509") + struct.pack(">I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
