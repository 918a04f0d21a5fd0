"""Keys of each plain format as framed Avro: what a key becomes, and why another one is rejected."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import NotFound
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.chunk import Chunk, RawRecord, decode_long
from kbq_assets.wire.records.prefix import PREFIX, split_prefix
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.worker.keys.formats import KeyFormat, as_values, key_format
from kbq_assets_tests.fakes.registry import FakeRegistry

JSON = key_format("t", TopicSettings.of(key_format="json"), FakeRegistry({}), False)
TEXT = key_format("t", TopicSettings.of(key_format="text"), FakeRegistry({}), False)
PSEUDONYMS = key_format("t", TopicSettings.of(key_format="json"), FakeRegistry({}), True)


def translated(format_: KeyFormat, *keys: bytes | None) -> list[str | Reason | None]:
    """The text of each key's column, or why it has none."""
    messages = [RawRecord(b"value", n, key=key) for n, key in enumerate(keys)]
    chunk = format_.translate(as_values(Chunk.from_messages(messages, keys=True)))
    assert len(chunk) == len(keys)
    found: list[str | Reason | None] = []
    for row, schema_id in enumerate(split_prefix(chunk).tolist()):
        value = chunk.value(row)
        problem = format_.problem(schema_id)
        if value is None or problem is not None:
            found.append(None if problem is None else problem.reason)
            continue
        assert format_.schema(schema_id).schema_type == "AVRO"
        size, start = decode_long(value, PREFIX)
        assert start + size == len(value)
        found.append(value[start:].decode())
    return found


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"1", "1"),
        (b" 1 ", "1"),
        (b"-0", "0"),
        (b"0.5", "0.5"),
        (b"null", "null"),
        (b'"a"', '"a"'),
        ('"é"'.encode(), '"\\u00e9"'),
        (b'{"b" :1,"a":[ ]}', '{"b": 1, "a": []}'),
        (b"\0\0\0\0\1{}", "{}"),
        (b"\0\xff\xff\xff\xff[1]", "[1]"),
    ],
    ids=repr,
)
def test_a_document_is_written_in_one_form_with_or_without_a_prefix(key: bytes, text: str) -> None:
    assert translated(JSON, key) == [text]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (b"", Reason.INVALID_JSON),
        (b"\0\0\0\0\1", Reason.INVALID_JSON),
        (b"\0\0\0\0", Reason.INVALID_JSON),
        (b"{", Reason.INVALID_JSON),
        (b"1 2", Reason.INVALID_JSON),
        (b"NaN", Reason.INVALID_JSON),
        (b'"\\ud800"', Reason.INVALID_JSON),
        (b"\xef\xbb\xbf{}", Reason.INVALID_JSON),
        (b"\xff", Reason.INVALID_UTF8),
        (b'"\xff"', Reason.INVALID_UTF8),
        (b"1e999", Reason.OUT_OF_RANGE),
        (b"9" * 5_000, Reason.OUT_OF_RANGE),
        (b"[" * 5_000 + b"]" * 5_000, Reason.TOO_DEEP),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_what_is_no_document_is_rejected_for_its_own_key_alone(key: bytes, reason: Reason) -> None:
    assert translated(JSON, b"1", key, None, b"2") == ["1", reason, None, "2"]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
@settings(max_examples=40)
def test_a_document_stays_the_same(document: object) -> None:
    [text] = translated(JSON, json.dumps(document, ensure_ascii=False).encode())
    assert isinstance(text, str)
    assert json.loads(text) == document


@given(st.lists(st.none() | st.binary(max_size=20), max_size=6))
@settings(max_examples=60)
def test_any_bytes_are_a_document_or_rejected(keys: list[bytes | None]) -> None:
    for key, found in zip(keys, translated(JSON, *keys), strict=True):
        assert (found is None) == (key is None)


@pytest.mark.parametrize("format_", [TEXT, PSEUDONYMS], ids=["text", "pseudonyms"])
def test_a_text_is_its_bytes_and_null_stays_null(format_: KeyFormat) -> None:
    keys = (b"", None, "é".encode(), b"x" * 200, b"\0\0\0\0\1", b"{")
    assert translated(format_, *keys) == [None if key is None else key.decode() for key in keys]


def test_a_chunk_without_keys_has_null_ones() -> None:
    chunk = as_values(Chunk.from_messages([RawRecord(b"v", 0), RawRecord(None, 1)]))
    assert [chunk.value(row) for row in range(2)] == [None, None]
    assert chunk.offsets.tolist() == [0, 1]


@pytest.mark.parametrize("format_", [JSON, TEXT], ids=["json", "text"])
def test_a_plain_format_has_one_schema(format_: KeyFormat) -> None:
    with pytest.raises(NotFound, match="keys have no schema 2"):
        format_.schema(2)
