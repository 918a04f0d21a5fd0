"""SASL PLAIN (RFC 4616) and SCRAM (RFC 5802) as a client: the messages, no I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused

Exchange = Callable[[bytes], bytes]
"""Send the mechanism's bytes, return the broker's."""

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = frozenset({"PLAIN", *_HASHES})
#: A server that asks for fewer wants to learn the password (RFC 7677); for more, to keep us busy.
_ITERATIONS: Final = range(4096, 10_000_000)


@dataclass(frozen=True)
class Login:
    """Who we say we are."""

    mechanism: str
    username: str
    password: str = field(repr=False)


def log_in(login: Login, exchange: Exchange, nonce: str = "") -> None:
    """Authenticate. Raises Refused where the server does not know the password either."""
    if login.mechanism == "PLAIN":
        exchange(b"\x00" + login.username.encode() + b"\x00" + login.password.encode())
    else:
        _scram(login, exchange, nonce or secrets.token_urlsafe(24))


def _scram(login: Login, exchange: Exchange, nonce: str) -> None:
    name = login.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = exchange(f"n,,{first}".encode()).decode(errors="replace")
    salt, iterations, whole = _challenge(challenge, nonce)
    bare = f"c=biws,r={whole}"
    signed = ",".join((first, challenge, bare)).encode()
    algorithm = _HASHES[login.mechanism]
    salted = hashlib.pbkdf2_hmac(algorithm, login.password.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    last = exchange(f"{bare},p={base64.b64encode(proof).decode()}".encode())
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not hmac.compare_digest(last, b"v=" + base64.b64encode(expected)):
        raise AuthenticationRefused("Authentication failed: the broker does not know the password")


def _challenge(challenge: str, nonce: str) -> tuple[bytes, int, str]:
    parts = dict(part.partition("=")[::2] for part in challenge.split(","))
    try:
        salt, iterations, whole = base64.b64decode(parts["s"], validate=True), int(parts["i"]), parts["r"]
    except (KeyError, ValueError):
        raise AuthenticationRefused(
            "Authentication failed: the broker's SCRAM challenge does not parse"
        ) from None
    if not whole.startswith(nonce) or iterations not in _ITERATIONS:
        raise AuthenticationRefused(
            "Authentication failed: the broker's SCRAM challenge is not to be trusted"
        )
    return salt, iterations, whole
