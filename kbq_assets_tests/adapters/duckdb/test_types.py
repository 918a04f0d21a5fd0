"""Every Avro type reaches DuckDB unchanged: DuckDB returns what fastavro wrote."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.loading.tables import Column, columns_of, plan_table_change
from kbq_assets.wire.arrow.container import Block, read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets_tests.sizes import examples


def logical(kind: str, logical_type: str, /, **extra: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **extra}


def schema_of(*types: Any) -> str:
    """A record of fields f0, f1, …"""
    fields = [{"name": f"f{i}", "type": avro} for i, avro in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "namespace": "top", "fields": fields})


def loaded(
    schema: str, records: list[dict[str, Any]], columns: tuple[Column, ...] | None = None
) -> list[Any]:
    """Write records by fastavro, load them, read them back as tuples of Python values."""
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(schema), records, sync_interval=100)
    return loaded_file(stream.getvalue(), columns or columns_of(schema))


def loaded_file(data: bytes, columns: tuple[Column, ...]) -> list[Any]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE t ({', '.join(map(definition, columns))})")
        StagedFileLoader(connection, "t", columns, lambda _: io.BytesIO(data)).load(["file:///a"])
        rows = connection.execute("SELECT * FROM t").fetchall()
    return [tuple(utc(value) for value in row) for row in rows]


def utc(value: Any) -> Any:
    """DuckDB's own UTC as Python's."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "double"]}],
}
DECIMAL = logical("bytes", "decimal", precision=38, scale=9)
BIG = logical("bytes", "decimal", precision=76, scale=38)
MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL = logical("long", "local-timestamp-micros")
JSON = {"type": "string", "sqlType": "JSON"}


@pytest.mark.parametrize(
    ("avro", "value", "expected"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -(2**63), -(2**63)),
        ("float", 0.5, 0.5),
        ("double", 1e308, 1e308),
        ("double", float("-inf"), float("-inf")),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("string", "", ""),
        ("string", "zero \0, quote ', é 🙂", "zero \0, quote ', é 🙂"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
        (logical("fixed", "duration", name="D", size=12), b"x" * 12, b"x" * 12),
        (logical("string", "uuid"), UUID(int=7), str(UUID(int=7))),
        (logical("int", "date"), date(1, 1, 1), date(1, 1, 1)),
        (logical("int", "date"), date(9999, 12, 31), date(9999, 12, 31)),
        (logical("int", "time-millis"), time(23, 59, 59, 999000), time(23, 59, 59, 999000)),
        (logical("long", "time-micros"), time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
        (
            MILLIS,
            datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        ),
        (MICROS, datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        (
            MICROS,
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        ),
        (logical("long", "local-timestamp-millis"), datetime(2024, 2, 29, 1), datetime(2024, 2, 29, 1)),
        (LOCAL, datetime(2024, 2, 29, 1, 2, 3, 4), datetime(2024, 2, 29, 1, 2, 3, 4)),
        (logical("long", "timestamp-nanos"), 5, 5),
        (DECIMAL, Decimal("-" + "9" * 29 + ".999999999"), Decimal("-" + "9" * 29 + ".999999999")),
        (logical("bytes", "decimal", precision=4, scale=2), Decimal("-1.50"), Decimal("-1.500000000")),
        (
            logical("fixed", "decimal", precision=10, scale=3, name="X", size=6),
            Decimal("7.125"),
            Decimal("7.125"),
        ),
        (
            BIG,
            Decimal("-12345678901234567890123456789012345678.1"),
            "-12345678901234567890123456789012345678.1",
        ),
        (
            BIG,
            Decimal("0.00000000000000000000000000000000000001"),
            "0.00000000000000000000000000000000000001",
        ),
        (BIG, Decimal(0), "0"),
        (logical("string", "decimal", precision=5, scale=1), "text", "text"),
        (logical("bytes", "decimal", precision=60, scale=0), Decimal("-" + "7" * 60), "-" + "7" * 60),
        (
            logical("bytes", "decimal", precision=60, scale=50),
            Decimal("0." + "0" * 49 + "5"),
            "0." + "0" * 49 + "5",
        ),
        (["null", logical("bytes", "decimal", precision=60, scale=50)], None, None),
        (BIG, Decimal(-100), "-100"),
        (JSON, '{"a": [1, null]}', '{"a": [1, null]}'),
        ({"type": "string", "sqlType": "GEOGRAPHY"}, "POINT(1 2)", "POINT(1 2)"),
        (POINT, {"x": 1, "y": None}, {"x": 1, "y": None}),
        (["null", POINT], None, None),
        (["null", POINT], {"x": 1, "y": 2.5}, {"x": 1, "y": 2.5}),
        ({"type": "array", "items": "string"}, [], []),
        ({"type": "array", "items": ["null", "int"]}, [1, None, 2], [1, None, 2]),
        ({"type": "array", "items": POINT}, [{"x": 1, "y": None}], [{"x": 1, "y": None}]),
        (["null", {"type": "array", "items": MILLIS}], None, []),
        (["null", {"type": "array", "items": LOCAL}], [datetime(2024, 1, 1)], [datetime(2024, 1, 1)]),
        (
            {"type": "map", "values": "long"},
            {"a": 1, "é": 2},
            [{"key": "a", "value": 1}, {"key": "é", "value": 2}],
        ),
        (
            {"type": "map", "values": {"type": "array", "items": "int"}},
            {"a": [1]},
            [{"key": "a", "value": [1]}],
        ),
        (
            ["null", {"type": "map", "values": ["null", DECIMAL]}],
            {"a": Decimal(2)},
            [{"key": "a", "value": Decimal(2)}],
        ),
        (["null", "int", "string"], None, None),
        (["null", "int", "string"], "x", {"int_value": None, "string_value": "x"}),
        (["int", "long", "double"], 5, {"int_value": 5, "long_value": None, "double_value": None}),
        (["int", "long", "double"], 2**40, {"int_value": None, "long_value": 2**40, "double_value": None}),
        (
            ["string", POINT, BIG],
            ("top.Point", {"x": 1, "y": 1.0}),
            {"string_value": None, "Point_value": {"x": 1, "y": 1.0}, "bytes_value": None},
        ),
        (
            ["string", POINT, BIG],
            Decimal("1.5"),
            {"string_value": None, "Point_value": None, "bytes_value": "1.5"},
        ),
        (
            {"type": "array", "items": ["int", "string"]},
            [1, "a"],
            [{"int_value": 1, "string_value": None}, {"int_value": None, "string_value": "a"}],
        ),
        (["int", {"type": "array", "items": MICROS}], 3, {"int_value": 3, "array_value": []}),
        (
            ["int", {"type": "map", "values": "int"}],
            {"k": 1},
            {"int_value": None, "map_value": [{"key": "k", "value": 1}]},
        ),
        (["int"], 4, 4),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_value_of_each_type_is_loaded_as_it_is(avro: Any, value: Any, expected: Any) -> None:
    assert loaded(schema_of(avro), [{"f0": value}]) == [(expected,)]


@pytest.mark.parametrize("avro", ["null", ["null"], {"type": "array", "items": "null"}], ids=str)
def test_what_has_no_column_is_left_out(avro: Any) -> None:
    value = [None, None] if isinstance(avro, dict) else None
    assert loaded(schema_of("int", avro, "int"), [{"f0": 1, "f1": value, "f2": 3}]) == [(1, 3)]


def test_a_named_type_used_twice_is_loaded_twice() -> None:
    schema = schema_of(POINT, ["null", "Point"], {"type": "array", "items": "top.Point"})
    point = {"x": 1, "y": 2.0}
    assert loaded(schema, [{"f0": point, "f1": point, "f2": [point]}]) == [(point, point, [point])]


def test_fields_are_matched_by_name_at_every_level() -> None:
    wide = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "b", "type": "int"}, {"name": "A", "type": "string"}],
    }
    table = (
        Column("f1", "INT64"),
        Column("missing", "STRING", "REPEATED"),
        Column(
            "F0",
            "STRUCT",
            "NULLABLE",
            (
                Column("a", "STRING"),
                Column("c", "DATE"),
                Column("d", "INT64", "REPEATED"),
                Column("B", "INT64"),
            ),
        ),
        Column("late", "NUMERIC"),
    )
    rows = loaded(schema_of(wide, "int"), [{"f0": {"b": 1, "A": "x"}, "f1": 2}], table)
    assert rows == [(2, [], {"a": "x", "c": None, "d": [], "B": 1}, None)]


@pytest.mark.parametrize(
    ("avro", "value", "problem"),
    [
        (logical("int", "date"), 2_932_897, "out of the range of DATE"),
        (logical("int", "date"), -719_163, "out of the range of DATE"),
        (MICROS, 253_402_300_800_000_000, "out of the range of TIMESTAMP"),
        (MICROS, -62_135_596_800_000_001, "out of the range of TIMESTAMP"),
        (MILLIS, 253_402_300_800_000, "out of the range of TIMESTAMP"),
        (MILLIS, 2**63 - 1, "out of the range of TIMESTAMP"),
        (MILLIS, -62_135_596_800_001, "out of the range of TIMESTAMP"),
        (logical("int", "time-millis"), 86_400_000, "out of the range of TIME"),
        (logical("long", "time-micros"), -1, "out of the range of TIME"),
        ({"type": "array", "items": MILLIS}, [0, 2**62], "out of the range of TIMESTAMP"),
        (logical("bytes", "decimal", precision=38, scale=9), b"\x7f" * 16, "out of the range of NUMERIC"),
        (logical("bytes", "decimal", precision=76, scale=38), b"\x7f" * 33, "out of the range of BIGNUMERIC"),
        (JSON, "{broken", "Malformed JSON"),
        ({"type": "array", "items": JSON}, ["1", ""], "JSON"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_value_bigquery_cannot_hold_is_refused(avro: Any, value: Any, problem: str) -> None:
    plain = json.loads(schema_of(avro).replace('"logicalType"', '"ignored"'))
    stream = io.BytesIO()
    fastavro.writer(stream, plain, [{"f0": value}])
    data = with_schema(stream.getvalue(), schema_of(avro))
    with pytest.raises(Exception, match=problem) as caught:
        loaded_file(data, columns_of(schema_of(avro)))
    assert "file:///a" in str(caught.value)


def test_a_type_in_two_coats_is_loaded() -> None:
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(schema_of("string")), [{"f0": "x"}])
    schema = schema_of({"type": {"type": {"type": "string"}}})
    assert loaded_file(with_schema(stream.getvalue(), schema), columns_of(schema)) == [("x",)]


def with_schema(data: bytes, schema: str) -> bytes:
    """A container file under another schema."""
    source = io.BytesIO(data)
    entries = {b"avro.schema": schema.encode(), b"avro.codec": b"null"}
    header = b"".join(avro_bytes(key) + avro_bytes(value) for key, value in entries.items())
    blocks = b"".join(
        zigzag(block.count) + avro_bytes(block.data) + b"s" * 16
        for block in read_blocks(source, read_header(source))
    )
    return b"Obj\x01" + zigzag(2) + header + b"\0" + b"s" * 16 + blocks


def avro_bytes(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def zigzag(number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", number)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("count", "data"), [(1, b"\x02\x02"), (2, b"\x02"), (0, b"\x02"), (1, b""), (1, b"\x80")]
)
def test_a_block_that_its_records_do_not_fill_is_refused(count: int, data: bytes) -> None:
    decoder = Decoder(schema_of("int"), columns_of(schema_of("int")))
    assert decoder.records(Block(1, b"\x02")) == [{"f0": 1}]
    with pytest.raises(BadFile):
        decoder.records(Block(count, data))


# Anything at all

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("bytes", st.binary(max_size=5)),
    ("string", st.text(max_size=5)),
    (logical("int", "date"), st.dates()),
    (logical("long", "time-micros"), st.times()),
    (MICROS, st.datetimes(timezones=st.just(UTC))),
    (LOCAL, st.datetimes()),
    (logical("bytes", "decimal", precision=20, scale=6), st.decimals(-(10**13), 10**13, places=6)),
]


@st.composite
def shapes(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:
    """An Avro type of any nesting, names left out, and a strategy of (value, what DuckDB shows)."""
    kinds = ["scalar", "nullable"] if not depth else ["scalar", "nullable", "record", "array", "map", "union"]
    kind = draw(st.sampled_from(kinds))
    if kind in ("scalar", "nullable"):
        avro, values = draw(st.sampled_from(SCALARS))
        pairs = values.map(lambda v: (v, v))
        return (
            (["null", avro], st.one_of(st.just((None, None)), pairs)) if kind == "nullable" else (avro, pairs)
        )
    if kind == "record":
        members = draw(st.lists(shapes(depth=depth - 1), min_size=1, max_size=3))
        fields = [{"name": f"m{i}", "type": avro} for i, (avro, _) in enumerate(members)]
        values = st.tuples(*(v for _, v in members)).map(
            lambda t: ({f"m{i}": p[0] for i, p in enumerate(t)}, {f"m{i}": p[1] for i, p in enumerate(t)})
        )
        return {"type": "record", "name": "?", "fields": fields}, values
    if kind == "union":
        text, number = draw(st.sampled_from([("string", "long"), ("bytes", "boolean"), ("long", "string")]))
        by_name = {avro: values for avro, values in SCALARS if isinstance(avro, str)}
        blank = {f"{text}_value": None, f"{number}_value": None}
        branches = [branch(by_name[name], name, blank) for name in (text, number)]
        return ["null", text, number], st.one_of(st.just((None, None)), *branches)
    inner, values = draw(shapes(depth=depth - 1).filter(lambda s: not repeated(s[0])))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3).map(
            lambda pairs: ([p[0] for p in pairs], [p[1] for p in pairs])
        )
    maps = st.dictionaries(st.text(max_size=3), values, max_size=3)
    return {"type": "map", "values": inner}, maps.map(
        lambda d: ({k: p[0] for k, p in d.items()}, [{"key": k, "value": p[1]} for k, p in d.items()])
    )


def branch(values: st.SearchStrategy[Any], name: str, blank: dict[str, None]) -> st.SearchStrategy[Any]:
    return values.map(lambda value: (value, {**blank, f"{name}_value": value}))


def repeated(avro: Any) -> bool:
    return isinstance(avro, dict) and avro["type"] in ("array", "map")


def named(avro: Any) -> Any:
    """Give each record a unique name."""
    text = json.dumps(avro)
    for number in range(text.count('"?"')):
        text = text.replace('"?"', f'"n{number}"', 1)
    return json.loads(text)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_records_of_any_schema_come_back_as_they_were(data: st.DataObject) -> None:
    parts = data.draw(st.lists(shapes(), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.tuples(*(values for _, values in parts)), min_size=1, max_size=4))
    schema = json.dumps(named(json.loads(schema_of(*(avro for avro, _ in parts)))))
    written = [{f"f{i}": pair[0] for i, pair in enumerate(row)} for row in rows]
    assert loaded(schema, written) == [tuple(pair[1] for pair in row) for row in rows]
    assert not plan_table_change(schema, columns_of(schema))
