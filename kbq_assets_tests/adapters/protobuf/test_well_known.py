"""Values of Google's and Confluent's own message types: the ends of their ranges, and values that no column can
hold."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import duration_pb2, empty_pb2, field_mask_pb2, json_format, struct_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.protobuf.well_known import BadValue, decimal, duration, json_text, timestamp
from kbq_assets.wire.records.reasons import Reason

FIRST, LAST = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True)
class Decimal:
    """As Confluent's message has it: a number in two's complement, the highest byte first."""

    value: bytes
    scale: int = 0


def number(value: int, scale: int = 0) -> Decimal:
    return Decimal(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True), scale)


class TestTimestamps:
    @pytest.mark.parametrize(
        ("seconds", "nanos", "micros"),
        [
            (0, 0, 0),
            (0, 999, 0),
            (0, 1_000, 1),
            (-1, 999_999_999, -1),
            (FIRST, 0, FIRST * 10**6),
            (LAST, 999_999_999, LAST * 10**6 + 999_999),
            (0, -1, -1),
            (1, 2**31 - 1, 3_147_483),
        ],
    )
    def test_parts_of_a_microsecond_are_cut_off_towards_the_past(
        self, seconds: int, nanos: int, micros: int
    ) -> None:
        assert timestamp(timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)) == micros

    @pytest.mark.parametrize(
        ("seconds", "nanos"),
        [
            (FIRST - 1, 999_999_999),
            (FIRST, -1),
            (LAST + 1, 0),
            (LAST, 1_000_000_000),
            (2**63 - 1, 0),
            (-(2**63), 0),
        ],
    )
    def test_a_time_outside_of_the_calendar_is_out_of_range(self, seconds: int, nanos: int) -> None:
        with pytest.raises(BadValue, match="years 1 to 9999") as raised:
            timestamp(timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos))
        assert raised.value.reason is Reason.OUT_OF_RANGE


class TestDurations:
    LONGEST = (2**63 - 1) // 10**6

    @pytest.mark.parametrize(
        ("seconds", "nanos", "micros"),
        [
            (0, 0, 0),
            (0, 1_999, 1),
            (0, -1_999, -1),
            (-1, -1, -1_000_000),
            (LONGEST, 0, LONGEST * 10**6),
            (1, -1, 999_999),
        ],
    )
    def test_parts_of_a_microsecond_are_cut_off_towards_zero(
        self, seconds: int, nanos: int, micros: int
    ) -> None:
        assert duration(duration_pb2.Duration(seconds=seconds, nanos=nanos)) == micros

    @pytest.mark.parametrize("seconds", [LONGEST + 1, -LONGEST - 2, 2**63 - 1, -(2**63)])
    def test_a_duration_of_too_many_microseconds_is_out_of_range(self, seconds: int) -> None:
        with pytest.raises(BadValue, match="64 bits") as raised:
            duration(duration_pb2.Duration(seconds=seconds))
        assert raised.value.reason is Reason.OUT_OF_RANGE


class TestDecimals:
    @pytest.mark.parametrize(
        ("given_value", "precision", "scale", "unscaled"),
        [
            (Decimal(b""), 5, 2, 0),
            (Decimal(b"", 2**31 - 1), 5, 2, 0),
            (number(12345, 2), 5, 2, 12345),
            (number(-12345, 2), 5, 2, -12345),
            (number(123, 0), 5, 2, 12300),
            (number(12300, 4), 5, 2, 123),
            (number(99999, 2), 5, 2, 99999),
            (number(1, -4), 5, 0, 10_000),
            (number(10**100, 100), 1, 0, 1),
            (Decimal(b"\xff\xff", 0), 1, 0, -1),
        ],
        ids=str,
    )
    def test_a_number_gets_the_scale_of_its_column(
        self, given_value: Decimal, precision: int, scale: int, unscaled: int
    ) -> None:
        assert decimal(given_value, precision, scale) == unscaled

    @pytest.mark.parametrize(
        ("given_value", "precision", "scale"),
        [
            (number(100_000, 2), 5, 2),
            (number(-100_000, 2), 5, 2),
            (number(1234, 0), 5, 2),
            (number(12345, 3), 5, 2),
            (number(-1, 1), 5, 0),
            (number(1, -(2**31)), 5, 0),
            (number(1, 2**31 - 1), 5, 0),
            (number(1, 101), 5, 0),
            (Decimal(b"\x7f" * 10_000), 76, 0),
        ],
        ids=lambda part: str(part)[:40],
    )
    def test_a_number_that_would_lose_a_digit_is_out_of_range(
        self, given_value: Decimal, precision: int, scale: int
    ) -> None:
        with pytest.raises(BadValue, match=f"declares {precision} digits, {scale} of them") as raised:
            decimal(given_value, precision, scale)
        assert raised.value.reason is Reason.OUT_OF_RANGE

    @given(value=st.integers(-(10**20), 10**20), own=st.integers(0, 30), scale=st.integers(0, 30))
    @settings(max_examples=60)
    def test_the_number_stays_the_same_or_is_refused(self, value: int, own: int, scale: int) -> None:
        try:
            found = decimal(number(value, own), 76, scale)
        except BadValue:
            assert value * 10**scale % 10**own, "a digit would be lost"
        else:
            assert found * 10**own == value * 10**scale


plain = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class TestJson:
    @given(plain)
    @settings(max_examples=60)
    def test_a_document_comes_back(self, value: Any) -> None:
        message = json_format.ParseDict(value, struct_pb2.Value())
        assert json.loads(json_text(message)) == value

    def test_keys_are_sorted_and_nothing_is_escaped_or_spaced(self) -> None:
        message = struct_pb2.Struct()
        message.update({"b": [1, "é"], "a": None})
        assert json_text(message) == '{"a":null,"b":[1.0,"é"]}'

    @pytest.mark.parametrize(
        ("value", "text"),
        [(math.nan, '"NaN"'), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (-0.0, "-0.0")],
    )
    def test_a_number_that_json_lacks_is_a_text(self, value: float, text: str) -> None:
        assert json_text(struct_pb2.Value(number_value=value)) == text

    @pytest.mark.parametrize(
        ("message", "text"),
        [
            (struct_pb2.Value(), "null"),
            (struct_pb2.Value(null_value=struct_pb2.NULL_VALUE), "null"),
            (struct_pb2.Value(string_value=""), '""'),
            (struct_pb2.Value(bool_value=False), "false"),
            (struct_pb2.Struct(), "{}"),
            (struct_pb2.ListValue(), "[]"),
            (struct_pb2.Value(list_value=struct_pb2.ListValue()), "[]"),
            (empty_pb2.Empty(), "{}"),
        ],
        ids=str,
    )
    def test_what_is_empty_has_a_document_too(self, message: Any, text: str) -> None:
        assert json_text(message) == text

    @pytest.mark.parametrize(
        ("paths", "text"),
        [
            ([], ""),
            (["a"], "a"),
            (["user_name", "a.b_c"], "userName,a.bC"),
            (["userName"], "userName"),
            (["a__b"], "a__b"),
            (["a_1"], "a_1"),
            (["_a"], "A"),
            (["a_"], "a_"),
            (["é_x"], "éX"),
        ],
        ids=str,
    )
    def test_a_path_is_in_camel_case_if_a_way_leads_back(self, paths: list[str], text: str) -> None:
        assert json.loads(json_text(field_mask_pb2.FieldMask(paths=paths))) == text
