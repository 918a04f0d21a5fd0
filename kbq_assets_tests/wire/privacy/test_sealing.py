"""Sealed bytes: only the private key opens them, and only where they belong."""

from __future__ import annotations

import base64
import json

import pytest

from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.wire.privacy.sealing import (
    OpeningKeys,
    is_sealed,
    key_id,
    new_key_pair,
    parse_opening_key,
    parse_seal_key,
)

PRIVATE, PUBLIC = new_key_pair("2026-11")
SECRET = b"canary"


def sealed(context: bytes = b"here", public: str = PUBLIC) -> bytes:
    return parse_seal_key(public).seal(SECRET, context)


def test_what_is_sealed_opens_and_is_never_sealed_alike() -> None:
    first, second = sealed(), sealed()
    assert [parse_opening_key(PRIVATE).open(each, b"here") for each in (first, second)] == [SECRET] * 2
    assert first != second
    assert SECRET not in first


def test_the_format_is_as_documented() -> None:
    data = sealed()
    assert data[:10] == b"KBQS" + bytes.fromhex("0020 0001 0002")
    assert (data[10], data[11:18], len(data)) == (7, b"2026-11", 18 + 32 + len(SECRET) + 16)
    assert (is_sealed(data), key_id(data)) == (True, "2026-11")


@pytest.mark.parametrize("position", [0, 5, 12, 20, 60, -1])
def test_altered_bytes_do_not_open(position: int) -> None:
    data = bytearray(sealed())
    data[position] ^= 1
    with pytest.raises(EncodingError):
        parse_opening_key(PRIVATE).open(bytes(data), b"here")


@pytest.mark.parametrize("length", [0, 4, 10, 11, 18, 40, 60])
def test_cut_bytes_do_not_open(length: int) -> None:
    with pytest.raises(EncodingError):
        parse_opening_key(PRIVATE).open(sealed()[:length], b"here")


def test_bytes_open_where_they_belong_and_with_their_key_alone() -> None:
    with pytest.raises(EncodingError, match="comes from another record"):
        parse_opening_key(PRIVATE).open(sealed(b"there"), b"here")
    other, _ = new_key_pair("2027")
    with pytest.raises(EncodingError, match="sealed for the key '2026-11'"):
        parse_opening_key(other).open(sealed(), b"here")
    namesake, _ = new_key_pair("2026-11")
    with pytest.raises(EncodingError, match="does not open"):
        parse_opening_key(namesake).open(sealed(), b"here")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "topsecret", '{"id": "topsecret"}', '{"id": "", "public": "AAAA"}']
    + [
        json.dumps({"id": name, "public": base64.b64encode(raw).decode()})
        for name, raw in (("a", b"topsecret"), ("a" * 300, bytes(32)))
    ],
)
def test_a_key_that_is_none_is_refused_without_being_shown(text: str) -> None:
    for parse in (parse_seal_key, parse_opening_key):
        with pytest.raises(ConfigurationError) as caught:
            parse(text.replace("public", "private") if parse is parse_opening_key else text)
        assert "topsecret" not in str(caught.value)


def test_a_private_key_is_no_public_key_and_shows_in_no_text() -> None:
    with pytest.raises(ConfigurationError):
        parse_seal_key(PRIVATE)
    keys = parse_opening_key(PRIVATE)
    assert repr(keys) == repr(OpeningKeys({})) == "OpeningKeys()"
