"""Change events in Avro: the row's schema, its bytes as another reader decodes them, and why some have none."""

from __future__ import annotations

import io
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.debezium.envelope import NoRow, unwrapped
from kbq_assets.wire.records.reasons import Reason

SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium",
    "fields": [{"name": "connector", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}],
}
ORIGIN = {"connector": "postgresql", "lsn": 7}
OP = {"name": "op", "type": "string"}
COLUMNS = {"id": "int", "name": ["null", "string"]}
ROW = {"id": 1, "name": "a"}
HSTORE = f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'
GEOMETRY = "0101000020E6100000000000FC83D797C1000000FC83D797C1"
GEOGRAPHY = "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"
FAR = "0101000000000000FC83D797C1000000FC83D797C1"
DECIMAL = {
    "type": "bytes",
    "logicalType": "decimal",
    "precision": 9,
    "scale": 2,
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}
VARIABLE = {
    "type": "record",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}


def geometry(name: str, *fields: Any) -> dict[str, Any]:
    wkb = {"name": "wkb", "type": ["null", "bytes"] if fields else "bytes"}
    srid = {"name": "srid", "type": ["null", "int"], "default": None}
    return {"type": "record", "name": f"io.debezium.data.geometry.{name}", "fields": [*fields, wkb, srid]}


POINT = geometry("Point", {"name": "x", "type": "double"}, {"name": "y", "type": "double"})


def envelope(
    columns: Mapping[str, Any] = COLUMNS, *, op: Any = "string", source: Any = SOURCE
) -> dict[str, Any]:
    row = {
        "type": "record",
        "name": "shop.orders.Value",
        "fields": [{"name": name, "type": kind} for name, kind in columns.items()],
    }
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "shop.orders.Value"]},
        {"name": "source", "type": source},
        {"name": "op", "type": op},
        {"name": "ts_ms", "type": ["null", "long"]},
    ]
    return {"type": "record", "name": "shop.orders.Envelope", "fields": fields}


def encoded(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def event(op: Any, **parts: Any) -> dict[str, Any]:
    return {"before": None, "after": None, "source": ORIGIN, "op": op, "ts_ms": 1, **parts}


def row(
    record: Any, schema: Any = None, *, has_order: bool = False, names: Mapping[str, str] | None = None
) -> Any:
    """The row of an event, as fastavro reads it."""
    schema = schema or envelope()
    rows = unwrapped(schema, lambda fields: names or {})
    body = rows(encoded(schema, record), has_order=has_order)
    data = io.BytesIO(body)
    found = fastavro.schemaless_reader(data, fastavro.parse_schema(rows.schema), None)
    assert data.read() == b""
    return found


def change(op: str, **more: Any) -> dict[str, Any]:
    return {"__op": op, "__deleted": op == "d", "__unavailable": [], "__source": ORIGIN, **more}


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_row_is_that_after_the_change(op: str) -> None:
    assert row(event(op, before={"id": 0, "name": None}, after=ROW)) == {**ROW, **change(op)}


def test_a_deletion_has_the_row_before_it() -> None:
    assert row(event("d", before=ROW)) == {**ROW, **change("d")}


def test_a_deletion_without_a_row_has_nulls() -> None:
    assert row(event("d")) == {"id": None, "name": None, **change("d")}


def test_a_truncation_has_nulls_and_needs_an_order() -> None:
    assert row(event("t", after=ROW), has_order=True) == {"id": None, "name": None, **change("t")}
    with pytest.raises(NoRow) as caught:
        row(event("t"))
    assert caught.value.reason == Reason.TABLE_TRUNCATED


@pytest.mark.parametrize(
    ("record", "reason", "message"),
    [
        pytest.param(event("m"), Reason.NO_CHANGE, "", id="message"),
        pytest.param(event("x", after=ROW), Reason.INVALID_CHANGE, "op='x'", id="unknown change"),
        pytest.param(event("y" * 99), Reason.INVALID_CHANGE, f"op='{'y' * 20}'", id="long change"),
        pytest.param(event(""), Reason.INVALID_CHANGE, "op=''", id="empty change"),
        pytest.param(event("c"), Reason.INVALID_CHANGE, "op=c, without after", id="no row"),
        pytest.param(event("u", before=ROW), Reason.INVALID_CHANGE, "op=u, without after", id="other row"),
    ],
)
def test_an_event_without_a_row_says_why(record: Any, reason: Reason, message: str) -> None:
    with pytest.raises(NoRow) as caught:
        row(record)
    assert caught.value.reason == reason
    assert caught.value.message.endswith(message)


@pytest.mark.parametrize("op", [["null", "string"], ["string", "null"]])
def test_an_operation_may_be_optional(op: list[str]) -> None:
    schema = envelope(op=op)
    if op[0] == "null":
        assert row(event("c", after=ROW), schema)["__op"] == "c"
    with pytest.raises(NoRow, match="op=''"):
        row(event(None, after=ROW), schema)


@pytest.mark.parametrize("source", [SOURCE, ["null", SOURCE]])
def test_the_source_may_be_optional(source: Any) -> None:
    assert row(event("c", after=ROW), envelope(source=source))["__source"] == ORIGIN


def test_columns_of_all_forms_keep_their_values_and_may_be_absent() -> None:
    columns = {
        "plain": "int",
        "optional": ["null", "int"],
        "last": ["int", "null"],
        "list": {"type": "array", "items": "int"},
        "lists": ["null", {"type": "array", "items": "int"}],
        "map": {"type": "map", "values": "int"},
    }
    values = {"plain": 1, "optional": None, "last": 3, "list": [1, 2], "lists": [4], "map": {"a": 5}}
    schema = envelope(columns)
    assert row(event("c", after=values), schema) == {**values, **change("c")}
    absent: dict[str, Any] = {
        "plain": None,
        "optional": None,
        "last": None,
        "list": [],
        "lists": None,
        "map": {},
    }
    assert row(event("d"), schema) == {**absent, **change("d")}


@pytest.mark.parametrize(
    ("kind", "sent", "absent"),
    [
        ("string", PLACEHOLDER, None),
        ("bytes", PLACEHOLDER.encode(), None),
        (["null", "string"], PLACEHOLDER, None),
        ({"type": "array", "items": "string"}, [PLACEHOLDER], []),
        ({"type": "array", "items": "int"}, list(PLACEHOLDER.encode()), []),
        (["null", {"type": "array", "items": ["null", "int"]}], list(PLACEHOLDER.encode()), None),
        ({"type": "map", "values": "string"}, {PLACEHOLDER: PLACEHOLDER}, {}),
        ({"type": "map", "values": ["null", "string"]}, {PLACEHOLDER: PLACEHOLDER}, {}),
        (["null", "string"], HSTORE, None),
        ({"type": "array", "items": "bytes"}, [PLACEHOLDER.encode()], []),
        ({"type": "array", "items": ["null", "float"]}, list(map(float, PLACEHOLDER.encode())), []),
        ({"type": "array", "items": "double"}, list(map(float, PLACEHOLDER.encode())), []),
        ({"type": "array", "items": {**DECIMAL}}, [Decimal(each) / 100 for each in PLACEHOLDER.encode()], []),
        ({"type": "array", "items": VARIABLE}, [{"scale": 0, "value": bytes([e])} for e in PLACEHOLDER.encode()], []),
        (["null", geometry("Geometry")], {"wkb": bytes.fromhex(GEOMETRY), "srid": 4326}, None),
        (geometry("Geography"), {"wkb": bytes.fromhex(GEOGRAPHY), "srid": 4326}, None),
        (["null", POINT], {"x": -99999999, "y": -99999999, "wkb": bytes.fromhex(FAR), "srid": None}, None),
    ],
)  # fmt: skip
def test_a_value_that_was_not_sent_is_named(kind: Any, sent: Any, absent: Any) -> None:
    schema = envelope({"id": "int", "big": kind})
    found = row(event("u", after={"id": 1, "big": sent}), schema)
    assert (found["big"], found["__unavailable"]) == (absent, ["big"])


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("string", f"{PLACEHOLDER}!"),
        ("string", ""),
        ({"type": "array", "items": "string"}, [PLACEHOLDER, "b"]),
        ({"type": "array", "items": "string"}, []),
        ({"type": "array", "items": "boolean"}, [True] * len(PLACEHOLDER)),
        ({"type": "map", "values": "string"}, {PLACEHOLDER: ""}),
        (geometry("Geometry"), {"wkb": bytes.fromhex(GEOGRAPHY), "srid": 4326}),
        (POINT, {"x": -99999999.0, "y": 1.0, "wkb": None, "srid": None}),
        ({"type": "enum", "name": "E", "symbols": ["A", PLACEHOLDER]}, PLACEHOLDER),
    ],
)
def test_other_values_are_values(kind: Any, sent: Any) -> None:
    found = row(event("u", after={"id": 1, "big": sent}), envelope({"id": "int", "big": kind}))
    assert (found["big"], found["__unavailable"]) == (sent, [])


def test_the_list_names_columns_as_the_table_does() -> None:
    schema = envelope({"id": "int", "bigText": "string", "note": "string"})
    record = event("u", after={"id": 1, "bigText": PLACEHOLDER, "note": PLACEHOLDER})
    assert row(record, schema, names={"bigText": "big_text"})["__unavailable"] == ["big_text", "note"]


def test_the_row_is_named_after_its_table() -> None:
    made = unwrapped(envelope()).schema
    assert made["name"] == "shop.orders"
    assert [field["name"] for field in made["fields"]] == [
        "id", "name", "__op", "__deleted", "__unavailable", "__source",
    ]  # fmt: skip


def test_events_without_rows_have_the_columns_of_the_change_alone() -> None:
    schema = {"type": "record", "name": "E", "fields": [{"name": "source", "type": SOURCE}, OP]}
    assert row({"source": ORIGIN, "op": "t"}, schema, has_order=True) == change("t")
    with pytest.raises(NoRow, match="op=c, without after"):
        row({"source": ORIGIN, "op": "c"}, schema)
    assert row({"source": ORIGIN, "op": "d"}, schema) == change("d")


def test_a_record_that_is_no_event_is_a_row_as_it_is() -> None:
    schema = {"type": "record", "name": "Heartbeat", "fields": [{"name": "ts_ms", "type": "long"}]}
    assert row({"ts_ms": 5}, schema) == {"ts_ms": 5}


def test_a_value_that_its_column_cannot_hold_is_out_of_range() -> None:
    zoned = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
    with pytest.raises(NoRow, match="ZonedTimestamp") as caught:
        row(event("c", after={"at": "infinity"}), envelope({"at": zoned}))
    assert caught.value.reason == Reason.OUT_OF_RANGE


DOCUMENT = {"type": "record", "name": "E", "fields": [
    {"name": "after", "type": ["null", "string"]}, {"name": "source", "type": SOURCE}, OP]}  # fmt: skip
RECURSIVE = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param("string", "it is not a record", id="no record"),
        pytest.param(RECURSIVE, "record 'R' contains itself", id="recursive"),
        pytest.param(DOCUMENT, "documents, not rows", id="documents of MongoDB"),
        pytest.param(envelope({"__op": "int"}), "the column '__op' collides", id="name of the change's"),
        pytest.param(envelope({"__DELETED": "int"}), "'__DELETED' collides", id="the same in capitals"),
        pytest.param(envelope({"a": ["int", "string"]}), "'a' is a union without null", id="union"),
    ],
)
def test_a_schema_that_gives_no_rows_says_why(schema: Any, message: str) -> None:
    with pytest.raises(UnstageableSchema, match=message) as caught:
        unwrapped(schema)
    assert caught.value.next_step
