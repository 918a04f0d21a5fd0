"""JSON topics as tables with columns: what a run stages, and how versions of a shape come about."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.json.inference import REST, InferredSchema
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.worker.json.inferred_columns import JsonColumns
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench

SETTINGS = TopicSettings.of(dataset="d", table="t", format="json_columns")
PATH = f"shapes/{TOPIC}.json"


def bench_of(*documents: object, settings: TopicSettings = SETTINGS) -> Bench:
    """A topic with these documents; bytes and None as they are."""
    bench = Bench(settings)
    produce(bench, *documents)
    return bench


def produce(bench: Bench, *documents: object) -> None:
    for document in documents:
        raw = document if document is None or isinstance(document, bytes) else json.dumps(document).encode()
        bench.kafka.produce(TP, raw, key=b"k", timestamp=86_400_000)


def staged(bench: Bench) -> list[StagedFile]:
    """Files of the table, of all windows."""
    windows = bench.commit().partitions[0].windows
    return [file for window in windows for file in window.files if file.table.table == "t"]


def rows(bench: Bench) -> list[dict[str, Any]]:
    """Rows by offset."""
    return sorted(records_of(bench, staged(bench)), key=lambda row: int(row["_kafka_offset"]))


def records_of(bench: Bench, files: list[StagedFile]) -> list[dict[str, Any]]:
    readers = [fastavro.reader(io.BytesIO(bench.store.get(file.path).data)) for file in files]
    return [row for reader in readers for row in reader if isinstance(row, dict)]


def inferred(bench: Bench) -> InferredSchema:
    return codec.loads(InferredSchema, bench.store.get(PATH).data, PATH)


def test_fields_are_columns_and_the_rest_is_in_a_column_of_its_own() -> None:
    bench = bench_of({"a": 1, "b": {"c": "x"}}, {"a": 2}, {"a": "three", "d": True})
    bench.extract()
    assert [(row["a"], row["b"], row.get("d"), row[REST]) for row in rows(bench)] == [
        (1, {"c": "x"}, None, None),
        (2, None, None, None),
        (None, None, True, '{"a":"three"}'),
    ]


def test_a_version_is_a_schema_id_and_columns_are_only_added() -> None:
    bench = bench_of({"a": 1}, {"a": 2})
    bench.extract()
    produce(bench, {"a": 3}, {"a": 4, "b": "x"}, {"a": 5})
    bench.extract()
    assert inferred(bench).version == 3
    assert [(f.name.schema_id, f.rows) for f in staged(bench)] == [(2, 2), (2, 1), (3, 2)]
    bench.load()
    assert bench.reconcile().accounted


def test_bad_documents_and_tombstones_follow_the_topic_s_policies_as_they_came() -> None:
    bench = bench_of({"a": 1}, b"{", None, b"\xff", {"a": 2})
    bench.extract()
    totals = bench.commit().partitions[0].totals
    assert (totals.staged, totals.errors) == (2, 3)
    files = [f for w in bench.commit().partitions[0].windows for f in w.files if "errors" in f.table.table]
    assert [(e["reason"], e["value"], e["schema_id"]) for e in records_of(bench, files)] == [
        ("INVALID_JSON", b"{", None),
        ("TOMBSTONE", None, None),
        ("INVALID_UTF8", b"\xff", None),
    ]


def test_a_tombstone_may_be_a_row() -> None:
    settings = TopicSettings.of(dataset="d", table="t", format="json_columns", tombstones="row", keys=True)
    bench = bench_of({"a": 1}, None, settings=settings)
    bench.extract()
    assert [row["_kafka_key"] for row in rows(bench)] == [b"k", b"k"]
    bench.load()
    assert bench.reconcile().accounted


def test_documents_that_cannot_be_columns_are_whole_in_the_side_column() -> None:
    bench = bench_of([1, 2], 5, b'{"a": 1, "a": 2}')
    bench.extract()
    assert [row[REST] for row in rows(bench)] == ["[1,2]", "5", '{"a": 1, "a": 2}']


def test_the_event_date_comes_from_any_form_of_a_time() -> None:
    settings = TopicSettings.of(dataset="d", table="t", format="json_columns", event_date="meta.at")
    bench = bench_of(
        {"meta": {"at": "2025-01-31T23:30:00-02:00"}},
        {"meta": {"at": 86_400 * 20_000}},
        {"meta": {}},
        settings=settings,
    )
    bench.extract()
    assert [str(row["event_date"]) for row in rows(bench)] == ["2025-02-01", "2024-10-04", "1970-01-02"]
    assert [row["_kbq_event_time"] is None for row in rows(bench)] == [False, False, True]


def chunk_of(*documents: object) -> Chunk:
    return Chunk.from_messages([RawRecord(json.dumps(d).encode(), n) for n, d in enumerate(documents)])


def test_two_tasks_that_find_fields_at_once_add_both() -> None:
    store = FaultyMemoryStore()
    one, other = JsonColumns("t", SETTINGS, store), JsonColumns("t", SETTINGS, store)
    one.translate(chunk_of({"a": 1}))
    other.translate(chunk_of({"b": 1}))
    stored = codec.loads(InferredSchema, store.get("shapes/t.json").data, "x")
    assert [each.key for each in stored.root.fields] == ["a", "b"]
    assert stored.version == 3
    assert json.loads(other.schema(3).schema)["fields"][0]["name"] == "a"


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY])
def test_a_write_without_an_answer_is_read_again(outcome: Outcome) -> None:
    calls = []

    def faults(call: Call) -> Outcome:
        calls.append(call)
        return outcome if call.writes and len([c for c in calls if c.writes]) == 1 else Outcome.OK

    store = FaultyMemoryStore(faults)
    columns = JsonColumns("t", SETTINGS, store.view("task"))
    columns.translate(chunk_of({"a": 1}))
    stored = codec.loads(InferredSchema, store.get("shapes/t.json").data, "x")
    assert (stored.version, [each.key for each in stored.root.fields]) == (2, ["a"])


CUSTOMER = {
    "definitions": {"address": {"type": "object", "properties": {"zip": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"},
        "score": {"type": ["number", "null"]},
        "home": {"$ref": "#/definitions/address"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "open": {},
    },
}


def framed(schema_id: int, document: object) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + json.dumps(document).encode()


def test_a_json_schema_s_columns_are_there_from_the_start() -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="t", format="json_schema"))
    bench.registry.documents = {7: json.dumps(CUSTOMER)}
    produce(
        bench, framed(7, {"score": 1, "home": {"zip": 5}, "open": True}), b"\x01x", b"\x00", framed(7, [1])
    )
    bench.extract()
    first, last = rows(bench)
    assert (first["id"], first["score"], first["tags"], first["open"]) == (None, 1.0, [], True)
    assert (first["home"], first[REST]) == ({"zip": None}, '{"home":{"zip":5}}')
    assert last[REST] == "[1]"
    assert bench.commit().partitions[0].totals.errors == 2
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize(
    "schema",
    [
        '{"properties": {"a": {"type": ["integer", {"type": "object"}, ["x"]]}}}',
        '{"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}, "c": {"$ref": "#"}, "d": {"$ref": "#"}}}',
        '{"properties": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"type": "\\ud800", "properties": {"\\ud800": {"type": "string"}}, "$ref": "#/\\ud800"}',
    ],
)
def test_no_json_schema_stops_another_one_s_records(schema: str) -> None:
    bench = Bench(
        TopicSettings.of(dataset="d", table="t", format="json_schema", restart="manual"), partitions=2
    )
    bench.registry.documents = {7: schema, 8: json.dumps(CUSTOMER)}
    bench.kafka.produce(TopicPartition(TOPIC, 1), framed(7, {"a": 1}), timestamp=1000)
    produce(bench, framed(8, {"score": 1}))
    stops = bench.extract().stops
    assert [stop.reason for stop in stops] in ([], ["unstageable_schema"])
    assert [row["score"] for row in rows(bench)] == [1.0]


@pytest.mark.parametrize(
    ("schema_id", "reason", "why"),
    [
        (99, "unknown_schema", "schema 99 is not in the registry"),
        (1, "unstageable_schema", "schema 1: its type is AVRO, not JSON"),
        (7, "unstageable_schema", "schema 7: it cannot be read as JSON (JSONDecodeError)"),
    ],
)
def test_a_schema_that_is_none_of_json_stops_the_partition(schema_id: int, reason: str, why: str) -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="t", format="json_schema"))
    bench.registry.documents = {7: "{"}
    produce(bench, framed(schema_id, {"a": 1}))
    [stop] = bench.extract().stops
    assert stop.reason == reason
    assert stop.message.endswith(f"offset 0: {reason.upper()}: {why}")


def test_a_run_with_small_windows_accounts_for_every_document() -> None:
    bench = Bench(SETTINGS, window=WindowLimits(records=3))
    produce(bench, *({"id": n, f"f{n % 7}": n, "m": [n] if n % 2 else n} for n in range(40)))
    bench.extract()
    bench.load()
    result = bench.reconcile()
    assert (result.accounted, result.totals()["loaded"]) == (True, 40)


def test_an_automatic_business_time_is_searched_in_each_document() -> None:
    settings = TopicSettings.of(dataset="d", table="t", format="json_columns", event_date="auto")
    bench = bench_of(
        {"createdAt": 1_738_326_600, "updated_at": "2025-02-02"},
        {"event_time": "2025-01-31T23:30:00-02:00", "createdAt": 1_738_326_600},
        {"duration": 5},
        settings=settings,
    )
    bench.extract()
    assert [str(row["event_date"]) for row in rows(bench)] == ["2025-01-31", "2025-02-01", "1970-01-02"]
    assert [row["_event_time"] == row["_kbq_event_time"] for row in rows(bench)] == [True, True, False]
    files = list(bench.commit().files)
    assert sum(file.events.fallbacks for file in files) == 1
    assert sum(rows for file in files for rows in file.events.hours.values()) == 3


@pytest.mark.parametrize("pii", ["", "email:drop"])
def test_a_payload_with_a_number_that_no_double_holds_is_an_error_row(pii: str) -> None:
    settings = TopicSettings.of(dataset="d", table="t", format="json", pii=pii, pii_others="keep")
    bench = bench_of(b'{"a":1e308}', b'{"a":[1,-1e400]}', b'{"a":"1e400"}', settings=settings)
    assert bench.extract().stops == ()
    assert [row["payload"] for row in rows(bench)] == ['{"a":1e308}', '{"a":"1e400"}']
    files = [file for file in bench.commit().partitions[0].windows[0].files if file.table.table != "t"]
    [error] = records_of(bench, files)
    assert (error["reason"], error["_kafka_offset"]) == ("OUT_OF_RANGE", 1)
    bench.load()
    assert bench.reconcile().accounted


def test_a_number_that_no_double_holds_is_a_text_in_the_column_of_the_rest() -> None:
    bench = bench_of(b'{"a":1.5}', b'{"a":1e400}')
    bench.extract()
    assert [(row["a"], row[REST]) for row in rows(bench)] == [(1.5, None), (None, '{"a":"1e400"}')]


UPSERT = TopicSettings.of(
    dataset="d",
    table="t",
    format="json_columns",
    load="delete_insert",
    key="id",
    version="at.rev",
    error_share="1",
)


@pytest.mark.parametrize(
    ("document", "reason", "message"),
    [
        ({"id": "1"}, "UNFIT_VALUE", "id is not INT64, as the column that `key` names"),
        ({"id": 2**63}, "UNFIT_VALUE", "id is not"),
        ({"id": 1.5}, "UNFIT_VALUE", "id is not"),
        ({"id": {"new": 1}}, "UNFIT_VALUE", "id is not"),
        ({"id": 1, "at": {"rev": True}}, "UNFIT_VALUE", "at.rev is not INT64, as the column that `version` names"),
        ({"id": 1, "at": {"rev": "1\\"}}, "UNFIT_VALUE", "at.rev is not"),
        ({"id": 1, "at": 7}, "UNFIT_VALUE", "at.rev is not"),
        (b'{"id":1,"id":2}', "REPEATED_KEY", "duplicate key"),
        (b'{"id":%s}' % (b"1" * 5_000), "OUT_OF_RANGE", "outside the range"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_key_or_version_is_a_bad_record(
    document: object, reason: str, message: str
) -> None:
    bench = bench_of({"id": 1, "at": {"rev": 1}, "v": 1}, settings=UPSERT)
    bench.extract()
    produce(
        bench, document, {"id": 1, "at": {"rev": 2}, "v": "text"}, {"v": 1}, {"id": None, "at": {"rev": None}}
    )
    bench.extract()
    assert [row["_kafka_offset"] for row in rows(bench)] == [0, 2, 3, 4]
    [(found, why)] = [(row["reason"], row["message"]) for row in records_of(bench, errors(bench))]
    assert (found, message in why) == (reason, True)


@pytest.mark.parametrize(
    ("documents", "good"),
    [
        ([{"id": 1}, {"id": "x"}, {"id": 2}, {"id": 2**70}], [0, 2]),
        ([{"id": 1}, {"id": "x"}, {"id": "y"}, {"id": None}, {}], [1, 2, 3, 4]),
        ([{"id": 1.5}, {"id": [1]}, {"id": 1}, {"id": 2}], [2, 3]),
        ([{"id": 1, "at": "now"}, {"id": 2, "at": {"rev": 1}}, {"id": 3, "at": {"rev": "1"}}], [1]),
        ([{"id": 1, "at": {"rev": 1}}, {"id": 3, "at": {"rev": "1"}}, {"id": 4, "at": {"rev": 2}}], [0, 2]),
    ],
)
def test_the_most_frequent_kind_of_a_key_s_first_values_is_its_type(
    documents: list[Any], good: list[int]
) -> None:
    """A JSON column would park the table for good, also another table, and also after a reset."""
    bench = bench_of(*documents, settings=UPSERT)
    bench.kafka.chunk_records = 10
    bench.extract()
    assert [row["_kafka_offset"] for row in rows(bench)] == good


def test_a_key_in_snake_case_is_found_in_documents_and_other_tables_take_any_value() -> None:
    for options, expected in (({"load": "upsert", "key": "order_id"}, [0, 1]), ({}, [0, 1, 2])):
        settings = SETTINGS.with_options(column_names="snake_case", error_share="1", **options)
        bench = bench_of({"orderId": 1}, {"orderId": 2}, settings=settings)
        bench.extract()
        produce(bench, {"orderId": "1"})
        bench.extract()
        assert [row["_kafka_offset"] for row in rows(bench)] == expected


def errors(bench: Bench) -> list[StagedFile]:
    windows = bench.commit().partitions[0].windows
    return [file for window in windows for file in window.files if file.table.table != "t"]
