"""Staged schemas: what is refused, what is appended, what the fingerprint tells apart."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import canonical, schema_fingerprint
from kbq_assets.core.errors import KbqError, UnstageableSchema
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.wire.records.staged_schema import (
    BodyKind,
    MetadataColumns,
    json_staged_schema,
    staged_schema,
    tombstone_schema,
)
from kbq_assets_tests.sizes import examples
from kbq_assets_tests.wire import generate
from kbq_assets_tests.wire.samples import record_of

ALL = MetadataColumns(key=True, headers=True)
NONE = MetadataColumns()


def test_the_metadata_columns_follow_the_writers_fields() -> None:
    staged = staged_schema(record_of(("id", "long")), ALL)
    expected = (
        *("id", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_kbq_epoch"),
        *("_kafka_key", "_kafka_headers", "event_date"),
    )
    assert staged.columns == expected
    assert tuple(field["name"] for field in json.loads(staged.json)["fields"]) == expected
    assert "_kafka_key" not in staged_schema(record_of(("id", "long")), NONE).columns


def test_docs_defaults_and_properties_of_the_writer_stay() -> None:
    writer = record_of(("id", "long")) | {"doc": "An order.", "connect.name": "x", "aliases": ["Old"]}
    writer["fields"][0] |= {"default": 0, "doc": "Its id."}
    staged = json.loads(staged_schema(json.dumps(writer), NONE).json)
    assert staged["fields"][0] == writer["fields"][0]
    assert {key: staged[key] for key in ("doc", "connect.name", "aliases")} == {
        key: writer[key] for key in ("doc", "connect.name", "aliases")
    }


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_fastavro_reads_every_staged_schema(rng: random.Random) -> None:
    schema = generate.make_schema(rng)
    staged = staged_schema(schema, ALL)
    fastavro.parse_schema(json.loads(staged.json))
    assert staged.fingerprint == schema_fingerprint(staged.json)


def test_namespaces_are_inherited_and_the_header_type_stays_out_of_them() -> None:
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "kind", "type": {"type": "enum", "name": "other.E", "symbols": ["A"]}}],
    }
    writer = record_of(("a", inner), ("b", "shop.Inner"), ("c", ["null", "Inner"]), ("d", "other.E")) | {
        "namespace": "shop"
    }
    staged = staged_schema(writer, ALL)
    assert staged.name == "shop.Order"
    fastavro.parse_schema(json.loads(staged.json))


def test_a_type_named_like_the_header_type_does_not_matter() -> None:
    staged = staged_schema(record_of(("a", record_of(("x", "int"), name="KafkaHeader"))), ALL)
    fastavro.parse_schema(json.loads(staged.json))


@pytest.mark.parametrize(
    "name", ["_kafka_topic", "_KAFKA_OFFSET", "Event_Date", "_kbq_epoch", "_kafka_Headers"]
)
def test_a_field_named_like_a_metadata_column_is_refused_with_both_names(name: str) -> None:
    with pytest.raises(UnstageableSchema) as refused:
        staged_schema(record_of((name, "int")), ALL)
    assert f"field {name!r}" in str(refused.value)
    assert f"the metadata column {name.lower()!r}" in str(refused.value)


def test_a_column_that_is_not_asked_for_is_free() -> None:
    assert "_kafka_key" in staged_schema(record_of(("_kafka_key", "int")), NONE).columns


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"string"', "not a record"),
        ("string", "not a record"),
        (["null", record_of()], "a union of records; with route=record_name"),
        (["null", "int"], "not a record"),
        ([record_of(), "int"], "not a record"),
        (7, "not an Avro type"),
        ({"name": "x"}, "not an Avro type"),
        ({"type": "record", "name": "R"}, "'fields' is missing"),
        ({"type": "record", "name": "R", "fields": "f"}, "not a list"),
        ({"type": "record", "fields": []}, "no name"),
        (record_of(("a", "Missing")), "unknown type 'Missing' (at a)"),
        (record_of(("a", record_of(("b", {"type": "array", "items": "x.Y"}), name="I"))), "(at a.b[])"),
        (record_of(("a", {"type": "array"})), "'items' is missing"),
        (record_of(("a", {"type": "enum", "name": "E", "symbols": ["A", "A"]})), "duplicate symbol"),
        (record_of(("a", {"type": "enum", "name": "E", "symbols": "AB"})), "not a list"),
        (record_of(("a", {"type": "enum", "name": "E", "symbols": ["a-b"]})), "not a valid Avro name"),
        (record_of(("a", {"type": "fixed", "name": "F", "size": -1})), "no valid size"),
        (record_of(("a", {"type": "fixed", "name": "F"})), "no valid size"),
        (record_of(("a", [])), "empty"),
        (record_of(("a", ["null", ["null", "int"]])), "inside another union"),
        (record_of(("a", ["int", {"type": "int", "logicalType": "date"}])), "two branches"),
        (record_of(("a", record_of(name="Order"))), "defined twice"),
        (record_of(("a-b", "int")), "not a valid Avro name"),
        (record_of(("a", "int"), ("A", "int")), "'a' and 'A'"),
        (record_of(("a", "int"), ("a", "int")), "'a' and 'a'"),
        (record_of(("next", ["null", "Order"])), "contains itself"),
        (
            record_of(("x", record_of(("y", {"type": "map", "values": "Inner"}), name="Inner"))),
            "'Inner' contains itself",
        ),
    ],
)
def test_what_cannot_be_staged_is_refused_with_the_reason(schema: Any, says: str) -> None:
    with pytest.raises(UnstageableSchema) as refused:
        staged_schema(schema, NONE)
    assert says in str(refused.value)
    assert isinstance(refused.value, KbqError) and refused.value.next_step


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    schema: Any = "int"
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UnstageableSchema, match="levels deep"):
        staged_schema(record_of(("a", schema)), NONE)


def test_a_record_used_twice_is_not_recursive() -> None:
    staged_schema(record_of(("a", record_of(("x", "int"), name="I")), ("b", "I")), NONE)


def test_a_type_in_two_coats_is_unwrapped() -> None:
    staged = staged_schema({"type": record_of(("a", {"type": {"type": "string"}}))}, NONE)
    assert json.loads(staged.json)["type"] == "record"


@pytest.mark.parametrize(
    "kind",
    [
        "boolean",
        "double",
        "bytes",
        {"type": "array", "items": "long"},
        record_of(name="I"),
        {"type": "int", "logicalType": "time-millis"},
        ["null", "bytes"],
    ],
)
def test_an_event_date_field_must_be_a_date_or_time(kind: Any) -> None:
    with pytest.raises(UnstageableSchema, match="event date"):
        staged_schema(record_of(("when", kind)), MetadataColumns(business_time=parse_business_time("when")))


def test_a_plain_number_is_no_rfc3339() -> None:
    writer = record_of(("when", ["null", "long"]))
    with pytest.raises(UnstageableSchema, match="is a number"):
        staged_schema(writer, MetadataColumns(business_time=parse_business_time("when:rfc3339")))
    assert (
        staged_schema(writer, MetadataColumns(business_time=parse_business_time("when:epoch_ms"))).event_unit
        == 2
    )


def test_a_business_time_has_a_column_unless_the_record_has_one() -> None:
    metadata = MetadataColumns(business_time=parse_business_time("auto"))
    staged = staged_schema(record_of(("at", "int"), ("happenedAt", "string")), metadata)
    assert (staged.event_field, staged.columns[-2:]) == ("happenedAt", ("_event_time", "event_date"))
    reported = "The record's business time, from happenedAt (text, by its name); else its time in Kafka."
    assert columns_of(staged.json)[-2:] == (
        Column("_event_time", "TIMESTAMP", "REQUIRED", description=reported),
        Column("event_date", "DATE", "REQUIRED"),
    )
    own = staged_schema(record_of(("_Event_Time", "string")), metadata)
    assert (own.event_field, own.columns.count("_event_time")) == ("_Event_Time", 0)
    assert "_event_time" in tombstone_schema(metadata).columns
    assert "_event_time" not in json_staged_schema(metadata).columns


def test_the_fingerprint_ignores_what_does_not_change_the_loaded_table() -> None:
    plain = record_of(("a", "string"), ("b", ["null", "int"]))
    dressed = {
        "doc": "x",
        "fields": [
            {
                "type": {"type": "string", "avro.java.string": "String"},
                "name": "a",
                "default": "",
                "aliases": ["z"],
            },
            {"name": "b", "type": ["null", {"type": "int"}], "order": "ignore", "default": None},
        ],
        "name": "Order",
        "type": "record",
    }
    assert schema_fingerprint(plain) == schema_fingerprint(json.dumps(dressed, indent=2))


def test_the_fingerprint_does_not_depend_on_how_a_name_is_written() -> None:
    inner = record_of(("x", "int"), name="I")
    one = record_of(("a", inner), ("b", "I")) | {"namespace": "n"}
    two = record_of(("a", inner | {"name": "n.I"}), ("b", "n.I")) | {"name": "n.Order"}
    assert schema_fingerprint(one) == schema_fingerprint(two)


def test_the_fingerprint_distinguishes_what_loads_differently() -> None:
    schemas = [
        record_of(("a", "long")),
        record_of(("a", "string")),
        record_of(("a", "bytes")),
        record_of(("a", {"type": "long", "logicalType": "timestamp-millis"})),
        record_of(("a", {"type": "long", "logicalType": "timestamp-micros"})),
        record_of(("a", "int")),
        record_of(("b", "long")),
        record_of(("a", ["null", "long"])),
        record_of(("a", "long"), ("b", "long")),
        record_of(("a", "long"), name="Other"),
        record_of(("a", {"type": "string", "sqlType": "JSON"})),
        record_of(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
        record_of(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1})),
    ]
    assert len({schema_fingerprint(schema) for schema in schemas}) == len(schemas)
    staged = [staged_schema(schema, metadata) for schema in schemas for metadata in (NONE, ALL)]
    assert len({each.fingerprint for each in staged}) == 2 * len(schemas)


def test_fingerprints_stay_what_they_are() -> None:
    # They are stored in commits: a new one makes a new batch of files, so a change must be meant.
    assert (
        schema_fingerprint(record_of(("a", ["null", {"type": "int", "logicalType": "date"}])))
        == "7db0afa4c4419b5a"
    )


def test_json_and_tombstones_have_schemas_of_their_own() -> None:
    document, tombstone = json_staged_schema(ALL), tombstone_schema(ALL)
    assert (document.body, document.columns[0]) == (BodyKind.JSON, "payload")
    assert (tombstone.body, tombstone.columns[0]) == (BodyKind.EMPTY, "_kafka_topic")
    payload = json.loads(document.json)["fields"][0]["type"]
    assert payload == ["null", {"type": "string", "sqlType": "JSON"}]


def test_an_event_date_field_of_values_does_not_matter_to_json_and_tombstones() -> None:
    metadata = MetadataColumns(business_time=parse_business_time("when"))
    assert json_staged_schema(metadata).program.captures == tombstone_schema(metadata).program.captures == 0


def test_a_staged_schema_travels_to_a_worker() -> None:
    staged = staged_schema(record_of(("a", "int")), MetadataColumns(business_time=parse_business_time("a.b")))
    copy = pickle.loads(pickle.dumps(staged))
    assert (copy.json, copy.fingerprint, copy.metadata) == (staged.json, staged.fingerprint, staged.metadata)
    assert copy.program.code.tolist() == staged.program.code.tolist()


def test_errors_of_schemas_travel_too() -> None:
    with pytest.raises(UnstageableSchema) as refused:
        staged_schema("{", NONE)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_canonical_form_is_itself_a_schema_with_the_same_fingerprint(rng: random.Random) -> None:
    schema = generate.make_schema(rng)
    assert schema_fingerprint(canonical(avro.parse(schema))) == schema_fingerprint(schema)
