"""The client side of SASL PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628): only messages, no I/O."""

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
"""Sends the mechanism's bytes, and returns the broker's."""

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = frozenset({"PLAIN", OAUTHBEARER, *_HASHES})
#: Accepted numbers of SCRAM iterations. Fewer would help a server to guess the password (RFC 7677), and more would keep
#: this client busy.
_ITERATIONS: Final = range(4096, 10_000_000)


@dataclass(frozen=True)
class Login:
    """Credentials: a name and password, or a token and ``extensions`` for OAUTHBEARER (KIP-342)."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: Callable[[], str] = field(default=str, repr=False)
    extensions: tuple[tuple[str, str], ...] = ()


def log_in(login: Login, exchange: Exchange, nonce: str = "") -> None:
    """Authenticate. Raises AuthenticationRefused if the broker refuses the credentials or fails mutual authentication.
    Errors of ``login.token`` propagate."""
    if login.mechanism == "PLAIN":
        exchange(b"\x00" + login.username.encode() + b"\x00" + login.password.encode())
    elif login.mechanism == OAUTHBEARER:
        _oauthbearer(login, exchange)
    else:
        _scram(login, exchange, nonce or secrets.token_urlsafe(24))


def _oauthbearer(login: Login, exchange: Exchange) -> None:
    pairs = (("auth", f"Bearer {login.token()}"), *login.extensions)
    message = "n,,\x01" + "".join(f"{name}={value}\x01" for name, value in pairs) + "\x01"
    if exchange(message.encode()):
        exchange(
            b"\x01"
        )  # a refusal first comes as JSON; after this acknowledgment, the broker sends its error
        raise AuthenticationRefused("Authentication failed: the broker does not accept the token")


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
        raise AuthenticationRefused("Authentication failed: the broker's SCRAM challenge is not trustworthy")
    return salt, iterations, whole
