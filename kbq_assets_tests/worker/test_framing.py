"""How records name their schemas: what a run stages of each framing."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro.canonical import rabin_fingerprint
from kbq_assets.core.avro.tree import parse
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate import commands
from kbq_assets.wire.chunk import UNREADABLE
from kbq_assets.worker.framing import FIRST_TYPE_ID, VALUE_HEADER, message_path, type_id
from kbq_assets_tests.adapters.protobuf.messages import ORDER, new, order
from kbq_assets_tests.pipelines.bench import SCHEMAS, TOPIC, TP, Bench

GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")
BY_ID, BY_GUID = b"\x00\x00\x00\x00\x01", b"\x01" + GUID.bytes
#: Records of schema 1, whose field x is a long. The first looks like a prefix: bodies may begin with anything.
ZERO, FIVE = b"\x00", b"\x0a"


def bench_of(*records: tuple[bytes | None, bytes | None], **options: Any) -> Bench:
    """A run over values with their headers."""
    bench = Bench(TopicSettings.of(dataset="d", **{"table": "t", "framing": "header", **options}))
    bench.registry.guids = {str(GUID): 1}
    bench.registry.subjects = {f"{TOPIC}-value": {1: 1, 2: 2, 4: 6}}
    for value, header in records:
        headers: Sequence[tuple[str, bytes | None]] = [("other", b"x")]
        if header is not None:
            headers = [("a", None), (VALUE_HEADER, header), ("__key_schema_id", b"\x00")]
        bench.kafka.produce(TP, value, key=b"k", timestamp=1000, headers=headers)
    return bench


def rows(bench: Bench, *, errors: bool = False) -> list[Any]:
    files = [file for window in bench.commit().partitions[0].windows for file in window.files]
    wanted = [file for file in files if (file.table.table == "kbq_errors") is errors]
    return [row for f in wanted for row in fastavro.reader(io.BytesIO(bench.store.get(f.path).data))]


def test_a_header_names_the_schema_by_id_or_guid_and_the_value_is_all_body() -> None:
    bench = bench_of(
        (ZERO, BY_ID), (FIVE, BY_GUID), (None, BY_GUID), (BY_ID + FIVE, None), (BY_GUID + FIVE, None)
    )  # the last two as Confluent's clients read them: without a header, a prefix
    bench.extract()
    assert sorted((row["_kafka_offset"], row["x"]) for row in rows(bench)) == [(0, 0), (1, 5), (3, 5), (4, 5)]
    assert bench.commit().partitions[0].totals.errors == 1  # the tombstone
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize(
    ("value", "header", "why"),
    [
        (FIVE, None, f"neither the header {VALUE_HEADER} nor Confluent's prefix"),
        (FIVE, b"", "nothing is not the id or GUID"),
        (FIVE, b"\x00\x00\x00\x01", "00000001 is not the id or GUID"),
        (FIVE, BY_ID + b"\x00", "000000000100 is not the id or GUID"),
        (FIVE, BY_GUID[:-1], "is not the id or GUID"),
        (FIVE, b"\x02" + GUID.bytes, "is not the id or GUID"),
        (BY_GUID[:9], None, "is not the id or GUID"),
    ],
)
def test_a_record_that_names_no_schema_is_an_error_row_as_it_came(
    value: bytes, header: bytes, why: str
) -> None:
    bench = bench_of((FIVE, BY_ID), (value, header))
    bench.extract()
    [row] = rows(bench, errors=True)
    assert (row["value"], row["reason"]) == (value, "WRONG_MAGIC")
    assert why in row["message"]


def test_headers_that_contradict_each_other_or_cannot_be_read_are_error_rows() -> None:
    bench = bench_of()
    for second in (BY_ID, BY_GUID):
        bench.kafka.produce(TP, FIVE, headers=[(VALUE_HEADER, BY_ID), (VALUE_HEADER, second)], timestamp=1000)
    bench.kafka.produce(TP, BY_ID + FIVE, headers=[(UNREADABLE, None)], timestamp=1000)
    bench.extract()
    assert len(rows(bench)) == 1
    contradicting, unreadable = (row["message"] for row in rows(bench, errors=True))
    assert "contradict" in contradicting and "not UTF-8" in unreadable


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"\x00\x00\x00\x00\x63", "UNKNOWN_SCHEMA: schema 99 is not"),
        (b"\x01" + bytes(16), "UNKNOWN_SCHEMA: the GUID 00000000-0000-0000-0000-000000000000 is not"),
        (b"\x00\x40\x00\x00\x00", "UNKNOWN_SCHEMA: no registry assigns the id 1073741824"),
        (b"\x00\x00\x00\x00\x06", "UNSTAGEABLE_SCHEMA: schema 6: the writer schema is not a record"),
    ],
)
def test_a_schema_that_cannot_be_staged_stops_the_partition_and_is_named(header: bytes, why: str) -> None:
    bench = bench_of((FIVE, header))
    [stop] = bench.extract().stops
    assert why in stop.message


def test_a_stop_names_the_guid_that_the_record_has() -> None:
    bench = bench_of((FIVE, BY_GUID))
    bench.registry.guids = {str(GUID): 6}
    assert f"schema {GUID}: the writer schema is not a record" in bench.extract().stops[0].message


def test_a_registry_that_is_down_stops_nothing() -> None:
    bench = bench_of((FIVE, BY_GUID))
    bench.registry.down = True
    assert not bench.extract().stops
    bench.registry.down = False
    bench.extract()
    assert [row["x"] for row in rows(bench)] == [5]


def test_protobuf_s_path_of_types_is_in_the_header() -> None:
    first = new(0)
    first.sku = "x"
    body = order(id=5).SerializeToString()
    bench = bench_of(
        (body, b"\x00\x00\x00\x00\x07\x02\x02"), (body, BY_GUID + b"\x02\x02"),
        (first.SerializeToString(), BY_GUID + b"\x00"), (body, BY_GUID), (body, BY_GUID + b"\x02\x02\x00"),
        format="protobuf", route="record_name", table="",
    )  # fmt: skip
    bench.registry.messages, bench.registry.guids = {7: ORDER}, {str(GUID): 7}
    bench.extract()
    assert sorted((row["_kafka_offset"], row.get("id"), row.get("sku")) for row in rows(bench)) == [
        (0, 5, None), (1, 5, None), (2, None, "x"),
    ]  # fmt: skip
    assert [row["reason"] for row in rows(bench, errors=True)] == ["WRONG_MAGIC", "WRONG_MAGIC"]


def test_json_schemas_are_named_alike() -> None:
    bench = bench_of((b'{"a": 1}', BY_GUID), (b'{"a": 2}', b"\x00\x00\x00\x00\x07"), format="json_schema")
    bench.registry.documents = {7: json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})}
    bench.registry.guids = {str(GUID): 7}
    bench.extract()
    assert [row["a"] for row in rows(bench)] == [1, 2]


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_personal_data_is_replaced_whatever_names_the_schema(format_: str) -> None:
    schema = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "x", "type": "long"}, {"name": "s", "type": "string"}],
    }
    messages = 'syntax = "proto3"; message A { int64 x = 1; string s = 2; }'
    body, path = (b"\x0a\x06Ada", b"") if format_ == "avro" else (b"\x08\x05\x12\x03Ada", b"\x00")
    bench = bench_of((body, BY_GUID + path), (body, b"bad"), format=format_, pii="s:drop")
    bench.registry.guids = {str(GUID): 7}
    bench.registry.schemas[7] = json.dumps(schema)
    bench.registry.messages = {7: messages} if format_ == "protobuf" else {}
    bench.extract()
    [row] = rows(bench)
    assert (row["x"], "s" in row) == (5, False)
    assert [row["value"] for row in rows(bench, errors=True)] == [None]


def test_accepted_records_of_an_undecided_schema_are_withheld() -> None:
    bench = bench_of((b"\x06Ada", BY_GUID), (b"\x06Ada", b"bad"))
    field = {"name": "s", "type": "string", "pii": "HIGH"}
    bench.registry.schemas[1] = json.dumps({"type": "record", "name": "A", "fields": [field]})
    [stop] = bench.extract().stops
    assert f"schema {GUID}: no decision about fields that are tagged" in stop.message
    commands.propose_resume(bench.store, TOPIC, as_errors=True).apply()
    bench.extract()
    found = [(row["reason"], row["value"]) for row in rows(bench, errors=True)]
    assert found == [("UNSTAGEABLE_SCHEMA", None), ("WRONG_MAGIC", b"\x06Ada")]


def test_a_fingerprint_names_a_version_of_the_topic_s_subject() -> None:
    def single(schema_id: int, body: bytes) -> bytes:
        form = fastavro.schema.to_parsing_canonical_form(json.loads(SCHEMAS[schema_id]))
        number = int(fastavro.schema.fingerprint(form, "CRC-64-AVRO"), 16)
        return b"\xc3\x01" + number.to_bytes(8, "big") + body

    records = [single(1, FIVE), single(2, FIVE + ZERO), single(1, ZERO), b"\xc3\x01\x00", BY_ID + FIVE]
    bench = bench_of(*((value, None) for value in records), framing="single_object")
    bench.extract()
    assert sorted((row["_kafka_offset"], row["x"], "y" in row) for row in rows(bench)) == [
        (0, 5, False), (1, 5, True), (2, 0, False),
    ]  # fmt: skip
    assert [row["value"] for row in rows(bench, errors=True)] == records[3:]
    bench.kafka.produce(TP, single(3, FIVE), timestamp=1000)
    assert f"no version of {TOPIC}-value has the fingerprint" in bench.extract().stops[0].message
    bench.registry.subjects[f"{TOPIC}-value"][5] = 3
    bench.store.time_ms += 60_000
    assert not bench.extract().stops  # tried again on its own
    assert len(rows(bench)) == 4


def test_a_topic_may_say_the_schema_of_bare_values() -> None:
    bench = bench_of((FIVE + ZERO, None), (ZERO + ZERO, None), (FIVE, None), framing="none", value_schema="2")
    bench.extract()
    assert [row["x"] for row in rows(bench)] == [5, 0]
    assert [row["reason"] for row in rows(bench, errors=True)] == ["TRUNCATED"]


def test_a_declared_schema_that_is_not_there_stops_the_partition() -> None:
    [stop] = bench_of((FIVE, None), framing="none", value_schema="99").extract().stops
    assert (stop.reason, "schema 99" in stop.message) == ("unknown_schema", True)


def test_schemas_of_headers_are_remembered_like_those_of_prefixes() -> None:
    bench = bench_of((FIVE, BY_ID))
    bench.extract()
    bench.registry.schemas[1] = SCHEMAS[3]
    bench.kafka.produce(TP, FIVE, timestamp=1000, headers=[(VALUE_HEADER, BY_ID)])
    assert [stop.reason for stop in bench.extract().stops] == ["schema_changed"]


def test_of_versions_with_one_fingerprint_the_newest_counts() -> None:
    plain = json.loads(SCHEMAS[1])
    timed = {**plain, "fields": [{"name": "x", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}
    bench = bench_of(framing="single_object")
    bench.registry.schemas |= {8: json.dumps(timed)}
    bench.registry.subjects[f"{TOPIC}-value"] = {2: 8, 1: 1}
    bench.kafka.produce(TP, b"\xc3\x01" + rabin_fingerprint(parse(plain)) + FIVE, timestamp=1000)
    bench.extract()
    assert [row["x"].microsecond for row in rows(bench)] == [5]


@pytest.mark.parametrize(
    "options",
    [
        {"framing": "none"},
        {"framing": "none", "value_schema": "subject:1"},
        {"framing": "single_object", "format": "protobuf"},
        {"framing": "header", "format": "json"},
        {"framing": "none", "value_schema": "1", "format": "json_columns"},
    ],
)
def test_framings_that_cannot_be_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="framing="):
        TopicSettings.of(**options)


@pytest.mark.parametrize(
    "schema_id", [2**30, 0x7FFFFF00, 0x7FFFFF11, 0x7FFFFF18, 2**31 - 1, 2**31, 2**32 - 1], ids=hex
)
@pytest.mark.parametrize("key", [False, True], ids=["value", "key"])
def test_an_id_that_kbq_uses_itself_is_unknown_in_a_prefix_too(schema_id: int, key: bool) -> None:
    forged = b"\x00" + schema_id.to_bytes(4, "big") + FIVE
    bench = bench_of((BY_ID + FIVE, None), key_format="avro") if key else bench_of((forged, None))
    if key:
        bench.kafka.produce(TP, BY_ID + FIVE, key=forged, timestamp=1000)
    bench.extract()
    stop = bench.commit().partitions[0].stop
    assert stop is not None
    assert (stop.reason, f"no registry assigns the id {schema_id}" in stop.message) == (
        "unknown_schema",
        True,
    )


@pytest.mark.parametrize(
    "value", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x01", b"\x01" + GUID.bytes[:-1], b"\x02"], ids=repr
)
def test_a_value_that_ends_within_its_prefix_is_an_error_row(value: bytes) -> None:
    bench = bench_of((value, None), (ZERO, BY_ID))
    bench.extract()
    assert [row["value"] for row in rows(bench, errors=True)] == [value]
    assert len(rows(bench)) == 1


@pytest.mark.parametrize(
    ("data", "path", "position"),
    [
        (b"\x00", (0,), 1),
        (b"\x02\x06rest", (3,), 2),
        (b"\x04\x02\x00", (1, 0), 3),
        (b"\xc8\x01" + b"\x02" * 100, (1,) * 100, 102),
        (b"", (), -1),
        (b"\x02", (), -1),
        (b"\x04\x02", (), -1),
        (b"\x01", (), -1),
        (b"\x02\x01", (), -1),
        (b"\xca\x01" + b"\x02" * 101, (), -1),
        (b"\xff\xff\xff\xff\xff\x01", (), -1),
        (b"\x02\xff\xff\xff\xff\xff\x01", (), -1),
    ],
    ids=lambda part: repr(part)[:30],
)
def test_a_path_of_types_is_a_count_and_as_many_indexes(
    data: bytes, path: tuple[int, ...], position: int
) -> None:
    assert message_path(data) == (path, position)


def test_ids_of_types_are_the_same_in_every_task_and_no_registrys() -> None:
    ids = {type_id(number, path) for number in range(50) for path in ((), (0,), (1,), (1, 0), ("a",))}
    assert len(ids) == 250
    assert min(ids) >= FIRST_TYPE_ID
    assert max(ids) < FIRST_TYPE_ID + 2**29
