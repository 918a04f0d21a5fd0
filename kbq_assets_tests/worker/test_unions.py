"""Topics of several record types under one schema, a union: each record is a row of its own type's table."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.bench import TP, Bench, value

COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long", "doc": "Its id."}, {"name": "color", "type": COLOR}],
}
PRODUCT = {
    "type": "record",
    "name": "shop.Product",
    "fields": [{"name": "name", "type": "string"}, {"name": "color", "type": "Color"}],
}
UNION: list[Any] = ["null", CUSTOMER, PRODUCT]


def framed(branch: int, body: bytes, schema_id: int = 7) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + bytes([branch << 1]) + body


def bench_of(union: list[Any] = UNION, **options: Any) -> Bench:
    bench = Bench(TopicSettings.of(dataset="d", **{"route": "record_name", **options}))
    bench.registry.schemas = {**bench.registry.schemas, 7: json.dumps(union)}
    return bench


def produce(bench: Bench, *values: bytes) -> None:
    for each in values:
        bench.kafka.produce(TP, each, timestamp=1000)


def rows(bench: Bench) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for file in bench.commit().files:
        read = fastavro.reader(io.BytesIO(bench.store.get(file.path).data))
        found.setdefault(file.table.table, []).extend(read)
    return found


def test_each_branch_of_a_union_is_a_table() -> None:
    bench = bench_of()
    produce(
        bench,
        framed(1, b"\x0a\x02"),
        value(1),
        framed(2, b"\x02x\x00"),
        framed(1, b"\x0c\x00"),
        framed(0, b""),
    )
    assert bench.extract().stops == ()
    found = rows(bench)
    assert [(row["id"], row["color"], row["_kafka_offset"]) for row in found["Customer"]] == [
        (5, "BLUE", 0),
        (6, "RED", 3),
    ]
    assert [(row["name"], row["color"], row["_kafka_offset"]) for row in found["Product"]] == [
        ("x", "RED", 2)
    ]
    assert [row["x"] for row in found["A"]] == [1]
    assert [row["reason"] for row in found["kbq_errors"]] == ["NULL_VALUE"]
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize("value_", [b"\x00\x00\x00\x00\x07", framed(3, b"\x02"), b"\x00\x00\x00\x00\x07\x01"])
def test_an_index_of_no_branch_is_a_bad_record(value_: bytes) -> None:
    bench = bench_of()
    produce(bench, value_, framed(1, b"\x0a\x02"))
    bench.extract()
    found = rows(bench)
    assert [row["reason"] for row in found["kbq_errors"]] == ["INVALID_UNION"]
    assert found["kbq_errors"][0]["value"] == value_
    assert len(found["Customer"]) == 1


def test_without_record_names_the_stop_names_the_option() -> None:
    bench = bench_of(route="topic", table="t")
    produce(bench, framed(1, b"\x0a\x02"))
    [stop] = bench.extract().stops
    assert (stop.reason, "route=record_name" in stop.message) == ("unstageable_schema", True)


@pytest.mark.parametrize("union", [["null", "long"], [CUSTOMER, "string"]])
def test_a_union_of_other_types_stops_its_partition(union: list[Any]) -> None:
    bench = bench_of(union)
    produce(bench, framed(1, b"\x0a"))
    [stop] = bench.extract().stops
    assert (stop.reason, "schema 7" in stop.message) == ("unstageable_schema", True)
    assert "route=" not in stop.message


@pytest.mark.parametrize("schema_id", [2**30, 2**31 - 1, 2**31 - 256, 2**31 - 250, 2**32 - 1])
def test_an_id_of_our_own_is_no_producer_s(schema_id: int) -> None:
    bench = bench_of()
    produce(bench, framed(1, b"\x0a\x02", schema_id))
    [stop] = bench.extract().stops
    assert stop.reason == "unknown_schema"


def test_bad_records_of_other_schemas_keep_their_positions() -> None:
    bench = bench_of()
    produce(bench, value(4)[:5] + b"\x02\xff")
    bench.extract()
    [row] = rows(bench)["kbq_errors"]
    assert (row["schema_id"], "of the value)" in row["message"]) == (4, True)


def test_tags_of_a_branch_count() -> None:
    tagged = json.loads(json.dumps(UNION).replace('"doc": "Its id."', '"pii": "HIGH"'))
    bench = bench_of(tagged)
    produce(bench, framed(1, b"\x0a\x02"))
    [stop] = bench.extract().stops
    assert "no decision about fields that are tagged as personal data: id" in stop.message
    bench = bench_of(tagged, pii="id:drop")
    produce(bench, framed(1, b"\x0a\x02"), framed(2, b"\x02x\x00"))
    bench.extract()
    found = rows(bench)
    assert [sorted(row)[-1] for row in found["Customer"]] == ["event_date"]
    assert (found["Customer"][0]["color"], found["Product"][0]["name"]) == ("BLUE", "x")
