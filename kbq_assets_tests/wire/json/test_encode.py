"""The kernel writes what `RowEncoder` writes, or leaves a document to it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.topics.business_time import BusinessTime, parse_business_time
from kbq_assets.core.topics.json.inference import InferredSchema, avro_schema
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.json.encode import DocumentEncoder
from kbq_assets.wire.json.layout import layout_of
from kbq_assets.wire.json.rows import RowEncoder, event_time, parse
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.encoded import EncodedRecords
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro, validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.translate import framed
from kbq_assets_tests.sizes import JSON_DOCUMENTS

LIMITS = RecordLimits()
BATCH = 500
KEYS = ("a", "b", "c", "a long key of a document", "12345678", "x y", "é", "created_at", "ts")
TIMES = ("", "auto", "ts", "a.b|created_at", "ts:epoch_ms", "created_at:rfc3339")
STRINGS = (
    "",
    "x",
    "Zürich",
    "2026-11-23T10:00:00.5Z",
    "20260101",
    "1700000000",
    " 2026-01-01 ",
    '"',
    "\\",
    "\n",
    "/",
    "😀",
)


def encoder_of(inferred: InferredSchema, business: BusinessTime | None = None) -> DocumentEncoder:
    return DocumentEncoder(layout_of(inferred, business), inferred.version)


def encoded(
    inferred: InferredSchema, texts: Sequence[bytes | None], business: BusinessTime | None = None
) -> tuple[Chunk, EncodedRecords]:
    chunk = Chunk.from_messages([RawRecord(text, offset) for offset, text in enumerate(texts)])
    rows = np.arange(len(texts))
    return chunk, encoder_of(inferred, business).encode(chunk, rows, LIMITS.max_bytes, LIMITS.max_json_depth)


def record_at(found: EncodedRecords, row: int) -> bytes | None:
    return found.buffer[found.starts[row] : found.ends[row]].tobytes() if found.done[row] else None


def expected(inferred: InferredSchema, text: bytes, business: BusinessTime | None) -> bytes:
    document = parse(text.decode())
    record, whole = RowEncoder(inferred).encode(document)
    if not whole:  # it must not be one that adds columns
        assert inferred.grown([document]) == inferred
    return framed(inferred.version, record + (event_time(document, business) if business else b""))


SEEN: Any = {
    "text": "x",
    "whole": 1,
    "number": 1.5,
    "flag": True,
    "any": [[1]],
    "inner": {"a": 1, "deep": {"b": "x"}, "list": ["x"]},
    "items": [{"sku": "x", "price": 1.5, "tags": ["x"], "size": {"w": 1}}],
    "words": ["x"],
    "created_at": "x",
}
SCHEMA = InferredSchema().grown([SEEN])


@pytest.mark.parametrize(
    "text",
    [
        '{"text":"x","whole":-7,"number":2.25,"flag":false}',
        ' { "flag" : true , "text" : "a b" } ',
        '{"number":3,"whole":999999999999999999}',
        '{"number":-0.0}',
        '{"number":1e-7}',
        '{"number":0.10000000000000001}',
        '{"inner":{"a":1,"deep":{"b":"y"},"list":["p","q"]}}',
        '{"inner":{"a":null},"text":null}',
        '{"inner":{}}',
        "{}",
        '{"items":[{"sku":"s","price":1,"tags":["a","b"],"size":{"w":2}},{"sku":"t"}]}',
        '{"words":[]}',
        '{"inner":{"list":[],"deep":{}}}',
        '{"text":"\\u00e9\\n\\"\\ud83d\\ude00\\/"}',
        '{"words":["\\t","\\u0000"]}',
        '{"text":5,"whole":"five","number":"x","flag":0,"inner":true,"items":"none","words":1}',
        '{"any":"text"}',
        '{"any":12}',
        '{"any":true}',
        '{"new":null,"other":null}',
        '{"created_at":"2026-11-23T10:00:00Z"}',
        '{"words":["' + "x" * 5000 + '"]}',
    ],
)
def test_common_documents_need_no_python_objects(text: str) -> None:
    for business in (None, parse_business_time("auto")):
        _, found = encoded(SCHEMA, [text.encode()], business)
        assert record_at(found, 0) == expected(SCHEMA, text.encode(), business)


@pytest.mark.parametrize(
    "text",
    [
        '{"new":1}',
        '{"text":"x","text":"y"}',
        '{"new":null,"new":null}',
        '{"\\u0074ext":"x"}',
        '{"whole":9223372036854775808}',
        '{"number":1e400}',
        '{"number":1234567890123456.789}',
        '{"number":52.520008123456789e0}',
        '{"text":{"a":1}}',
        '{"words":["a",1]}',
        '{"words":["a",null]}',
        '{"items":[{"new":1}]}',
        '{"items":[{}]}',
        '{"any":[1]}',
        '{"text":1.0}',
        "[1]",
        "1",
        '"x"',
        "null",
        '{"text":"x"',
        '{"text":"x"}}',
        '{"text":"x",}',
        '{"text":"\\ud800"}',
        '{"text":"a\nb"}',
        '{"whole":01}',
        '{"whole":1.}',
        '{"whole":-}',
        '{"flag":tru}',
        '{"flag":truee}',
        '{"words":["a",]}',
        '{"words":[,"a"]}',
        '{"words":["a"}',
        "",
        '{"a',
    ],
)
def test_the_rest_is_left(text: str) -> None:
    _, found = encoded(SCHEMA, [text.encode()])
    assert record_at(found, 0) is None


def test_nulls_invalid_text_and_long_values_are_left() -> None:
    chunk = Chunk.from_messages(
        [RawRecord(value, 0) for value in (None, b'{"text":"\xff"}', b'{"text":"xxxxxx"}')]
    )
    assert not encoder_of(SCHEMA).encode(chunk, np.arange(3), 15, LIMITS.max_json_depth).done.any()


def test_a_schema_deeper_than_documents_may_be_takes_none() -> None:
    chunk = Chunk.from_messages([RawRecord(b"{}", 0)])
    assert not encoder_of(SCHEMA).encode(chunk, np.arange(1), LIMITS.max_bytes, 2).done.any()


def test_more_output_than_input_is_no_problem() -> None:
    wide = InferredSchema().grown([{"items": [{f"k{index}": 1 for index in range(200)}]}])
    texts = [json.dumps({"items": [{"k7": 1}] * 300}).encode() for _ in range(60)]
    _, found = encoded(wide, texts)
    assert [record_at(found, row) for row in range(60)] == [expected(wide, texts[0], None)] * 60
    too_many = json.dumps({"items": [{"k7": 1}] * 10_000}).encode()
    _, found = encoded(wide, [too_many, texts[0]])
    assert found.done.tolist() == [False, True]


def test_keys_of_the_same_hash_are_distinguished_by_their_bytes() -> None:
    document = {f"key{index:>30}tail": index for index in range(300)}
    inferred = InferredSchema().grown([document])
    text = json.dumps(dict(reversed(document.items()))).encode()
    _, found = encoded(inferred, [text])
    assert record_at(found, 0) == expected(inferred, text, None)


@pytest.mark.parametrize("seed", range(JSON_DOCUMENTS // (BATCH * 20)))
def test_random_documents_are_the_same_records(seed: int) -> None:
    done = 0
    for batch in range(20):
        chance = random.Random(f"{seed} {batch}")
        documents = [document_of(chance) for _ in range(BATCH)]
        inferred = InferredSchema().grown(parse(text_of(each, chance)) for each in documents[:5])
        business = parse_business_time(chance.choice(TIMES))
        texts = [damaged(text_of(each, chance).encode(), chance) for each in documents]
        done += compare(inferred, texts, business)
    assert done > BATCH  # the others meet new keys, misfits, or are damaged


def compare(inferred: InferredSchema, texts: Sequence[bytes], business: BusinessTime | None) -> int:
    """How many documents the kernel took. Each record is that of Python objects, and valid."""
    chunk, found = encoded(inferred, texts, business)
    reasons = validate_json(chunk, None, LIMITS).reasons
    for row in np.flatnonzero(found.done).tolist():
        assert reasons[row] == Reason.GOOD, texts[row]
        assert record_at(found, row) == expected(inferred, texts[row], business), texts[row]
    made = Chunk.from_messages(
        [RawRecord(record_at(found, row), row) for row in np.flatnonzero(found.done).tolist()]
    )
    program = compile_program(avro.parse(avro_schema(inferred, event_time=business is not None)))
    assert not validate_avro(made, program, None, LIMITS).reasons.any()
    return int(found.done.sum())


def document_of(chance: random.Random) -> dict[str, Any]:
    return {key: value_of(chance, 1) for key in chance.sample(KEYS, chance.randrange(len(KEYS)))}


def value_of(chance: random.Random, level: int) -> Any:
    """A value that is most often of the same kind as others under its key."""
    kind = chance.choices(range(8), (8, 5, 5, 2, 1, 2, 2, 1))[0]
    if kind == 0:
        return chance.choice(STRINGS)
    if kind == 1:
        return chance.choice((0, 1, -1, 2**53, 2**53 + 1, 10**18, 2**63, 1_700_000_000, 1_700_000_000_123))
    if kind == 2:
        return chance.choice(
            (0.5, -0.0, 1e22, 1e23, 5e-324, chance.random(), round(chance.random(), 3), 1.7e9)
        )
    if kind == 3:
        return chance.random() < 0.5
    if kind == 4 or level > 3:
        return None
    if kind == 5:
        return {key: value_of(chance, level + 1) for key in chance.sample(KEYS, chance.randrange(3))}
    if kind == 6:
        one = value_of(chance, level + 1)
        return [one] * chance.randrange(4)
    return [value_of(chance, level + 1) for _ in range(chance.randrange(3))]


def text_of(document: Any, chance: random.Random) -> str:
    style = chance.randrange(4)
    if style == 0:
        return json.dumps(document)
    if style == 1:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(document, ensure_ascii=style == 2, indent=1)


def damaged(text: bytes, chance: random.Random) -> bytes:
    """One text in four with a byte that is another, missing, or repeated."""
    if chance.randrange(4):
        return text
    at = chance.randrange(len(text))
    byte = chance.choice(
        (b"", text[at : at + 1] * 2, bytes([chance.randrange(256)]), b'"', b"}", b",", b"0", b"e1")
    )
    return text[:at] + byte + text[at + 1 :]
