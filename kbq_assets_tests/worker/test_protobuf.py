"""Protobuf topics: what a run stages of them."""

from __future__ import annotations

import base64
import io
from typing import Any

import fastavro
import pytest

from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.records.reasons import Reason
from kbq_assets_tests.adapters.protobuf.messages import NODE, ORDER, new, order
from kbq_assets_tests.pipelines.bench import TP, Bench

PREFIX = b"\x00\x00\x00\x00\x07"
#: The path to Order, the second type: one index, 1.
TO_ORDER = b"\x02\x02"
TO_REASON = b"\x04\x04\x00"


def bench_of(*values: bytes | None, schema: str = ORDER, **options: Any) -> Bench:
    bench = Bench(TopicSettings.of(dataset="d", format="protobuf", **{"table": "t", **options}))
    bench.registry.messages = {7: schema}
    for value in values:
        bench.kafka.produce(TP, value, key=b"k", timestamp=86_400_000)
    bench.extract()
    return bench


def staged(bench: Bench) -> list[StagedFile]:
    windows = bench.commit().partitions[0].windows
    return [f for w in windows for f in w.files if f.table.table != "kbq_errors"]


def rows(bench: Bench) -> list[Any]:
    files = staged(bench)
    return [row for f in files for row in fastavro.reader(io.BytesIO(bench.store.get(f.path).data))]


def test_messages_are_rows_with_their_business_time() -> None:
    message = order(id=5)
    message.at.FromJsonString("2025-01-31T23:30:00Z")
    bench = bench_of(PREFIX + TO_ORDER + message.SerializeToString(), PREFIX + TO_ORDER, event_date="at")
    first, second = rows(bench)
    assert (first["id"], str(first["event_date"]), first["_kafka_offset"]) == (5, "2025-01-31", 0)
    assert (second["id"], str(second["event_date"])) == (0, "1970-01-02")
    bench.load()
    assert bench.reconcile().accounted


def test_a_registry_may_hold_serialized_descriptors() -> None:
    text = base64.b64encode(order().DESCRIPTOR.file.serialized_pb).decode()
    bench = bench_of(PREFIX + TO_ORDER + order(id=5).SerializeToString(), schema=text)
    assert [row["id"] for row in rows(bench)] == [5]


def test_the_first_type_of_a_schema_has_its_id_and_others_one_that_stays() -> None:
    item = new(0)
    item.sku = "x"
    values = [PREFIX + b"\x00" + item.SerializeToString(), PREFIX + TO_ORDER, PREFIX + TO_REASON]
    ids = [f.name.schema_id for f in staged(bench_of(*values, route="record_name", table=""))]
    assert ids == [f.name.schema_id for f in staged(bench_of(*values, route="record_name", table=""))]
    assert ids[0] == 7
    assert len({*ids}) == 3


def test_a_table_per_message_type() -> None:
    bench = bench_of(PREFIX + b"\x00", PREFIX + TO_ORDER, PREFIX + TO_REASON, route="record_name", table="")
    assert sorted(str(f.table) for f in staged(bench)) == ["d.Item", "d.Order", "d.Reason"]


def test_what_is_no_message_is_an_error_row_as_it_came() -> None:
    bad = [
        PREFIX + TO_ORDER + b"\xff",
        PREFIX + b"\x02\x63",
        PREFIX,
        b"\x01",
        b"\x05abcdef",
        PREFIX + b"\x02\x01",
    ]
    bench = bench_of(PREFIX + TO_ORDER, *bad)
    assert bench.commit().partitions[0].totals.errors == len(bad)
    [file] = [
        f for w in bench.commit().partitions[0].windows for f in w.files if f.table.table == "kbq_errors"
    ]
    found: list[Any] = list(fastavro.reader(io.BytesIO(bench.store.get(file.path).data)))
    assert [row["value"] for row in found] == bad
    assert [row["reason"] for row in found] == [
        "INVALID_PROTOBUF", "INVALID_PROTOBUF", "INVALID_PROTOBUF", "WRONG_MAGIC", "WRONG_MAGIC", "INVALID_PROTOBUF",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "schema", "reason", "why"),
    [
        (b"\x00\x00\x00\x00\x63\x00", ORDER, "unknown_schema", "schema 99 is not in the registry"),
        (
            b"\x00\x00\x00\x00\x01\x00",
            ORDER,
            "unstageable_schema",
            "schema 1: its type is AVRO, not PROTOBUF",
        ),
        (
            PREFIX + b"\x00",
            NODE,
            "unstageable_schema",
            "schema 7: Node: message Node contains itself at field next",
        ),
        (
            PREFIX + b"\x00",
            "message M {",
            "unstageable_schema",
            "schema 7: the schema is not Protobuf: schema.proto:1:12",
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, {"pii": "x:drop"}], ids=["", "with_personal_data"])
def test_a_schema_that_cannot_be_read_stops_the_partition_and_says_why(
    value: bytes, schema: str, reason: str, why: str, options: dict[str, str]
) -> None:
    bench = bench_of(value, schema=schema, **options)
    stop = bench.commit().partitions[0].stop
    assert stop is not None and stop.reason == reason
    assert f"offset 0: {reason.upper()}: {why}" in stop.message


@pytest.mark.parametrize("options", [{}, {"pii": "x:drop"}], ids=["", "with_personal_data"])
def test_a_stop_names_schema_and_message_type_not_an_id_of_kbq_s_own(options: dict[str, str]) -> None:
    schema = 'syntax = "proto3"; package p; message A {} message B { int32 x = 1; int64 _kafka_OFFSET = 2; }'
    stop = bench_of(PREFIX + TO_ORDER, schema=schema, **options).commit().partitions[0].stop
    assert stop is not None and "UNSTAGEABLE_SCHEMA: schema 7 (p.B): " in stop.message
    assert "_kafka_OFFSET" in stop.message


def test_an_error_row_names_the_field_at_fault() -> None:
    message = order(id=5)
    message.at.seconds = 2**50
    bench = bench_of(PREFIX + TO_ORDER + message.SerializeToString(), PREFIX + b"\x02\x62")
    [file] = [f for w in bench.commit().partitions[0].windows for f in w.files]
    found: list[Any] = list(fastavro.reader(io.BytesIO(bench.store.get(file.path).data)))
    assert [(row["reason"], row["message"]) for row in found] == [
        (
            "OUT_OF_RANGE",
            f"{Reason.OUT_OF_RANGE.message}: in field at: a Timestamp outside the years 1 to 9999",
        ),
        ("INVALID_PROTOBUF", f"{Reason.INVALID_PROTOBUF.message}: schema 7 has no message type at this path"),
    ]
