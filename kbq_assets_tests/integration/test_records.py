"""Every record of any topic ends exactly once: as a row, an error row, or a counted skip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.warehouse import ErrorQuery
from kbq_assets.wire.chunk import RawRecord
from kbq_assets_tests.adapters.protobuf.messages import ORDER, order
from kbq_assets_tests.integration.world import FIRST_MS, Producers, World
from kbq_assets_tests.wire.samples import framed
from kbq_assets_tests.worker.debezium.events import (
    ANNE,
    ANNE_MARIE,
    CREATE,
    DELETE,
    MESSAGE,
    READ,
    SCHEMA_CHANGE,
    TRUNCATE,
    UPDATE,
    avro_envelope,
    bare,
    encoded,
    in_avro,
)

pytestmark = pytest.mark.kafka

MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
VARIABLE = {
    "type": "record",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}

ROW = "row:shop.orders"


def test_aborted_transactions_are_gaps_and_committed_ones_rows(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.transaction(tp, [order.value(x=n) for n in range(10)], ROW, commit=True)
    world.producers.transaction(tp, [order.value(x=n) for n in range(7)], ROW, commit=False)
    world.producers.produce(tp, [order.value(x=n) for n in range(5)], ROW)
    world.producers.transaction(tp, [order.value(x=n) for n in range(3)], ROW, commit=False)
    result = world.finish()
    assert result.totals()["loaded"] == 15
    assert world.partition(tp).totals.gaps == 7 + 3 + 3
    assert world.partition(tp).next == world.broker.reader.offsets([tp])[tp].latest


def test_an_open_transaction_is_not_read_before_it_ends(world: World) -> None:
    order, tp = world.producers.register(("x", "long")), world.topic()
    world.producers.produce(tp, [order.value(x=1)], ROW)
    world.broker.transaction(tp, [RawRecord(order.value(x=2), 1, FIRST_MS)], commit=None)
    world.broker.produce(tp, [RawRecord(order.value(x=3), 2, FIRST_MS)])
    assert world.extract().totals.records == 1
    world.broker.end_transaction(tp, commit=True)
    world.producers.log[tp].update({1: ROW, 2: ROW})
    assert world.finish().totals()["loaded"] == 3


def test_compaction_gaps_are_covered_and_not_taken_for_loss(world: World) -> None:
    tp, wanted = world.broker.compacted_partition()
    world.sources = f"{tp.topic} dataset=shop table=orders format=json\n"
    # The contract's values are numbers like 2.7, which are JSON, and one word, which is not.
    world.producers.log[tp] = {o: "error" if value == b"newest" else ROW for o, value in wanted.items()}
    assert world.finish().totals() == {
        "produced": len(wanted),
        "staged": len(wanted) - 1,
        "loaded": len(wanted) - 1,
        "errors": 1,
        "skipped": 0,
    }
    assert world.partition(tp).totals.gaps == max(wanted) + 1 - len(wanted)


def test_json_fields_are_columns_and_the_rest_is_in_a_column_of_its_own(world: World) -> None:
    tp = world.topic("dataset=shop table=orders format=json_columns event_date=at event_date_days_ahead=9999")
    first = [{"id": n, "at": "2025-01-31T12:00:00Z", "customer": {"name": f"c{n}"}} for n in range(5)]
    later = [{"id": "six", "at": 1738326600, "tags": ["a", "b"], "customer": {"name": "c6", "vip": True}}]
    world.producers.produce(tp, [json.dumps(document).encode() for document in first], ROW)
    world.extract()
    world.load()
    world.producers.produce(tp, [json.dumps(document).encode() for document in later], ROW)
    world.producers.produce(tp, [b"{not json"], "error")
    assert world.finish().totals()["loaded"] == 6
    found = world.query(
        "SELECT id, customer.name, customer.vip, tags, CAST(_kbq_rest AS VARCHAR), CAST(event_date AS VARCHAR) "
        "FROM shop.orders ORDER BY _kafka_offset"
    )
    assert found[0] == (0, "c0", None, [], None, "2025-01-31")
    assert found[5] == (None, "c6", True, ["a", "b"], '{"id":"six","at":1738326600}', "2025-01-31")


def test_protobuf_and_json_of_a_real_registry_are_rows(world: World) -> None:
    valid = world.topic("dataset=shop table=valid format=json_schema validate=true")
    tp = world.topic("dataset=shop table=orders format=protobuf event_date=at event_date_days_ahead=9999")
    registry = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(world.producers.registry_url)))
    schema_id = registry.register(f"{tp.topic}-value", ORDER, "PROTOBUF")
    message = order(id=7, state=1)
    message.at.FromJsonString("2025-01-31T23:30:00Z")
    message.items.add(sku="a", count=2)
    to_order = b"\x02\x02"
    value = framed(to_order + message.SerializeToString(), schema_id)
    world.producers.produce(tp, [value, value], ROW)
    world.producers.produce(tp, [framed(to_order + b"\xff", schema_id)], "error")
    schema = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}}
    schema_id = registry.register(f"{valid.topic}-value", json.dumps(schema), "JSON")
    documents = [framed(json.dumps({"id": n}).encode(), schema_id) for n in (0, 1)]
    world.producers.produce(valid, documents[1:], "row:shop.valid")
    world.producers.produce(valid, documents[:1], "error")
    assert world.finish().totals()["loaded"] == 3
    found = world.query(
        "SELECT id, state, items[1].sku, CAST(event_date AS VARCHAR) FROM shop.orders LIMIT 1"
    )
    assert found == [(7, "PAID", "a", "2025-01-31")]
    assert world.query("SELECT id FROM shop.valid") == [(1,)]
    assert world.query(
        f"SELECT reason, message FROM shop.kbq_errors WHERE _kafka_topic = '{valid.topic}'"
    ) == [("VIOLATES_SCHEMA", "/id violates its JSON Schema at /properties/id/minimum")]


def test_change_events_of_debezium_are_rows_with_their_keys(world: World) -> None:
    tp = world.topic("dataset=shop table=customers format=debezium key_format=avro tombstones=skip")
    registry = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(world.producers.registry_url)))
    columns = {"id": "int", "name": ["null", "string"], "stamp": MICROS, "price": ["null", VARIABLE]}
    envelope, key = (
        avro_envelope(columns),
        {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]},
    )
    value_id = registry.register(f"{tp.topic}-value", json.dumps(envelope), "AVRO")
    key_id = registry.register(f"{tp.topic}-key", json.dumps(key), "AVRO")
    first = {"id": 1, "name": "a", "stamp": 1529507596945104, "price": {"scale": 1, "value": b"\x0f"}}
    second = {**first, "name": "__debezium_unavailable_value"}
    changes = [{**CREATE, "after": first}, {**UPDATE, "before": None, "after": second}]
    values = [encoded(envelope, each, value_id) for each in [*changes, {**DELETE, "before": first}]]
    wanted: list[bytes | None] = [
        *values,
        None,
        bare(MESSAGE),
        encoded(envelope, {**TRUNCATE, "after": None}, value_id),
    ]
    records = [
        RawRecord(value, n, FIRST_MS, key=encoded(key, {"id": 1}, key_id) if n < 4 else None)
        for n, value in enumerate(wanted)
    ]
    world.broker.produce(tp, records)
    row = "row:shop.customers"
    world.producers.log[tp].update(dict(enumerate([row, row, row, "skip", "skip", row])))
    assert world.finish().totals()["loaded"] == 4
    assert world.query(
        "SELECT __op, __deleted, _key.id, id, name, CAST(stamp AS VARCHAR), CAST(price AS DOUBLE), __unavailable, "
        "__source.lsn FROM shop.customers ORDER BY _kafka_offset"
    ) == [
        ("c", False, 1, 1, "a", "2018-06-20 15:13:16.945104+00", 1.5, [], 24023128),
        ("u", False, 1, 1, None, "2018-06-20 15:13:16.945104+00", 1.5, ["name"], 24023128),
        ("d", True, 1, 1, "a", "2018-06-20 15:13:16.945104+00", 1.5, [], 46523128),
        ("t", False, None, None, None, None, None, [], 46523128),
    ]


def test_the_documented_examples_of_debezium_keep_a_table_that_equals_the_database_s(world: World) -> None:
    options = "format=debezium key_format=avro tombstones=skip load=upsert order=offset key=_key.id"
    tp = world.topic(f"dataset=shop table=customers {options}")
    ddl = world.topic("dataset=shop table=ddl format=debezium")
    registry = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(world.producers.registry_url)))
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    value_id = registry.register(f"{tp.topic}-value", json.dumps(avro_envelope()), "AVRO")
    key_id = registry.register(f"{tp.topic}-key", json.dumps(key), "AVRO")

    def shown_after(*events: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
        first = len(world.producers.log[tp])
        for offset, event in enumerate(events, first):
            value = None if event is None else framed(in_avro(event)[5:], value_id)
            name = None if event is TRUNCATE else encoded(key, {"id": 1}, key_id)
            world.broker.produce(tp, [RawRecord(value, offset, FIRST_MS, key=name)])
            world.producers.log[tp][offset] = "skip" if event is None else "row:shop.customers"
        world.extract()
        world.load()
        return world.query("SELECT id, first_name, last_name, email, __op FROM shop.customers")

    world.producers.produce(ddl, [bare(SCHEMA_CHANGE)], "row:shop.ddl")
    assert shown_after(READ) == [(*ANNE.values(), "r")]
    assert shown_after(UPDATE) == [(*ANNE_MARIE.values(), "u")]
    assert shown_after(DELETE, None) == []
    assert shown_after(CREATE) == [(*ANNE.values(), "c")]
    assert shown_after(TRUNCATE) == []
    assert world.reconciled().verdict == "yes"
    [(statement,)] = world.query("SELECT ddl FROM shop.ddl")
    assert statement == SCHEMA_CHANGE["ddl"]


@pytest.mark.thorough
def test_a_schema_that_grows_adds_a_nullable_column_and_keeps_old_rows(world: World) -> None:
    subject = f"{world.topic().topic}-value"
    tp = TopicPartition(subject.removesuffix("-value"), 0)
    old = world.producers.register(("x", "long"), subject=subject)
    new = world.producers.register(("x", "long"), ("note", ["null", "string"]), subject=subject)
    assert old.schema_id != new.schema_id
    world.producers.produce(tp, [old.value(x=n) for n in range(5)], ROW)
    world.finish()
    for n in range(5, 15):  # both producers are live
        value = new.value(x=n, note="new") if n % 2 else old.value(x=n)
        world.producers.produce(tp, [value], ROW)
    world.finish()
    rows = world.query("SELECT x, note FROM shop.orders ORDER BY x")
    assert rows == [(n, "new" if n >= 5 and n % 2 else None) for n in range(15)]


def test_records_of_one_topic_are_routed_to_the_tables_of_their_names(world: World) -> None:
    tp = world.topic("dataset=shop route=record_name", partitions=2)
    apple = world.producers.register(("x", "long"), name="Apple")
    pear = world.producers.register(("y", "string"), name="Pear")
    for partition in (0, 1):
        at = TopicPartition(tp.topic, partition)
        for n in range(6):
            world.producers.produce(at, [apple.value(x=n)], "row:shop.Apple")
            world.producers.produce(at, [pear.value(y="p")], "row:shop.Pear")
    assert world.finish().totals()["loaded"] == 24
    assert world.query("SELECT count(*) FROM shop.Apple") == [(12,)]


def _poison(producers: Producers) -> dict[str, bytes]:
    order = producers.register(("x", "long"), ("note", "string"))
    good = order.value(x=1, note="n")
    return {
        "wrong magic": b"\x01" + good[1:],
        "empty": b"",
        "shorter than a prefix": good[:3],
        "truncated": good[:-1],
        "trailing bytes": good + b"\x00",
        "no UTF-8": good[:-1] + b"\xff",
    }


def test_poison_becomes_error_rows_with_raw_bytes_key_and_headers(world: World) -> None:
    tp = world.topic("dataset=shop table=orders error_share_records=1000")
    poison = _poison(world.producers)
    order = world.producers.register(("x", "long"))
    headers = (("trace", b"\x00\x01"), ("trace", None))
    world.producers.produce(tp, [order.value(x=1)], ROW)
    bad = [RawRecord(value, 0, FIRST_MS, name.encode(), headers) for name, value in poison.items()]
    world.producers.produce(tp, bad, "error")
    world.producers.produce(tp, [order.value(x=2)], ROW)
    assert world.finish().totals()["errors"] == len(poison)
    rows = world.parts.deployment.warehouse.error_rows(TableReference("shop", "kbq_errors"), ErrorQuery())
    found = {(row.key or b"").decode(): row for row in rows}
    assert {name: row.value for name, row in found.items()} == poison
    assert {row.headers for row in rows} == {headers}
    assert {(row.topic, row.partition, row.timestamp_ms, row.epoch) for row in rows} == {(*tp, FIRST_MS, 1)}
    assert all(row.reason and row.message for row in rows)


@pytest.mark.parametrize(
    ("policy", "outcome", "counted"),
    [("skip", "skip", "skipped"), ("error_table", "error", "errors"), ("row", ROW, "loaded")],
)
def test_null_values_follow_the_topics_policy(world: World, policy: str, outcome: str, counted: str) -> None:
    tp = world.topic(f"dataset=shop table=orders tombstones={policy}")
    order = world.producers.register(("x", "long"))
    world.producers.produce(tp, [order.value(x=1), order.value(x=2)], ROW)
    world.producers.produce(tp, [None, None, None], outcome)
    totals = world.finish().totals()
    assert totals["produced"] == 5
    assert totals[counted] == 3 + (2 if counted == "loaded" else 0)


@pytest.mark.thorough
def test_skipped_poison_is_counted(world: World) -> None:
    tp = world.topic("dataset=shop table=orders errors=skip")
    order = world.producers.register(("x", "long"))
    world.producers.produce(tp, [order.value(x=1)], ROW)
    world.producers.produce(tp, list(_poison(world.producers).values()), "skip")
    assert world.finish().totals() == {"produced": 7, "staged": 1, "loaded": 1, "errors": 0, "skipped": 6}


def test_a_json_topic_is_stored_as_payload_and_what_is_no_json_in_the_error_table(world: World) -> None:
    tp = world.topic("dataset=shop table=events format=json keys=true headers=true")
    texts = ['{"a": 1}', "[1, null]", '"text"', "3.5", "null"]
    world.producers.produce(tp, [text.encode() for text in texts], "row:shop.events")
    world.producers.produce(tp, [b"{", b"\xff", b'{"a": 1} x'], "error")
    assert world.finish().totals()["errors"] == 3
    rows = world.query("SELECT payload::VARCHAR FROM shop.events ORDER BY _kafka_offset")
    assert [row[0] for row in rows] == texts
