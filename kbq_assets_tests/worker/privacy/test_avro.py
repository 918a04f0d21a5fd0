"""A canary: what was decided about is found nowhere that a run writes."""

from __future__ import annotations

import io
import json
import logging
import struct
from typing import Any

import fastavro
import pytest

from kbq_assets.core.errors import EncodingError
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.wire.privacy.sealed_rows import open_row
from kbq_assets.wire.privacy.sealing import new_key_pair, parse_opening_key, parse_seal_key
from kbq_assets_tests.adapters.protobuf.messages import ORDER, order
from kbq_assets_tests.pipelines.bench import TP, Bench
from kbq_assets_tests.wire.samples import avro_body, framed

CANARY = "canary-5f2b@example.com"
KEYS = Pseudonyms("k", {"k": b"k" * 32})
SCHEMA = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "email", "type": "string"},
        {"name": "note", "type": "string"},
        {"name": "n", "type": "int"},
    ],
}


def bench_of(**options: Any) -> Bench:
    bench = Bench(TopicSettings.of(dataset="d", table="t", **options), pseudonyms=KEYS)
    bench.registry.schemas[8] = str(SCHEMA).replace("'", '"')
    return bench


def produce(bench: Bench, value: bytes | None, key: bytes = CANARY.encode()) -> None:
    bench.kafka.produce(TP, value, key=key, timestamp=1000, headers=[("h", key)])


def rows(bench: Bench, table: str = "t") -> list[Any]:
    files = [f for w in bench.commit().partitions[0].windows for f in w.files if f.table.table == table]
    return [row for f in files for row in fastavro.reader(io.BytesIO(bench.store.get(f.path).data))]


def everything(bench: Bench) -> bytes:
    """All objects of the store; files without compression."""
    parts = [path.encode() + stored.data for path, stored in bench.store.objects.items()]
    return b"\n".join(parts)


def test_the_canary_is_found_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench = bench_of(
        pii="email:pseudonym,note:drop,_key:pseudonym:customer", keys=True, codec="null", tombstones="row"
    )
    good = framed(avro_body(SCHEMA, {"email": CANARY, "note": CANARY, "n": 5}), 8)
    for value in (good, good[:-1], good + b"x", b"\x01" + CANARY.encode(), CANARY.encode(), None):
        produce(bench, value)
    bench.extract()
    first = rows(bench)[0]
    assert (first["email"], first["n"], "note" in first) == (KEYS.of("email", CANARY.encode()), 5, False)
    assert first["_kafka_key"] == KEYS.of("customer", CANARY.encode()).encode()
    errors = rows(bench, "kbq_errors")
    assert [row["reason"] for row in errors] == ["TRUNCATED", "TRAILING_BYTES", "WRONG_MAGIC", "WRONG_MAGIC"]
    assert [(row["value"], row["key"], row["headers"]) for row in errors] == [(None, None, [])] * 4
    bench.load()
    assert bench.reconcile().accounted
    assert CANARY.encode() not in everything(bench)
    assert CANARY not in caplog.text


PRIVATE, PUBLIC = new_key_pair("2026")
BAD = (b"\x01" + CANARY.encode(), CANARY.encode())


def test_sealed_error_rows_open_with_the_private_key_alone() -> None:
    bench = bench_of(pii="email:drop", pii_errors="seal", codec="null")
    bench.seal_key = parse_seal_key(PUBLIC)
    for value in BAD:
        produce(bench, value)
    bench.extract()
    errors = rows(bench, "kbq_errors")
    assert [(row["key"], row["headers"]) for row in errors] == [(None, [])] * 2
    assert CANARY.encode() not in everything(bench)
    keys = parse_opening_key(PRIVATE)
    opened = [open_row(row["value"], keys, TP.topic, 0, row["_kafka_offset"]) for row in errors]
    assert opened == [(value, CANARY.encode(), [("h", CANARY.encode())]) for value in BAD]
    with pytest.raises(EncodingError, match="comes from another record"):
        open_row(errors[0]["value"], keys, TP.topic, 0, 1)


def test_dropped_error_rows_are_skipped_records() -> None:
    bench = bench_of(pii="email:drop", pii_errors="drop")
    for value in BAD:
        produce(bench, value)
    bench.extract()
    assert rows(bench, "kbq_errors") == []
    bench.load()
    account = bench.reconcile()
    totals = account.totals()
    assert (account.accounted, totals["errors"], totals["skipped"]) == (True, 0, 2)


def test_without_a_key_nothing_is_sealed_and_nothing_read() -> None:
    bench = bench_of(pii="email:drop", pii_errors="seal")
    produce(bench, BAD[0])
    [stop] = bench.extract().stops
    assert "set KBQ_PII_SEAL_KEY" in stop.message


def test_without_decisions_the_canary_is_there() -> None:
    bench = bench_of(codec="null", keys=True)
    produce(bench, framed(avro_body(SCHEMA, {"email": CANARY, "note": "x", "n": 5}), 8))
    bench.extract()
    assert CANARY.encode() in everything(bench)


def test_a_decision_that_cannot_be_carried_out_stops_the_partition_and_stages_nothing() -> None:
    bench = bench_of(pii="email:generalise:year", codec="null")
    produce(bench, framed(avro_body(SCHEMA, {"email": CANARY, "note": "x", "n": 5}), 8))
    [stop] = bench.extract().stops
    assert (stop.reason, "cannot be generalised to year" in stop.message) == ("unstageable_schema", True)
    assert CANARY.encode() not in everything(bench)


def more(*names: str, record: str = "Person") -> Any:
    """The schema with other fields in the place of its texts."""
    fields = [{"name": name, "type": "string", "pii": "HIGH"} for name in names]
    return {"type": "record", "name": record, "fields": [*fields, {"name": "n", "type": "int"}]}


@pytest.mark.parametrize("pii", ["email:drop,phone:pseudonym", "email:pseudonym,phone:drop"])
def test_fields_come_and_go_with_schema_ids_and_each_id_has_one_file(pii: str) -> None:
    bench = bench_of(pii=pii, codec="null")
    ids = {8: SCHEMA, 9: more("email", "phone"), 10: more("phone")}
    bench.registry.schemas |= {schema_id: json.dumps(schema) for schema_id, schema in ids.items()}
    person = {"email": CANARY, "note": "x", "phone": CANARY, "n": 5}
    for schema_id in (8, 9, 8, 10, 9, 8):
        produce(bench, framed(avro_body(ids[schema_id], person), schema_id))
    assert bench.extract().stops == ()
    [window] = bench.commit().partitions[0].windows
    assert [(file.name.schema_id, file.rows) for file in window.files] == [(8, 3), (9, 2), (10, 1)]
    dropped, kept = ("email", "phone") if "email:drop" in pii else ("phone", "email")
    expected = [{"email", "note"}] * 3 + [{"email", "phone"}] * 2 + [{"phone"}]
    assert [{"email", "note", "phone"} & row.keys() for row in rows(bench)] == [
        names - {dropped} for names in expected
    ]
    assert {row[kept] for row in rows(bench) if kept in row} == {KEYS.of(kept, CANARY.encode())}
    assert CANARY.encode() not in everything(bench)
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize("field", ["größe", "gr_u00f6_u00dfe"])
@pytest.mark.parametrize("action", ["drop", "null", "pseudonym", "truncate:3"])
def test_a_decision_names_a_field_as_its_producer_or_its_column(field: str, action: str) -> None:
    bench = bench_of(pii=f"{field}:{action}", codec="null")
    bench.registry.schemas[9] = json.dumps(more("größe"))
    produce(bench, framed(avro_body(more("size"), {"size": CANARY, "n": 5}), 9))
    assert (bench.extract().stops, len(rows(bench))) == ((), 1)
    assert CANARY.encode() not in everything(bench)
    if action == "pseudonym":
        assert rows(bench)[0]["gr_u00f6_u00dfe"] == KEYS.of(field, CANARY.encode())


def test_one_topic_s_record_types_have_fields_of_their_own() -> None:
    bench = bench_of(pii="email:drop,phone:drop", codec="null", route="record_name")
    ids = {8: SCHEMA, 9: more("phone", record="Call")}
    bench.registry.schemas[9] = json.dumps(ids[9])
    for schema_id in (8, 9, 8):
        person = {"email": CANARY, "note": "x", "phone": CANARY, "n": 5}
        produce(bench, framed(avro_body(ids[schema_id], person), schema_id))
    assert bench.extract().stops == ()
    [window] = bench.commit().partitions[0].windows
    assert sorted((file.table.table, file.rows) for file in window.files) == [("Call", 1), ("Person", 2)]
    assert CANARY.encode() not in everything(bench)


@pytest.mark.parametrize("schema_id", [2**32 - 1, 2**31 - 1, 2**31 - 250, 2**31 - 256 - 1, 99])
@pytest.mark.parametrize("pii", ["", "email:drop"])
@pytest.mark.parametrize("format", ["avro", "json_schema", "protobuf"])
def test_a_schema_id_that_no_registry_gives_is_unknown(format: str, pii: str, schema_id: int) -> None:
    bench = bench_of(pii=pii, format=format)
    produce(bench, struct.pack(">bI", 0, schema_id) + b"{}")
    report = bench.extract()
    assert ([stop.reason for stop in report.stops], report.failures) == (["unknown_schema"], {})


@pytest.mark.parametrize("pii", ["", "note:drop"])
def test_a_tagged_field_without_a_decision_stops_the_partition(pii: str) -> None:
    bench = bench_of(pii=pii, codec="null")
    bench.registry.schemas[8] = bench.registry.schemas[8].replace('"email",', '"email", "pii": "HIGH",')
    produce(bench, framed(avro_body(SCHEMA, {"email": CANARY, "note": "x", "n": 5}), 8))
    [stop] = bench.extract().stops
    assert "no decision about fields that are tagged as personal data: email" in stop.message
    assert CANARY.encode() not in everything(bench)


def accepted(bench: Bench) -> list[Any]:
    """Stop, and take the bad records as error rows."""
    assert [stop.reason for stop in bench.extract().stops] == ["unstageable_schema"]
    operate.propose_resume(bench.store, TP.topic, as_errors=True).apply()
    assert bench.extract().stops == ()
    return rows(bench, "kbq_errors")


def undecided(format: str, **options: Any) -> Bench:
    """Records of a tagged schema between bad ones of another kind, which have nothing to do with it."""
    bench = bench_of(format=format, codec="null", **options)
    bench.registry.schemas[8] = json.dumps(more("email"))
    bench.registry.documents[9] = '{"properties": {"email": {"type": "string", "pii": "high"}}}'
    for value in (b"\x01one", framed(CANARY.encode(), 8), framed(CANARY.encode(), 9), b"\x01two"):
        produce(bench, value, key=CANARY.encode() if value[0] == 0 else b"k")
    return bench


@pytest.mark.parametrize("format", ["avro", "json_schema", "protobuf"])
def test_accepted_records_of_an_undecided_schema_are_withheld_and_others_are_not(format: str) -> None:
    bench = undecided(format)
    errors = accepted(bench)
    others = {"key": b"k", "headers": [{"key": "h", "value": b"k"}]}
    withheld: dict[str, Any] = {"value": None, "key": None, "headers": []}
    assert [{name: row[name] for name in withheld} for row in errors] == [
        {"value": b"\x01one", **others},
        withheld,
        withheld,
        {"value": b"\x01two", **others},
    ]
    assert [row["_kafka_offset"] for row in errors] == [0, 1, 2, 3]
    assert CANARY.encode() not in everything(bench)
    bench.load()
    assert bench.reconcile().accounted


def test_accepted_records_of_an_undecided_schema_are_sealed_where_there_is_a_key() -> None:
    bench = undecided("avro", pii_errors="seal")
    bench.seal_key = parse_seal_key(PUBLIC)
    _, sealed, *_ = accepted(bench)
    assert CANARY.encode() not in everything(bench)
    opened = open_row(sealed["value"], parse_opening_key(PRIVATE), TP.topic, 0, 1)
    assert (opened.value, opened.key) == (framed(CANARY.encode(), 8), CANARY.encode())
    without = undecided("avro", pii_errors="seal")
    assert [row["value"] for row in accepted(without)] == [b"\x01one", None, None, b"\x01two"]


def test_accepted_records_of_an_undecided_schema_are_dropped_where_it_says_so() -> None:
    bench = undecided("avro", pii_errors="drop")
    assert [row["value"] for row in accepted(bench)] == [b"\x01one", b"\x01two"]
    bench.load()
    account = bench.reconcile()
    assert (account.accounted, account.totals()["skipped"]) == (True, 2)


def test_accepted_records_of_a_schema_without_tags_are_there() -> None:
    bench = bench_of(codec="null")
    bench.registry.schemas[8] = '"string"'
    produce(bench, framed(CANARY.encode(), 8))
    [row] = accepted(bench)
    assert (row["value"], row["key"]) == (framed(CANARY.encode(), 8), CANARY.encode())


def test_without_keys_nothing_is_read() -> None:
    bench = bench_of(pii="email:pseudonym")
    produce(bench, framed(avro_body(SCHEMA, {"email": CANARY, "note": "x", "n": 5}), 8))
    bench.pseudonyms = None
    report = bench.extract()
    [stop] = report.stops
    assert "KBQ_PII_KEYS" in stop.message
    assert stop.reason == "failed"


def test_protobuf_fields_are_decided_about_too() -> None:
    bench = bench_of(pii="note:pseudonym,items.sku:drop", format="protobuf", codec="null")
    bench.registry.messages = {7: ORDER}
    message = order(id=1, note=CANARY)
    message.items.add(sku=CANARY, count=2)
    bench.kafka.produce(
        TP, struct.pack(">bI", 0, 7) + b"\x02\x02" + message.SerializeToString(), timestamp=1000
    )
    bench.kafka.produce(TP, struct.pack(">bI", 0, 7) + b"\x02\x02\xff" + CANARY.encode(), timestamp=1000)
    bench.extract()
    [row] = rows(bench)
    assert (row["note"], row["items"]) == (KEYS.of("note", CANARY.encode()), [{"count": 2}])
    assert CANARY.encode() not in everything(bench)
