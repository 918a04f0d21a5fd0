"""Replacements of single values: what a truncated or generalised value says, at the ends of every type."""

from __future__ import annotations

import datetime
import io
import ipaddress
import math
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.privacy.values import generalise, network, text_of, truncate

SECOND = {"timestamp-millis": 10**3, "timestamp-micros": 10**6, "timestamp-nanos": 10**9}
EPOCH = datetime.date(1970, 1, 1)
LONGS = st.integers(-(2**63), 2**63 - 1)


def logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


def node(schema: Any) -> avro.AvroType:
    return avro.parse(schema)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    plain = schema["type"] if isinstance(schema, dict) and "logicalType" in schema else schema
    fastavro.schemaless_writer(out, plain, value)
    return out.getvalue()


def decoded(schema: Any, data: bytes) -> Any:
    plain = schema["type"] if isinstance(schema, dict) and "logicalType" in schema else schema
    stream = io.BytesIO(data)
    value = fastavro.schemaless_reader(stream, plain, None)
    assert stream.read() == b"", "nothing follows a value"
    return value


def generalised(schema: Any, argument: str, value: Any) -> Any:
    return decoded(schema, generalise(node(schema), argument, "f")(encoded(schema, value)))


class TestTexts:
    @pytest.mark.parametrize(
        ("schema", "value", "text"),
        [
            ("string", "", b""),
            ("string", "é", b"\xc3\xa9"),
            ("string", "x" * 100, b"x" * 100),
            ("bytes", b"\0\xff", b"\0\xff"),
            ("int", -(2**31), b"-2147483648"),
            ("long", 2**63 - 1, b"9223372036854775807"),
            ("long", 0, b"0"),
            ("boolean", True, b"true"),
            ("boolean", False, b"false"),
            ("double", 0.1, b"0.1"),
            ("double", math.inf, b"inf"),
            ("float", 0.5, b"0.5"),
            ({"type": "fixed", "name": "F", "size": 3}, b"\0\1\2", b"\0\1\2"),
            ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", b"B"),
            (logical("int", "date"), 1, b"1"),
            (logical("string", "uuid"), "u", b"u"),
        ],
        ids=str,
    )
    def test_a_pseudonym_hides_what_a_reader_would_write(self, schema: Any, value: Any, text: bytes) -> None:
        assert text_of(node(schema), "f")(encoded(schema, value)) == text

    @pytest.mark.parametrize(
        "schema",
        [
            "null",
            {"type": "array", "items": "string"},
            {"type": "map", "values": "string"},
            {"type": "record", "name": "R", "fields": []},
            ["null", "string"],
        ],
        ids=str,
    )
    def test_what_has_parts_is_refused_by_its_place(self, schema: Any) -> None:
        with pytest.raises(UnstageableSchema, match=r"pii: field 'a\.b' has parts") as raised:
            text_of(node(schema), "a.b")
        assert raised.value.next_step


class TestTruncation:
    @pytest.mark.parametrize(
        ("schema", "value", "count", "kept"),
        [
            ("string", "abcdef", 3, "abc"),
            ("string", "abc", 3, "abc"),
            ("string", "ab", 3, "ab"),
            ("string", "", 1, ""),
            ("string", "éèê", 2, "éè"),
            ("string", "\U0001f600b", 1, "\U0001f600"),
            ("string", "x" * 200, 100, "x" * 100),
            ("bytes", "é".encode(), 1, b"\xc3"),
            ("bytes", b"abc", 10**30, b"abc"),
        ],
        ids=repr,
    )
    def test_the_first_characters_or_bytes_stay(self, schema: str, value: Any, count: int, kept: Any) -> None:
        assert decoded(schema, truncate(node(schema), count, "f")(encoded(schema, value))) == kept

    @pytest.mark.parametrize(
        "schema",
        [
            "int",
            "boolean",
            "null",
            logical("string", "uuid"),
            logical("bytes", "decimal"),
            ["null", "string"],
        ],
        ids=str,
    )
    def test_what_is_no_text_is_refused(self, schema: Any) -> None:
        schema = {**schema, "precision": 4} if isinstance(schema, dict) else schema
        with pytest.raises(UnstageableSchema, match="'f' is not a text"):
            truncate(node(schema), 3, "f")


class TestNumbers:
    @pytest.mark.parametrize(
        ("schema", "step", "value", "rounded"),
        [
            ("int", "10", 19, 10),
            ("int", "10", 10, 10),
            ("int", "10", -1, -10),
            ("int", "1", -7, -7),
            ("int", "1000", -(2**31), -(2**31)),
            ("int", "1000", 2**31 - 1, 2_147_483_000),
            ("long", "1000", -(2**63), -(2**63)),
            ("long", str(10**30), 5, 0),
            ("long", str(10**30), -5, -(2**63)),
            ("float", "10", 19.5, 10.0),
            ("double", "10", -0.5, -10.0),
            ("double", "1", 2.0**60, 2.0**60),
        ],
        ids=str,
    )
    def test_a_number_is_rounded_down_to_a_step_and_stays_in_its_type(
        self, schema: str, step: str, value: Any, rounded: Any
    ) -> None:
        assert generalised(schema, step, value) == rounded

    @pytest.mark.parametrize("schema", ["float", "double"])
    @pytest.mark.parametrize("step", ["1", "7", "1000", str(10**31), str(10**38), str(10**307), str(10**400)])
    @pytest.mark.parametrize(
        "value", [0.0, 3.4028234663852886e38, -3.4028234663852886e38, math.inf, -math.inf, math.nan]
    )
    def test_the_largest_numbers_have_a_replacement_too(self, schema: str, step: str, value: float) -> None:
        found = generalised(schema, step, value)
        assert math.isnan(found) or found <= max(value, 0.0)

    @given(value=LONGS, step=st.integers(1, 10**19))
    @settings(max_examples=50)
    def test_a_step_says_no_more_than_its_multiple(self, value: int, step: int) -> None:
        found = generalised("long", str(step), value)
        assert found == max(value - value % step, -(2**63))


class TestTimes:
    @pytest.mark.parametrize(
        ("argument", "value", "rounded"),
        [
            ("year", "2023-11-14", "2023-01-01"),
            ("month", "2023-11-14", "2023-11-01"),
            ("year", "1970-01-01", "1970-01-01"),
            ("year", "1969-12-31", "1969-01-01"),
            ("month", "2024-02-29", "2024-02-01"),
            ("year", "0001-12-31", "0001-01-01"),
            ("month", "9999-12-31", "9999-12-01"),
        ],
    )
    def test_a_date_is_the_first_of_its_year_or_month(self, argument: str, value: str, rounded: str) -> None:
        days, first = (datetime.date.fromisoformat(each) - EPOCH for each in (value, rounded))
        assert generalised(logical("int", "date"), argument, days.days) == first.days

    @pytest.mark.parametrize("days", [-(2**31), 2**31 - 1, 2_932_897, -719_163])
    def test_a_date_that_no_calendar_has_is_the_epoch(self, days: int) -> None:
        assert generalised(logical("int", "date"), "year", days) == 0

    @pytest.mark.parametrize("prefix", ["", "local-"])
    @pytest.mark.parametrize("unit", SECOND)
    @pytest.mark.parametrize(
        ("argument", "rounded"),
        [
            ("hour", "2023-11-14T22:00:00"),
            ("day", "2023-11-14T00:00:00"),
            ("month", "2023-11-01T00:00:00"),
            ("year", "2023-01-01T00:00:00"),
        ],
    )
    def test_a_time_is_the_beginning_of_its_hour_day_month_or_year(
        self, prefix: str, unit: str, argument: str, rounded: str
    ) -> None:
        at, first = (
            int(datetime.datetime.fromisoformat(f"{each}+00:00").timestamp()) * SECOND[unit]
            for each in ("2023-11-14T22:13:20", rounded)
        )
        assert generalised(logical("long", prefix + unit), argument, at + SECOND[unit] - 1) == first

    @pytest.mark.parametrize("unit", SECOND)
    @pytest.mark.parametrize("argument", ["hour", "day", "month", "year"])
    @given(value=LONGS)
    @settings(max_examples=15)
    def test_every_time_has_a_replacement_that_is_not_later(
        self, unit: str, argument: str, value: int
    ) -> None:
        found = generalised(logical("long", f"{unit}"), argument, value)
        assert found <= value or found == 0, "0: no calendar has the value"

    @pytest.mark.parametrize("unit", SECOND)
    def test_one_before_the_epoch_is_the_day_before(self, unit: str) -> None:
        assert generalised(logical("long", unit), "day", -1) == -86_400 * SECOND[unit]
        assert generalised(logical("long", unit), "hour", -1) == -3_600 * SECOND[unit]


@pytest.mark.parametrize(
    ("schema", "argument"),
    [
        ("string", "year"),
        ("string", "10"),
        ("bytes", "ip"),
        ("int", "ip"),
        ("int", "year"),
        ("boolean", "10"),
        ("null", "10"),
        (logical("int", "date"), "day"),
        (logical("int", "date"), "hour"),
        (logical("int", "date"), "10"),
        (logical("int", "time-millis"), "hour"),
        (logical("long", "timestamp-millis"), "10"),
        (logical("long", "timestamp-millis"), "minute"),
        (logical("string", "uuid"), "ip"),
        (["null", "int"], "10"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "10"),
    ],
    ids=str,
)
def test_a_generalisation_that_does_not_fit_its_type_is_refused(schema: Any, argument: str) -> None:
    with pytest.raises(UnstageableSchema, match=f"'f' cannot be generalised to {argument}"):
        generalise(node(schema), argument, "f")


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("192.168.7.9", "192.168.7.0/24"),
            (" 0.0.0.0\n", "0.0.0.0/24"),
            ("255.255.255.255", "255.255.255.0/24"),
            ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
            ("::1", "::/48"),
            ("::ffff:192.168.7.9", "::/48"),
            ("fe80::1%eth0", "fe80::/48"),
            ("", ""),
            ("localhost", ""),
            ("192.168.7", ""),
            ("192.168.7.9/24", ""),
            ("192.168.07.9", ""),
            ("192.168.7.256", ""),
            ("3232237321", ""),
            ("192.168.7.9:80", ""),
            ("[::1]", ""),
            ("\u0661.1.1.1", ""),
            ("1" * 10_000, ""),
            ("fe80::1%", ""),
            ("fe80::1%a/b", ""),
        ],
        ids=lambda text: ascii(text)[:20],
    )
    def test_an_address_is_its_network_and_another_text_is_empty(self, text: str, found: str) -> None:
        assert network(text) == found
        assert generalised("string", "ip", text) == found

    @given(st.ip_addresses())
    @settings(max_examples=30)
    def test_an_address_lies_in_its_network(
        self, address: ipaddress.IPv4Address | ipaddress.IPv6Address
    ) -> None:
        found = ipaddress.ip_network(network(str(address)))
        assert address in found
        assert found.num_addresses == (2**8 if address.version == 4 else 2**80)


def test_a_float_is_four_bytes_and_a_double_eight() -> None:
    assert generalise(node("float"), "2", "f")(struct.pack("<f", 3.0)) == struct.pack("<f", 2.0)
    assert generalise(node("double"), "2", "f")(struct.pack("<d", 3.0)) == struct.pack("<d", 2.0)
