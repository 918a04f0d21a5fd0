"""Change events of Debezium become rows: its documented examples, in each encoding."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate import commands
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench
from kbq_assets_tests.worker.debezium import events
from kbq_assets_tests.worker.debezium.events import (
    ANNE,
    ANNE_MARIE,
    CREATE,
    DELETE,
    ENVELOPE_ID,
    MESSAGE,
    READ,
    SCHEMA_CHANGE,
    TRUNCATE,
    UPDATE,
    avro_envelope,
    bare,
    encoded,
    in_avro,
    wrapped,
)

Encode = Callable[[Mapping[str, Any]], bytes]
ENCODINGS = pytest.mark.parametrize("encode", [in_avro, wrapped, bare])


def bench_of(*values: bytes | None, partitions: int = 1, **options: Any) -> Bench:
    settings = TopicSettings.of(dataset="d", **{"table": "t", "format": "debezium", **options})
    bench = Bench(settings, partitions=partitions)
    bench.registry.schemas = {**bench.registry.schemas, ENVELOPE_ID: json.dumps(avro_envelope())}
    for value in values:
        bench.kafka.produce(TP, value, key=b'{"id": 1}', timestamp=1000)
    return bench


def rows(bench: Bench, *, errors: bool = False) -> list[Any]:
    files = [file for window in bench.commit().partitions[0].windows for file in window.files]
    wanted = [file for file in files if (file.table.table == "kbq_errors") is errors]
    read = [row for f in wanted for row in fastavro.reader(io.BytesIO(bench.store.get(f.path).data))]
    return sorted(read, key=lambda row: int(row["_kafka_offset"]))


def accounted(bench: Bench) -> bool:
    bench.load()
    return bench.reconcile().accounted


def staged(bench: Bench) -> list[Any]:
    assert bench.extract().stops == ()
    return rows(bench)


@ENCODINGS
def test_the_documented_examples_are_rows_of_the_table(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), encode(UPDATE), encode(READ))
    found = staged(bench)
    assert [(row["__op"], row["__deleted"]) for row in found] == [("c", False), ("u", False), ("r", False)]
    assert [{name: row[name] for name in ANNE} for row in found] == [ANNE, ANNE_MARIE, ANNE]
    assert [row["__source"]["table"] for row in found] == ["customers"] * 3
    assert [row["__source"]["lsn"] for row in found] == [24023128] * 3
    assert [row["__source"]["ts_ms"] for row in found] == [1559033904863] * 3
    assert accounted(bench)


@ENCODINGS
def test_a_deleted_row_is_a_row_that_says_so(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), encode(DELETE), None, tombstones="skip")
    _, deleted = staged(bench)
    assert (deleted["id"], deleted["__op"], deleted["__deleted"]) == (1, "d", True)
    assert deleted.get("first_name") in (None, "")  # as the converter sends it
    assert deleted["__source"]["lsn"] == 46523128
    assert bench.commit().partitions[0].totals.skipped == 1  # the tombstone
    assert accounted(bench)


@ENCODINGS
def test_a_deleted_row_with_a_key_alone_has_the_decoded_key(encode: Encode) -> None:
    bench = bench_of(encode({**DELETE, "before": None}), key_format="json")
    [row] = staged(bench)
    assert (row["__op"], row["__deleted"], row["_key"]) == ("d", True, '{"id": 1}')
    assert row.get("id") is None


@ENCODINGS
def test_a_changed_primary_key_arrives_as_delete_and_create(encode: Encode) -> None:
    moved = {**CREATE, "after": {**ANNE, "id": 2}}
    bench = bench_of(encode(DELETE), None, encode(moved), tombstones="skip")
    assert [(row["id"], row["__op"]) for row in staged(bench)] == [(1, "d"), (2, "c")]


@ENCODINGS
def test_a_truncated_table_of_one_partition_is_an_event_among_its_rows(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), encode(TRUNCATE), encode(CREATE))
    _, row, _ = staged(bench)
    assert (row["__op"], row["__deleted"], row["id"], row["email"]) == ("t", False, None, None)
    assert accounted(bench)


@ENCODINGS
def test_a_truncated_table_of_several_partitions_stops_with_a_way_back(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), encode(TRUNCATE), encode(CREATE), partitions=2)
    [stop] = bench.extract().stops
    assert stop.reason == "table_truncated"
    assert "rows of several partitions have no order" in stop.message
    commands.propose_resume(bench.store, TOPIC, as_errors=True).apply()
    assert [row["__op"] for row in staged(bench)] == ["c", "c"]
    [row] = rows(bench, errors=True)
    assert (row["reason"], row["value"]) == ("TABLE_TRUNCATED", encode(TRUNCATE))
    assert accounted(bench)


@pytest.mark.parametrize("errors", ["fail", "skip", "error_table"])
def test_messages_are_skipped_and_counted_whatever_the_policy_for_bad_records(errors: str) -> None:
    schema = {"type": "struct", "fields": events.envelope_schema()["fields"][2:4], "name": "m.Envelope"}
    with_schema = json.dumps({"schema": schema, "payload": MESSAGE}).encode()
    bench = bench_of(bare(MESSAGE), with_schema, bare(CREATE), errors=errors, error_share_records=1)
    assert len(staged(bench)) == 1
    assert rows(bench, errors=True) == []
    totals = bench.commit().partitions[0].totals
    assert (totals.records, totals.skipped, totals.errors) == (3, 2, 0)
    assert accounted(bench)


def test_a_schema_change_is_a_row_as_it_is() -> None:
    bench = bench_of(bare(SCHEMA_CHANGE))
    [row] = staged(bench)
    assert (row["databaseName"], row["ddl"]) == ("inventory", SCHEMA_CHANGE["ddl"])
    assert "__op" not in row
    schema = {
        "type": "record",
        "name": "SchemaChangeValue",
        "fields": [{"name": "ddl", "type": ["null", "string"]}, {"name": "ts_ms", "type": "long"}],
    }
    bench = bench_of(encoded(schema, {"ddl": "DROP TABLE x", "ts_ms": 5}))
    bench.registry.schemas = {ENVELOPE_ID: json.dumps(schema)}
    [row] = staged(bench)
    assert (row["ddl"], row["ts_ms"]) == ("DROP TABLE x", 5)


NUMBERS = list(PLACEHOLDER.encode())


@ENCODINGS
def test_a_value_that_the_database_did_not_send_is_null_and_named(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), encode({**UPDATE, "after": {**ANNE, "email": PLACEHOLDER}}))
    created, updated = staged(bench)
    assert (created.get("__unavailable") or [], updated["__unavailable"]) == ([], ["email"])
    assert (updated["email"], updated["first_name"]) == (None, "Anne")


@pytest.mark.parametrize(
    ("kind", "sent", "empty"),
    [
        ({"type": "string", "connect.name": "io.debezium.data.Json"}, PLACEHOLDER, None),
        ("bytes", PLACEHOLDER.encode(), None),
        (["null", "bytes"], PLACEHOLDER.encode(), None),
        ({"type": "array", "items": "string"}, [PLACEHOLDER], []),
        (["null", {"type": "array", "items": ["null", "string"]}], [PLACEHOLDER], None),
        ({"type": "array", "items": "int"}, NUMBERS, []),
        ({"type": "array", "items": ["null", "long"]}, NUMBERS, []),
        ({"type": "map", "values": ["null", "string"]}, {PLACEHOLDER: PLACEHOLDER}, {}),
    ],
)
def test_unavailable_values_of_every_type_are_known(kind: Any, sent: Any, empty: Any) -> None:
    schema = avro_envelope({"id": "int", "v": kind})
    record = {**UPDATE, "before": None, "after": {"id": 1, "v": sent}}
    bench = bench_of(encoded(schema, record))
    bench.registry.schemas = {ENVELOPE_ID: json.dumps(schema)}
    bench.extract()
    [row] = rows(bench)
    assert (row["id"], row["v"], row["__unavailable"]) == (1, empty, ["v"])


DAY, NOON = date(2018, 6, 20), time(12, 0, 0, 1000)
STAMP = datetime(2018, 6, 20, 15, 13, 16, 945104, UTC)  # the documented value
MICROS = 1529507596945104
TYPES: list[tuple[str, str, dict[str, Any], Any, Any]] = [
    # the logical type's name, its Connect type, its parameters, the value in JSON, and what the column has
    ("io.debezium.time.Date", "int32", {}, 17702, DAY),
    ("org.apache.kafka.connect.data.Date", "int32", {}, 17702, DAY),
    ("io.debezium.time.Time", "int32", {}, 43200001, NOON),
    ("io.debezium.time.MicroTime", "int64", {}, 43200001000, NOON),
    ("io.debezium.time.NanoTime", "int64", {}, 43200001000999, NOON),
    ("io.debezium.time.Timestamp", "int64", {}, MICROS // 1000, STAMP.replace(microsecond=945000)),
    (
        "org.apache.kafka.connect.data.Timestamp",
        "int64",
        {},
        MICROS // 1000,
        STAMP.replace(microsecond=945000),
    ),
    ("io.debezium.time.MicroTimestamp", "int64", {}, MICROS, STAMP),
    ("io.debezium.time.NanoTimestamp", "int64", {}, MICROS * 1000 + 999, STAMP),
    ("io.debezium.time.ZonedTimestamp", "string", {}, "2018-06-20T17:13:16.945104+02:00", STAMP),
    ("io.debezium.time.ZonedTimestamp", "string", {}, "2018-06-20T15:13:16.945104Z", STAMP),
    ("io.debezium.data.Uuid", "string", {}, "a", "a"),
    ("io.debezium.time.Year", "int32", {}, 2018, 2018),
    ("org.apache.kafka.connect.data.Decimal", "bytes", {"scale": "2"}, "AN1u", Decimal("566.86")),
    ("org.apache.kafka.connect.data.Decimal", "bytes", {"scale": "2"}, -566.86, Decimal("-566.86")),
]


@pytest.mark.parametrize(("name", "kind", "parameters", "sent", "expected"), TYPES)
@pytest.mark.parametrize("optional", [False, True])
def test_logical_types_in_json_become_the_databases_types(
    name: str, kind: str, parameters: dict[str, Any], sent: Any, expected: Any, optional: bool
) -> None:
    more = {"parameters": parameters} if parameters else {}
    column = {"type": kind, "optional": optional, "name": name, "field": "v", **more}
    bench = bench_of(wrapped({**UPDATE, "after": {"v": sent}}, [column]))
    [row] = staged(bench)
    assert row["v"] == expected


def test_logical_types_in_avro_become_the_databases_types_inside_lists_too() -> None:
    micros = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.NanoTimestamp"}
    decimal = {
        "type": "bytes",
        "scale": 2,
        "precision": 64,
        "logicalType": "decimal",
        "connect.parameters": {"scale": "2"},
        "connect.name": "org.apache.kafka.connect.data.Decimal",
    }
    variable = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }
    point = {"name": "Geometry", "type": "record", "namespace": "io.debezium.data.geometry"}
    geometry = {
        **point,
        "fields": [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"]}],
    }
    columns = {
        "all": {"type": "array", "items": micros},
        "named": {"type": "map", "values": micros},
        "price": ["null", decimal],
        "exact": ["null", variable],
        "place": geometry,
    }
    schema = avro_envelope(columns)
    after = {
        "all": [MICROS * 1000, 1000],
        "named": {"a": 1000},
        "price": Decimal("5.67"),
        "exact": {"scale": 3, "value": (-12345).to_bytes(2, "big", signed=True)},
        "place": {"wkb": b"w", "srid": 4326},
    }
    bench = bench_of(encoded(schema, {**UPDATE, "before": None, "after": after}))
    bench.registry.schemas = {ENVELOPE_ID: json.dumps(schema)}
    [row] = staged(bench)
    first = datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    assert (row["all"], row["named"]) == ([STAMP, first], {"a": first})
    assert (row["price"], row["exact"]) == (Decimal("5.67"), Decimal("-12.345"))
    assert row["place"] == {"wkb": b"w", "srid": 4326}
    assert accounted(bench)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (in_avro({**UPDATE, "after": None}), "INVALID_CHANGE"),
        (bare({**UPDATE, "after": "a document"}), "INVALID_CHANGE"),
        (bare({**UPDATE, "after": {"id": 1, "__op": "mine"}}), "INVALID_CHANGE"),
        (wrapped({**UPDATE, "op": "x"}), "INVALID_CHANGE"),
        (wrapped({**UPDATE, "after": {"id": "one"}}), "INVALID_CHANGE"),
        (in_avro(UPDATE)[:-1], "TRUNCATED"),
        (b"\x00\x00", "TOO_SHORT"),
        (b"{", "INVALID_JSON"),
        (b"", "TOO_SHORT"),
    ],
)
def test_an_event_that_is_no_change_is_an_error_row(value: bytes, reason: str) -> None:
    bench = bench_of(bare(CREATE), value)
    assert len(staged(bench)) == 1
    [row] = rows(bench, errors=True)
    assert (row["reason"], row["value"]) == (reason, value)


def test_an_infinite_timestamp_is_an_error_row_that_names_its_column() -> None:
    column = {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "until"}
    bench = bench_of(wrapped({**UPDATE, "after": {"until": 9223372036825200000}}, [column]))
    bench.extract()
    [row] = rows(bench, errors=True)
    assert row["reason"] == "OUT_OF_RANGE"
    assert "field until" in row["message"]


@pytest.mark.parametrize(
    ("value", "reason", "why"),
    [
        (b"\x00\x00\x00\x00\x4d\x00", "unknown_schema", "77"),
        (
            encoded(events.avro_envelope({"__op": "int"}), {**CREATE, "after": {"__op": 1}}),
            "unstageable_schema",
            "collides",
        ),
        (
            json.dumps({"schema": {"type": "table"}, "payload": 1}).encode(),
            "unstageable_schema",
            "no type 'table'",
        ),
    ],
)
def test_a_schema_that_gives_no_rows_stops_its_partition(value: bytes, reason: str, why: str) -> None:
    bench = bench_of(value)
    if why == "collides":
        bench.registry.schemas = {ENVELOPE_ID: json.dumps(avro_envelope({"__op": "int"}))}
    [stop] = bench.extract().stops
    assert stop.reason == reason
    assert why in stop.message


@pytest.mark.parametrize("encode", [in_avro, wrapped])
def test_personal_data_is_decided_by_the_names_of_the_rows_columns(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), pii="email:pseudonym:mail,last_name:drop,first_name:truncate:1")
    bench.pseudonyms = Pseudonyms("k1", {"k1": b"0" * 32})
    [row] = staged(bench)
    assert row["email"] == bench.pseudonyms.of("mail", b"annek@noanswer.org")
    assert (row["first_name"], "last_name" in row, row["id"]) == ("A", False, 1)


def test_a_decision_names_a_column_as_its_database_does() -> None:
    columns = [{"type": "string", "optional": True, "field": name} for name in ("e-mail", "1st größe")]
    after = dict.fromkeys(("e-mail", "1st größe"), "canary")
    bench = bench_of(wrapped({**CREATE, "after": after}, columns), pii="e-mail:null,1st größe:drop")
    [row] = staged(bench)
    assert (row["e_mail"], "canary" in map(str, row.values())) == (None, False)


def test_a_column_that_is_tagged_as_personal_needs_a_decision() -> None:
    schema = avro_envelope({"id": "int", "email": {"type": "string", "pii": "HIGH"}})
    bench = bench_of(encoded(schema, {**UPDATE, "before": None, "after": {"id": 1, "email": "a"}}))
    bench.registry.schemas = {ENVELOPE_ID: json.dumps(schema)}
    [stop] = bench.extract().stops
    assert "no decision about fields that are tagged as personal data: email" in stop.message
    assert bench.paths("staging/") == []


def test_personal_data_in_json_without_types_stops_the_partition() -> None:
    bench = bench_of(bare(CREATE), pii="email:drop")
    [stop] = bench.extract().stops
    assert stop.reason == "unstageable_schema"
    assert "pii needs types" in stop.message


@pytest.mark.parametrize("encode", [in_avro, wrapped, bare])
def test_the_time_of_the_change_can_be_the_business_time(encode: Encode) -> None:
    bench = bench_of(encode(CREATE), event_date="__source.ts_ms")
    [row] = staged(bench)
    assert row["event_date"] == date(2019, 5, 28)


@pytest.mark.parametrize(("encode", "table"), [(in_avro, "customers"), (wrapped, "customers"), (bare, TOPIC)])
def test_a_table_per_record_name_is_named_after_the_databases(encode: Encode, table: str) -> None:
    bench = bench_of(encode(CREATE), route="record_name", table="")
    bench.extract()
    assert {file.table.table for file in bench.commit().files} == {table.replace(".", "_")}


def test_rows_keep_their_order_and_encodings_may_alternate() -> None:
    bench = bench_of(in_avro(CREATE), wrapped(UPDATE), bare(UPDATE), in_avro(DELETE))
    assert [row["__op"] for row in staged(bench)] == ["c", "u", "u", "d"]


@pytest.mark.parametrize("before", [True, False])
def test_documents_that_are_no_events_decide_no_type_of_a_change_s_columns(before: bool) -> None:
    """Otherwise an upsert would no longer recognize changes, and ignore deletions."""
    other = bare({"__op": 5, "__deleted": "false", "__unavailable": "none"})
    bench = bench_of(other)
    if before:
        staged(bench)
    bench.kafka.produce(TP, bare(CREATE), timestamp=1000)
    bench.kafka.produce(TP, bare({**UPDATE, "after": {**ANNE, "email": PLACEHOLDER}}), timestamp=1000)
    plain, created, updated = staged(bench)
    assert (created["__op"], created["__deleted"], updated["__unavailable"]) == ("c", False, ["email"])
    assert json.loads(plain["_kbq_rest"]) == json.loads(other)


def test_records_with_an_operation_that_is_no_text_are_rows_as_they_are() -> None:
    schema = {**avro_envelope(), "name": "Other"}
    schema["fields"] = [
        {**each, "type": "bytes"} if each["name"] == "op" else each for each in schema["fields"]
    ]
    blank = dict.fromkeys(("before", "after", "ts_ms", "ts_us", "ts_ns"))
    bench = bench_of(encoded(schema, {**blank, "source": events.source(), "op": b"\xff\xff"}))
    bench.registry.schemas = {ENVELOPE_ID: json.dumps(schema)}
    [row] = staged(bench)
    assert (row["op"], "__op" in row) == (b"\xff\xff", False)
