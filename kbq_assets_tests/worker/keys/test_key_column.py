"""Kafka keys as the column `_key`: what a run stages of each format, and what becomes of keys that fit none."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate import commands
from kbq_assets.worker.framing import KEY_HEADER, VALUE_HEADER
from kbq_assets_tests.adapters.protobuf.messages import ORDER, order
from kbq_assets_tests.pipelines.bench import SCHEMAS, TOPIC, TP, Bench, value

PAIR = {
    "type": "record",
    "name": "A",  # as the value's type
    "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": ["null", "string"]}],
}
DATE = {"type": "int", "logicalType": "date"}
TAGGED = {**PAIR, "fields": [{"name": "id", "type": "long", "pii": "HIGH"}]}
KEYS = {
    20: PAIR,
    21: "long",
    22: ["null", "string"],
    23: {**PAIR, "fields": [*PAIR["fields"], {"name": "on", "type": ["null", DATE]}]},
    24: ["int", "string"],
    25: TAGGED,
    26: {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
}
FIVE = b"\x0a\x02\x02a"


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def bench_of(*keys: bytes | None, **options: Any) -> Bench:
    """A run over values of schema 1 with these keys."""
    bench = Bench(TopicSettings.of(dataset="d", **{"table": "t", "key_format": "avro", **options}))
    bench.registry.schemas = {**bench.registry.schemas, **{n: json.dumps(s) for n, s in KEYS.items()}}
    for key in keys:
        bench.kafka.produce(TP, value(1), key=key, timestamp=1000)
    return bench


def rows(bench: Bench, *, errors: bool = False) -> list[Any]:
    files = [file for window in bench.commit().partitions[0].windows for file in window.files]
    wanted = [file for file in files if (file.table.table == "kbq_errors") is errors]
    read = [row for f in wanted for row in fastavro.reader(io.BytesIO(bench.store.get(f.path).data))]
    return sorted(read, key=lambda row: int(row["_kafka_offset"]))


def keys_of(bench: Bench) -> list[Any]:
    bench.extract()
    return [row.get("_key") for row in rows(bench)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (framed(20, FIVE), {"id": 5, "shop": "a"}),
        (framed(21, b"\x0a"), 5),
        (framed(22, b"\x02\x02a"), "a"),
        (framed(22, b"\x00"), None),
        (None, None),
    ],
)
def test_an_avro_key_is_a_column_of_its_own_type(key: bytes | None, expected: Any) -> None:
    bench = bench_of(key, framed(20, b"\x0c\x00"))
    assert keys_of(bench) == [expected, {"id": 6, "shop": None}]
    assert [row["x"] for row in rows(bench)] == [1, 1]
    if isinstance(expected, dict) or expected is None:  # others contradict the second key's column
        bench.load()
        assert bench.reconcile().accounted


def test_keys_of_an_older_schema_have_null_in_the_columns_of_a_newer_one() -> None:
    bench = bench_of(framed(20, FIVE), framed(23, FIVE + b"\x02\x02"), framed(20, FIVE), None)
    bench.extract()
    bench.load()
    assert sorted(bench.offsets(TableReference("d", "t"))) == [0, 1, 2, 3]
    assert bench.reconcile().accounted


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (
            framed(20, b"\x0a\x02\x04a"),
            "the key: the value ends before the end of the record in field _key.shop",
        ),
        (framed(20, FIVE + b"\x00"), "the key: bytes follow the end"),
        (framed(20, b"\x0a\x02\x02\xff"), "the key: a string is not valid UTF-8 in field _key.shop"),
        (b"\x01abcdef", "the key: it does not start with the magic byte 0"),
        (b"\x00\x01", "the key: it is shorter than the 5-byte Confluent prefix"),
    ],
)
def test_a_key_that_does_not_fit_its_schema_is_an_error_row_with_the_bytes_as_they_came(
    key: bytes, why: str
) -> None:
    bench = bench_of(framed(20, FIVE), key, framed(20, FIVE))
    assert len(keys_of(bench)) == 2
    [row] = rows(bench, errors=True)
    assert (row["key"], row["value"], row["reason"]) == (key, value(1), "INVALID_KEY")
    assert row["message"].startswith(why)


@pytest.mark.parametrize(
    ("schema_id", "reason", "why"),
    [
        (77, "unknown_schema", "77"),
        (24, "unstageable_schema", "a union without null"),
        (26, "unstageable_schema", "contains itself"),
        (25, "unstageable_schema", "no decision about fields that are tagged as personal data: _key.id"),
    ],
)
def test_a_key_schema_that_cannot_be_staged_stops_its_partition(
    schema_id: int, reason: str, why: str
) -> None:
    bench = bench_of(framed(schema_id, b"\x0a"))
    [stop] = bench.extract().stops
    assert stop.reason == reason
    assert why in stop.message


def test_a_personal_key_that_an_operator_accepted_is_withheld_from_error_rows() -> None:
    bench = bench_of(framed(25, b"\x0a"))
    bench.extract()
    commands.propose_resume(bench.store, TOPIC, as_errors=True).apply()
    bench.extract()
    [row] = rows(bench, errors=True)
    assert (row["key"], row["value"]) == (None, None)


def test_another_schema_under_a_known_id_of_keys_stops_the_partition() -> None:
    bench = bench_of(framed(20, FIVE))
    bench.extract()
    bench.registry.schemas = {**bench.registry.schemas, 20: json.dumps("long")}
    bench.kafka.produce(TP, value(1), key=framed(20, b"\x0a"), timestamp=1000)
    [stop] = bench.extract().stops
    assert stop.reason == "schema_changed"


@pytest.mark.parametrize("key_format", ["text", "json", "avro", "protobuf"])
def test_a_null_value_is_a_row_with_its_key(key_format: str) -> None:
    sent, expected = {
        "text": (b"a", "a"),
        "json": (b'{"a":1}', '{"a": 1}'),
        "avro": (framed(21, b"\x0a"), 5),
        "protobuf": (framed(30, b"\x00" + order().SerializeToString()), None),
    }[key_format]
    bench = bench_of(sent, key_format=key_format, tombstones="row", route="record_name", table="")
    bench.registry.messages = {30: ORDER}
    bench.kafka.produce(TP, None, key=sent, timestamp=1000)
    bench.extract()
    first, tombstone = rows(bench)
    assert first["_key"] == tombstone["_key"]
    assert expected in (None, first["_key"])
    assert (first["x"], "x" in tombstone) == (1, False)
    assert bench.extract().stops == ()


def test_null_values_that_are_no_rows_are_counted_as_before() -> None:
    bench = bench_of(framed(20, FIVE), tombstones="skip")
    bench.kafka.produce(TP, None, key=b"no key of Avro", timestamp=1000)
    assert keys_of(bench) == [{"id": 5, "shop": "a"}]
    assert bench.commit().partitions[0].totals.skipped == 1
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"a", "a"), ("é".encode(), "é"), (b"", ""), (None, None)],
)
def test_a_text_key_is_a_string(key: bytes | None, expected: str | None) -> None:
    assert keys_of(bench_of(key, key_format="text")) == [expected]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b'{"id": 1}', '{"id": 1}'), (framed(9, b"[1]"), "[1]"), (b'"a"', '"a"'), (b"null", "null")],
)
def test_a_json_key_is_a_json_column(key: bytes, expected: str) -> None:
    assert keys_of(bench_of(key, key_format="json")) == [expected]


@pytest.mark.parametrize(("key_format", "key"), [("json", b"{"), ("text", b"\xff"), ("json", b"\x00\x00")])
def test_a_key_of_another_format_is_an_error_row(key_format: str, key: bytes) -> None:
    bench = bench_of(key, key_format=key_format)
    assert keys_of(bench) == []
    [row] = rows(bench, errors=True)
    assert (row["reason"], row["key"]) == ("INVALID_KEY", key)


def test_headers_name_the_schemas_of_keys_too() -> None:
    bench = bench_of(framing="header")
    bench.registry.subjects = {f"{TOPIC}-value": {1: 1}, f"{TOPIC}-key": {1: 20}}
    named = [(VALUE_HEADER, framed(1, b"")), (KEY_HEADER, framed(20, b""))]
    bench.kafka.produce(TP, b"\x02", key=FIVE, headers=named, timestamp=1000)
    bench.kafka.produce(TP, b"\x02", key=framed(20, FIVE), headers=named[:1], timestamp=1000)
    assert keys_of(bench) == [{"id": 5, "shop": "a"}] * 2


@pytest.mark.parametrize(
    ("options", "document"),
    [
        ({"format": "json"}, True),
        ({"format": "json_columns"}, False),
        ({"format": "json_columns", "table": "t_{field.x}"}, False),
    ],
)
def test_json_documents_have_keys_of_any_format(options: dict[str, str], document: bool) -> None:
    bench = bench_of(**options)
    bench.kafka.produce(TP, b'{"x": 1}', key=framed(20, FIVE), timestamp=1000)
    assert keys_of(bench) == [{"id": 5, "shop": "a"}]
    [row] = rows(bench)
    assert row["payload" if document else "x"] == ('{"x": 1}' if document else 1)
    bench.load()
    assert bench.reconcile().accounted


def test_a_pseudonymized_key_is_text_and_says_so() -> None:
    bench = bench_of(framed(20, FIVE), b"any", pii="_key:pseudonym:customer")
    bench.pseudonyms = Pseudonyms("k1", {"k1": b"0" * 32})
    wanted = [bench.pseudonyms.of("customer", key) for key in (framed(20, FIVE), b"any")]
    assert keys_of(bench) == wanted
    [file] = bench.commit().files
    data = io.BytesIO(bench.store.get(f"schemas/{file.fingerprint}.json").data)
    [field] = [each for each in json.load(data)["fields"] if each["name"] == "_key"]
    assert (field["type"], field["doc"]) == (["null", "string"], "A pseudonym of the record's key, as text.")


def test_a_kept_key_is_decoded_and_keeps_its_tags() -> None:
    bench = bench_of(framed(25, b"\x0a"), pii="_key:keep")
    assert keys_of(bench) == [{"id": 5}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pii": "x:drop"}, "does not decide about keys"),
        ({"framing": "none", "value_schema": "1"}, "sets no schema for keys"),
        ({"key_format": "xml"}, "xml"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        bench_of(**options)


def test_a_field_of_the_columns_name_stops_the_partition() -> None:
    bench = bench_of()
    schema = {"type": "record", "name": "A", "fields": [{"name": "_KEY", "type": "long"}]}
    bench.registry.schemas = {**SCHEMAS, 8: json.dumps(schema), 20: json.dumps(PAIR)}
    bench.kafka.produce(TP, framed(8, b"\x02"), key=framed(20, FIVE), timestamp=1000)
    [stop] = bench.extract().stops
    assert "field '_KEY' of record 'A' collides with the column of keys" in stop.message
