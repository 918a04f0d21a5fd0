"""Every reason, and the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.prefix import BAD_MAGIC, NULL, SHORT, split_prefix
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits, describe
from kbq_assets_tests.wire import reference
from kbq_assets_tests.wire.samples import chunk_of, record_of

LIMITS = RecordLimits(max_bytes=100, max_depth=4, max_items=20, max_empty_items=5)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
LINKED = record_of(("value", "int"), ("next", ["null", "Order"]))


def verdict(schema: Any, body: bytes, limits: RecordLimits = LIMITS) -> Reason:
    validation = validate_avro(chunk_of(body), compile_program(avro.parse(schema)), None, limits, prefix=0)
    return Reason(int(validation.reasons[0]))


def test_the_prefix_gives_the_schema_id_or_why_there_is_none() -> None:
    values = [
        b"\x00\x00\x00\x00\x07x",
        b"\x00\xff\xff\xff\xff",
        None,
        b"{}",
        b"",
        b"\x00\x00\x00\x01",
        b"\x01",
    ]
    expected = [7, 2**32 - 1, NULL, BAD_MAGIC, SHORT, SHORT, BAD_MAGIC]
    assert split_prefix(chunk_of(*values)).tolist() == expected


@pytest.mark.parametrize(
    ("reason", "schema", "body"),
    [
        (Reason.GOOD, "int", b"\x02"),
        (Reason.TOO_LARGE, "bytes", encode_bytes(bytes(100))),
        (Reason.TRUNCATED, "int", b""),
        (Reason.TRUNCATED, "long", b"\x80"),
        (Reason.TRUNCATED, "double", bytes(7)),
        (Reason.TRUNCATED, "boolean", b""),
        (Reason.TRUNCATED, "string", b"\x06ab"),
        (Reason.TRUNCATED, "bytes", encode_long(2**62) + b"ab"),
        (Reason.TRUNCATED, {"type": "array", "items": "int"}, b"\x04\x02"),
        (Reason.TRUNCATED, {"type": "array", "items": "int"}, encode_long(2**62) + b"\x02"),
        (Reason.TRUNCATED, ["null", "int"], b""),
        (Reason.TRAILING_BYTES, "int", b"\x02\x02"),
        (Reason.TRAILING_BYTES, "null", b"\x00"),
        (Reason.INVALID_BOOLEAN, "boolean", b"\x02"),
        (Reason.INVALID_ENUM, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04"),
        (Reason.INVALID_ENUM, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
        (Reason.INVALID_UNION, ["null", "int"], b"\x04"),
        (Reason.INVALID_UNION, ["null", "int"], b"\x01"),
        (Reason.INVALID_UNION, ["int", "long", "string"], b"\x06"),
        (Reason.INVALID_UNION, ["int", "long", "string"], b"\x01"),
        (Reason.INVALID_LENGTH, "string", b"\x01"),
        (Reason.INVALID_LENGTH, "bytes", b"\x03"),
        (Reason.INVALID_BLOCK, {"type": "array", "items": "int"}, b"\x01\x04\x02\x00"),
        (Reason.INVALID_BLOCK, {"type": "array", "items": "int"}, b"\x01\x7e\x02\x00"),
        (Reason.INVALID_BLOCK, {"type": "array", "items": "int"}, b"\x01\x01\x02\x00"),
        (Reason.INVALID_BLOCK, {"type": "array", "items": "null"}, b"\x01\x02\x00"),
        (Reason.INVALID_BLOCK, {"type": "array", "items": "null"}, encode_long(-(2**63)) + b"\x00\x00"),
        (Reason.INT_OVERFLOW, "int", encode_long(2**31)),
        (Reason.INT_OVERFLOW, "int", encode_long(-(2**31) - 1)),
        (Reason.INT_OVERFLOW, "int", b"\x80\x80\x80\x80\x80\x00"),
        (Reason.INT_OVERFLOW, "long", b"\xff" * 9 + b"\x02"),
        (Reason.INT_OVERFLOW, "long", b"\xff" * 10 + b"\x00"),
        (Reason.INT_OVERFLOW, ["null", "int"], b"\x82\x80\x80\x80\x80\x00\x02"),
        (Reason.OUT_OF_RANGE, {"type": "int", "logicalType": "date"}, encode_long(2_932_897)),
        (Reason.OUT_OF_RANGE, {"type": "int", "logicalType": "time-millis"}, encode_long(-1)),
        (Reason.OUT_OF_RANGE, {"type": "long", "logicalType": "timestamp-millis"}, encode_long(2**60)),
        (Reason.OUT_OF_RANGE, {"type": "long", "logicalType": "time-micros"}, encode_long(86_400_000_000)),
        (Reason.OUT_OF_RANGE, DECIMAL, encode_bytes((1000).to_bytes(2))),
        (Reason.OUT_OF_RANGE, DECIMAL, encode_bytes((-1000).to_bytes(2, signed=True))),
        (Reason.OUT_OF_RANGE, DECIMAL, encode_bytes(b"")),
        (Reason.TOO_DEEP, LINKED, b"\x00\x02" * 6 + b"\x00\x00"),
        (Reason.TOO_MANY_ITEMS, {"type": "array", "items": "int"}, encode_long(21) + bytes(22)),
        (Reason.TOO_MANY_ITEMS, {"type": "array", "items": "int"}, b"\x16" + bytes(11) + b"\x16" + bytes(12)),
        (Reason.TOO_MANY_ITEMS, {"type": "map", "values": "null"}, encode_long(21) + bytes(22)),
        (Reason.TOO_MANY_ITEMS, {"type": "array", "items": "null"}, encode_long(2**62) + b"\x00"),
        (Reason.TOO_MANY_ITEMS, {"type": "array", "items": record_of()}, b"\x04\x04\x04\x00"),
    ],
)
def test_a_bad_record_has_its_reason(reason: Reason, schema: Any, body: bytes) -> None:
    assert verdict(schema, body) == reason


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("int", encode_long(2**31 - 1)),
        ("int", encode_long(-(2**31))),
        ("int", b"\x82\x80\x80\x80\x00"),
        ("long", encode_long(2**63 - 1)),
        ("long", encode_long(-(2**63))),
        ("long", b"\x82\x00"),
        (["null", "int"], b"\x80\x00"),
        (["null", "int"], b"\x82\x00\x06"),
        (["int", "null"], b"\x02"),
        ("bytes", encode_bytes(b"\xff\xfe")),
        (DECIMAL, encode_bytes((999).to_bytes(9))),
        (DECIMAL, encode_bytes((-999).to_bytes(9, signed=True))),
        ({"type": "array", "items": "null"}, b"\x0a\x00"),
        ({"type": "array", "items": "null"}, b"\x01\x00\x03\x00\x00"),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00"),
        ({"type": "map", "values": "int"}, b"\x01\x06\x02a\x02\x00"),
        (LINKED, b"\x00\x02" * 4 + b"\x00\x00"),
        (record_of(), b""),
    ],
)
def test_what_the_specification_allows_is_good(schema: Any, body: bytes) -> None:
    assert verdict(schema, body) == Reason.GOOD


def test_a_null_value_is_never_read() -> None:
    validation = validate_avro(chunk_of(None), compile_program(avro.parse("null")), None, LIMITS)
    assert validation.reasons.tolist() == [Reason.NULL_VALUE]


def test_a_prefix_beyond_the_value_is_truncation() -> None:
    validation = validate_avro(chunk_of(b"\x00"), compile_program(avro.parse("null")), None, LIMITS, prefix=5)
    assert validation.reasons.tolist() == [Reason.TRUNCATED]


@given(st.binary(max_size=40), st.sampled_from(["", "a", "abcdefgh" * 2]))
def test_utf8_is_what_python_says_it_is(tail: bytes, head: str) -> None:
    text = head.encode() + tail
    try:
        text.decode()
        expected = Reason.GOOD
    except UnicodeDecodeError:
        expected = Reason.INVALID_UTF8
    assert verdict("string", encode_bytes(text)) == expected
    assert verdict({"type": "map", "values": "null"}, b"\x02" + encode_bytes(text) + b"\x00") == expected


@pytest.mark.parametrize("first", range(0xC0, 0x100))
def test_every_utf8_sequence_at_the_borders(first: int) -> None:
    edge = (0x7F, 0x80, 0xBF, 0xC0)
    texts = [bytes([first, second]) for second in range(256)]
    for second in range(0x70, 0xD0):
        texts += [bytes([first, second, third]) for third in edge]
        texts += [bytes([first, second, third, fourth]) for third in edge for fourth in edge]
    program = compile_program(avro.parse("string"))
    validation = validate_avro(chunk_of(*map(encode_bytes, texts)), program, None, LIMITS, prefix=0)
    expected = [not text.decode("utf-8", "replace").count("\ufffd") for text in texts]
    assert (validation.reasons == Reason.GOOD).tolist() == expected


@given(st.integers(1, 40), st.integers(-(10**41), 10**41), st.integers(0, 3))
def test_a_decimal_fits_its_precision_or_is_out_of_range(precision: int, number: int, padding: int) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": precision}
    data = number.to_bytes((number.bit_length() + 8) // 8 + padding, signed=True)
    expected = Reason.GOOD if abs(number) < 10**precision else Reason.OUT_OF_RANGE
    assert verdict(schema, encode_bytes(data)) == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 12))
def test_numbers_are_read_at_any_place_in_the_buffer(number: int, before: int) -> None:
    schema = record_of(("a", {"type": "fixed", "name": "F", "size": before}), ("b", "long"), ("c", "int"))
    body = bytes(before) + encode_long(number)
    in_range = -(2**31) <= number < 2**31
    assert verdict(schema, body + encode_long(5)) == Reason.GOOD
    assert verdict(schema, body + encode_long(number)) == (Reason.GOOD if in_range else Reason.INT_OVERFLOW)
    assert verdict(schema, body) == Reason.TRUNCATED


def test_a_record_ends_where_the_next_begins() -> None:
    # Kernels read whole words, which reach into the next record: they must not take its bytes.
    chunk = chunk_of(b"\x80", b"\x02", b"\x06ab", b"\x02a")
    longs = validate_avro(chunk, compile_program(avro.parse("long")), np.array([0, 1]), LIMITS, prefix=0)
    texts = validate_avro(chunk, compile_program(avro.parse("string")), np.array([2, 3]), LIMITS, prefix=0)
    assert longs.reasons.tolist() == texts.reasons.tolist() == [Reason.TRUNCATED, Reason.GOOD]


def test_only_the_given_rows_are_validated() -> None:
    chunk = chunk_of(b"\x05", b"bad", b"\x07")
    validation = validate_avro(chunk, compile_program(avro.parse("int")), np.array([0, 2]), LIMITS, prefix=0)
    assert validation.reasons.tolist() == [Reason.GOOD, Reason.GOOD]


def test_the_message_names_field_and_byte() -> None:
    schema = record_of(("id", "long"), ("address", record_of(("city", ["null", "string"]), name="Address")))
    program = compile_program(avro.parse(schema))
    validation = validate_avro(chunk_of(b"\x02\x02\x04\xc3("), program, None, LIMITS, prefix=0)
    assert (
        describe(program, validation, 0)
        == "a string is not valid UTF-8 in field address.city (byte 2 of the value)"
    )


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        ("long", b"\x80"),
        ("int", b"\x80"),
        ("double", bytes(7)),
        ("boolean", b""),
        ("string", b"\x04a"),
        ("bytes", b"\x04a"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x80"),
        ({"type": "fixed", "name": "F", "size": 3}, bytes(2)),
    ],
)
def test_the_message_names_the_field_in_which_a_value_is_cut_off(kind: Any, cut: bytes) -> None:
    program = compile_program(avro.parse(record_of(("first", kind), ("second", "string"))))
    validation = validate_avro(chunk_of(cut), program, None, LIMITS, prefix=0)
    assert describe(program, validation, 0, position=False) == f"{Reason.TRUNCATED.message} in field first"


@pytest.mark.parametrize("size", [0, 7, 8, 62, 63, 64, 65, 90])
def test_a_text_of_any_length_is_checked_to_its_end(size: int) -> None:
    text, after = encode_long(size) + b"a" * size, encode_long(7)
    schema = record_of(("text", "string"), ("after", "int"))
    assert verdict(schema, text + after) == Reason.GOOD
    assert verdict(schema, text + after + b"x") == Reason.TRAILING_BYTES
    if size:
        assert verdict(schema, text[:-1]) == Reason.TRUNCATED
        assert verdict(schema, text[:-1] + b"\xff" + after) == Reason.INVALID_UTF8


def test_the_message_of_what_no_field_is_to_blame_for_names_none() -> None:
    program = compile_program(avro.parse(record_of(("id", "bytes"))))
    validation = validate_avro(chunk_of(bytes(101)), program, None, LIMITS)
    assert describe(program, validation, 0) == "the value is larger than the limit"


def test_every_reason_has_a_message() -> None:
    assert len({reason.message for reason in Reason}) == len(Reason)


def test_types_used_often_do_not_make_the_program_grow_without_bound() -> None:
    inner = record_of(("a", "int"), ("b", "int"), name="N0")
    schema: Any = inner
    for level in range(1, 25):  # 2**25 fields, if each use were inlined
        schema = record_of(("a", schema), ("b", f"N{level - 1}"), name=f"N{level}")
    assert len(compile_program(avro.parse(schema)).code) < 1000
    assert verdict(schema, bytes(100)) == Reason.TOO_DEEP
    assert verdict(schema, bytes(100), RecordLimits()) == Reason.TRUNCATED


def test_a_recursive_record_without_an_end_is_bounded() -> None:
    assert verdict(record_of(("self", "Order")), b"") == Reason.TOO_DEEP


def test_the_reference_decodes_what_it_encodes() -> None:
    node = avro.parse(record_of(("a", "string"), ("b", {"type": "array", "items": ["null", "long"]})))
    value = {"a": "né", "b": [(0, None), (1, -7)]}
    assert reference.decode(node, reference.encode(node, value)) == value
