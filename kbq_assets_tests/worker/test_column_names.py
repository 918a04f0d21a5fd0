"""A topic with `column_names=snake_case`: its rows, whatever its format, and the options that name fields."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from typing import Any

import fastavro
import pytest

from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench
from kbq_assets_tests.worker.debezium import events

T = TableReference("d", "t")
NOW = 20_000 * 86_400_000
DAY = {"type": "int", "logicalType": "date"}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "zipCode", "type": "string"}]}
FIELDS = [
    {"name": "orderId", "type": "long"},
    {"name": "orderedOn", "type": DAY},
    {"name": "shipTo", "type": ADDRESS},
    {"name": "lineItems", "type": {"type": "array", "items": "Address"}},
    {"name": "eMail", "type": ["null", "string"]},
]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
RECORD = {
    "orderId": 7,
    "orderedOn": 20_000,
    "shipTo": {"zipCode": "8000"},
    "lineItems": [{"zipCode": "9000"}],
    "eMail": "ann@example.com",
}


#: The same columns as Connect's converter describes them in JSON.
CONNECT_COLUMNS = [
    {"type": kind, "optional": name == "eventDate", "field": name}
    for name, kind in (("orderId", "int32"), ("eMail", "string"), ("eventDate", "string"))
]


def bench_of(**settings: Any) -> Bench:
    """Its registry has the order as schema 1, and as schema 2 with a text as its id."""
    options = {"dataset": "d", "table": "t", "column_names": "snake_case", **settings}
    bench = Bench(TopicSettings.of(**options), keep_records=True)
    text = [{"name": "orderId", "type": "string"}, *FIELDS[1:]]
    bench.registry = FakeRegistry({1: json.dumps(ORDER), 2: json.dumps({**ORDER, "fields": text})})
    return bench


def row_of(bench: Bench) -> dict[str, Any]:
    """The one row that an extraction and a load make; nothing is lost, and reading it again finds the same."""
    report = bench.extract()
    assert (report.stops, report.failures) == ((), {})
    assert [t.message for t in bench.load(topics=lambda _: {TOPIC: bench.settings}).tables if t.message] == []
    assert bench.reconcile().accounted
    [row] = bench.warehouse.records(T)
    return dict(row)


def avro(record: dict[str, Any], schema_id: int = 1) -> bytes:
    text = [{"name": "orderId", "type": "string"}, *FIELDS[1:]]
    schema = ORDER if schema_id == 1 else {**ORDER, "fields": text}
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return struct.pack(">bI", 0, schema_id) + body.getvalue()


def test_columns_of_avro_records_are_in_snake_case_and_the_values_are_the_record_s() -> None:
    bench = bench_of(event_date="orderedOn")
    bench.kafka.produce(TP, avro(RECORD), key=b"k", timestamp=NOW)
    row = row_of(bench)
    assert {name for name in row if not name.startswith("_k")} == {
        "order_id",
        "ordered_on",
        "ship_to",
        "line_items",
        "e_mail",
        "_event_time",
        "event_date",
    }
    assert (row["order_id"], row["ship_to"], row["line_items"]) == (
        7,
        {"zip_code": "8000"},
        [{"zip_code": "9000"}],
    )
    assert row["event_date"] == row["ordered_on"]  # the option names the field of the schema


def test_columns_of_json_documents_are_in_snake_case() -> None:
    bench = bench_of(format="json_columns")
    bench.kafka.produce(TP, b'{"orderId": 7, "shipTo": {"zipCode": "8000"}}', key=b"k", timestamp=NOW)
    row = row_of(bench)
    assert (row["order_id"], row["ship_to"]) == (7, {"zip_code": "8000"})


@pytest.mark.parametrize("statement", [{}, {"load": "upsert", "key": "order_id"}])
def test_a_later_key_of_documents_does_not_get_the_column_of_another(statement: dict[str, str]) -> None:
    bench = bench_of(format="json_columns", **statement)
    first, later = (
        {"orderId": 7, "to": {"zipCode": 1}},
        {"orderId": 8, "to": {"zipCode": 2, "zip_code": 3}, "order_id": 9},
    )
    for document in (first, later):
        bench.kafka.produce(TP, json.dumps(document).encode(), key=b"k", timestamp=NOW)
        bench.extract()
    bench.load(topics=lambda _: {TOPIC: bench.settings})
    rows = [(row["order_id"], row["to"]["zip_code"]) for row in bench.warehouse.records(T)]
    assert sorted(rows) == [(7, 1), (8, 2)]
    [row] = [row for row in bench.warehouse.records(T) if row["order_id"] == 8]
    assert (row["order_id_2"], row["to"]["zip_code_2"]) == (9, 3)


def test_columns_of_protobuf_messages_are_in_snake_case() -> None:
    bench = bench_of(format="protobuf")
    bench.registry.messages = {
        7: """syntax = "proto3"; message Item { int32 lineCount = 1; }
        message Order { int64 orderId = 1; Item firstItem = 2; repeated Item lineItems = 3; }"""
    }
    message = (
        b"\x08\x07" + b"\x12\x02\x08\x08" + b"\x1a\x02\x08\x09"
    )  # field 1: 7, field 2: {8}, field 3: {9}
    bench.kafka.produce(TP, b"\0\0\0\0\x07\x02\x02" + message, key=b"k", timestamp=NOW)
    row = row_of(bench)
    assert (row["order_id"], row["first_item"], row["line_items"]) == (
        7,
        {"line_count": 8},
        [{"line_count": 9}],
    )


@pytest.mark.parametrize("encode", ["avro", "with_schema", "bare"])
def test_columns_of_changed_rows_are_in_snake_case_and_so_are_the_names_of_unavailable_ones(
    encode: str,
) -> None:
    bench = bench_of(format="debezium")
    columns = {"orderId": "int", "eMail": "string", "eventDate": ["null", "string"]}
    schema = events.avro_envelope(columns)
    bench.registry.schemas = {events.ENVELOPE_ID: json.dumps(schema)}
    after = {"orderId": 7, "eMail": PLACEHOLDER, "eventDate": PLACEHOLDER}
    change = {**events.UPDATE, "before": None, "after": after}
    value = {
        "avro": lambda: events.encoded(schema, change),
        "with_schema": lambda: events.wrapped(change, CONNECT_COLUMNS),
        "bare": lambda: events.bare(change),
    }[encode]()
    bench.kafka.produce(TP, value, key=b"k", timestamp=NOW)
    row = row_of(bench)
    # `event_date` is KBQ's own, so the field keeps its name.
    assert (row["order_id"], row["__op"], row["__unavailable"]) == (7, "u", ["e_mail", "eventDate"])
    if encode != "bare":  # whose columns begin with their first value
        assert (row["e_mail"], row["eventDate"]) == (None, None)


def test_a_document_with_both_spellings_fills_both_columns() -> None:
    bench = bench_of(format="json_columns")
    bench.kafka.produce(TP, b'{"orderId": 7, "order_id": 8}', key=b"k", timestamp=NOW)
    row = row_of(bench)
    assert (row["order_id"], row["order_id_2"]) == (7, 8)


def test_personal_data_is_decided_by_the_field_and_stored_under_the_column() -> None:
    bench = bench_of(pii="eMail:pseudonym")
    bench.pseudonyms = Pseudonyms("k1", {"k1": b"s" * 32})
    bench.kafka.produce(TP, avro(RECORD), key=b"k", timestamp=NOW)
    row = row_of(bench)
    assert row["e_mail"] and "ann" not in row["e_mail"] and "eMail" not in row


def test_a_schema_that_contradicts_the_table_gets_a_variant_of_the_renamed_column() -> None:
    bench = bench_of(on_incompatible="variant_column")
    bench.kafka.produce(TP, avro(RECORD), key=b"k", timestamp=NOW)
    bench.kafka.produce(TP, avro({**RECORD, "orderId": "seven"}, 2), key=b"k", timestamp=NOW)
    bench.extract()
    bench.load(topics=lambda _: {TOPIC: bench.settings})
    rows = sorted(bench.warehouse.records(T), key=lambda row: int(row["_kafka_offset"]))
    assert [(row.get("order_id"), row.get("order_id__string")) for row in rows] == [
        (7, None),
        (None, "seven"),
    ]


@pytest.mark.parametrize("column_names, name", [("schema", "orderId"), ("snake_case", "order_id")])
def test_names_stay_the_schema_s_unless_asked(column_names: str, name: str) -> None:
    bench = bench_of(column_names=column_names)
    bench.kafka.produce(TP, avro(RECORD), key=b"k", timestamp=NOW)
    assert row_of(bench)[name] == 7
