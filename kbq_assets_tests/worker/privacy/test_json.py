"""A canary in JSON topics: it is found in no object that a run writes."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.bench import TP, Bench
from kbq_assets_tests.worker.privacy.test_avro import CANARY, KEYS, everything, rows

PII = "email:pseudonym,home.street:drop,tags.note:null,_key:pseudonym"
DOCUMENT = {
    "id": 5,
    "price": 1.10,
    "email": CANARY,
    "home": {"street": CANARY, "city": "Rome"},
    "tags": [{"note": CANARY, "kind": "x"}],
    "more": CANARY,
}
SCHEMA = {
    "type": "object",
    "properties": {"email": {"type": "string", "pii": "HIGH"}, "id": {"type": "integer"}},
}


def bench_of(format: str, **options: Any) -> Bench:
    settings = TopicSettings.of(dataset="d", table="t", format=format, codec="null", keys=True, **options)
    return Bench(settings, pseudonyms=KEYS)


def produce(bench: Bench, *documents: object, prefix: bytes = b"") -> None:
    for document in documents:
        value = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        key = CANARY.encode()
        headers = [("h", key)]
        bench.kafka.produce(TP, value and prefix + value, key=key, timestamp=1000, headers=headers)


#: five fields of DOCUMENT that PII does not name, and five values to which its decisions cannot be applied
DROPPED = 10
BAD = (
    b'{"email": "' + CANARY.encode(),
    b'{"email": "x", "email": "' + CANARY.encode() + b'"}',
    b'{"email": "' + CANARY.encode() + b'", "n": ' + b"9" * 5000 + b"}",
)


@pytest.mark.parametrize("format", ["json", "json_columns"])
def test_the_canary_is_found_nowhere(format: str) -> None:
    bench = bench_of(format, pii=PII, pii_others="drop", tombstones="row")
    odd = [{"email": {"x": CANARY}}, {"email": [CANARY]}, {"home": CANARY, "tags": CANARY}, [CANARY], CANARY]
    produce(bench, DOCUMENT, *odd, *BAD, None)
    bench.extract()
    reasons = [row["reason"] for row in rows(bench, "kbq_errors")]
    assert reasons == ["INVALID_JSON", "REPEATED_KEY", "OUT_OF_RANGE"]
    assert bench.commit().totals.dropped_values == DROPPED
    assert CANARY.encode() not in everything(bench)
    assert {row["_kafka_key"] for row in rows(bench)} == {KEYS.of("_key", CANARY.encode()).encode()}
    bench.load()
    assert bench.reconcile().accounted


def test_what_is_kept_is_found() -> None:
    for format in ("json", "json_columns"):
        bench = bench_of(format, pii="email:drop,_key:pseudonym", pii_others="keep")
        produce(bench, {"more": CANARY})
        bench.extract()
        assert CANARY.encode() in everything(bench)


def test_a_payload_is_rewritten_and_keeps_its_column_and_numbers() -> None:
    bench = bench_of("json", pii=PII, pii_others="keep")
    produce(bench, b'{"id":5,"price":1.10,"email":"e","home":{"street":"s","city":"c"}}')
    bench.extract()
    [row] = rows(bench)
    expected = f'{{"id":5,"price":1.10,"email":"{KEYS.of("email", b"e")}","home":{{"city":"c"}}}}'
    assert row["payload"] == expected
    plain = bench_of("json")
    produce(plain, {"id": 5})
    plain.extract()
    [with_pii], [without] = (
        [f for w in b.commit().partitions[0].windows for f in w.files] for b in (bench, plain)
    )
    assert with_pii.fingerprint == without.fingerprint


def test_columns_are_of_what_is_left() -> None:
    bench = bench_of("json_columns", pii=PII, pii_others="keep")
    produce(bench, DOCUMENT)
    bench.extract()
    [row] = rows(bench)
    assert (row["email"], row["home"], row["tags"]) == (
        KEYS.of("email", CANARY.encode()),
        {"city": "Rome"},
        [{"kind": "x"}],
    )


def test_a_payload_has_no_record_s_name() -> None:
    bench = bench_of("json", pii="a:drop,_key:pseudonym", pii_others="keep", route="record_name")
    produce(bench, {"b": 1})
    bench.extract()
    assert len(rows(bench)) == 1


@pytest.mark.parametrize("format", ["json", "json_columns"])
def test_a_field_that_nobody_decided_about_stops_the_partition(format: str) -> None:
    bench = bench_of(format, pii="email:drop,id:keep,_key:pseudonym")
    produce(bench, {"email": "x", "id": 5})
    bench.extract()
    produce(bench, {"id": 6, "more": CANARY})
    [stop] = bench.extract().stops
    assert stop.reason == "unstageable_schema"
    assert stop.message.endswith("offset 1: UNSTAGEABLE_SCHEMA: pii says nothing about the field 'more'")
    assert CANARY.encode() not in everything(bench)


def json_schema(pii: str, **options: Any) -> Bench:
    bench = bench_of("json_schema", pii=f"{pii}_key:pseudonym", **options)
    bench.registry.documents[8] = json.dumps(SCHEMA)
    return bench


def test_declared_fields_need_no_decision_and_tagged_ones_do() -> None:
    bench = json_schema("email:null,")
    produce(bench, {"id": 5, "email": CANARY}, prefix=struct.pack(">bI", 0, 8))
    bench.extract()
    assert [(row["id"], row["email"]) for row in rows(bench)] == [(5, None)]
    bench = json_schema("")
    produce(bench, {"id": 5, "email": CANARY}, prefix=struct.pack(">bI", 0, 8))
    [stop] = bench.extract().stops
    assert stop.message.endswith("tagged as personal data: email")
    assert CANARY.encode() not in everything(bench)


def test_fields_come_and_go_with_schema_ids() -> None:
    bench = json_schema("email:null,phone:drop,")
    properties = {"phone": {"type": "string", "pii": "HIGH"}, "id": {"type": "integer"}}
    bench.registry.documents[9] = json.dumps({"type": "object", "properties": properties})
    for schema_id, name in ((8, "email"), (8, "email"), (9, "phone"), (8, "email"), (9, "phone")):
        produce(bench, {"id": schema_id, name: CANARY}, prefix=struct.pack(">bI", 0, schema_id))
    assert bench.extract().stops == ()
    assert [(row["id"], row["email"], row.get("phone")) for row in rows(bench)] == [
        (schema_id, None, None) for schema_id in (8, 8, 9, 8, 9)
    ]
    [window] = bench.commit().partitions[0].windows
    assert [file.rows for file in window.files] == [2, 3]
    assert CANARY.encode() not in everything(bench)


@pytest.mark.parametrize(
    ("others", "stopped"), [(None, True), ("keep", True), ("drop", False), ("stop", True)]
)
def test_tagged_fields_of_any_name_are_never_kept(others: str | None, stopped: bool) -> None:
    decided: dict[str, Any] = {} if others is None else {"pii": "id:keep,_key:keep", "pii_others": others}
    bench = Bench(TopicSettings.of(dataset="d", table="t", format="json_schema", codec="null", **decided))
    schema = {"properties": {"id": {"type": "integer"}}, "patternProperties": {"^x": {"$ref": "#/$defs/a"}}}
    bench.registry.documents[8] = json.dumps({**schema, "$defs": {"a": {"type": "string", "pii": "HIGH"}}})
    produce(bench, {"id": 5, "x1": CANARY}, prefix=struct.pack(">bI", 0, 8))
    assert bool(bench.extract().stops) == stopped
    assert CANARY.encode() not in everything(bench)


def test_a_tag_of_the_registry_wants_a_decision_where_the_topic_has_none() -> None:
    settings = TopicSettings.of(dataset="d", table="t", format="json_schema", codec="null")
    bench = Bench(settings)
    bench.registry.documents[8] = json.dumps(SCHEMA)
    produce(bench, {"id": 5, "email": CANARY}, prefix=struct.pack(">bI", 0, 8))
    [stop] = bench.extract().stops
    assert stop.reason == "unstageable_schema"
    assert "no decision about fields that are tagged as personal data: email" in stop.message
    assert CANARY.encode() not in everything(bench)


def test_a_tag_on_a_condition_wants_a_decision_and_has_it() -> None:
    is_person = {"properties": {"kind": {"const": "person"}}}
    person = {"properties": {"email": {"type": "string", "pii": "HIGH"}, "n": {"type": "integer"}}}
    schema = json.dumps({"type": "object", "if": is_person, "then": person})
    document = {"kind": "person", "email": CANARY, "n": 5}
    for decisions, stopped in (("kind:keep", True), ("email:null,kind:keep", False)):
        bench = bench_of("json_schema", pii=f"{decisions},_key:pseudonym")
        bench.registry.documents[8] = schema
        produce(bench, document, prefix=struct.pack(">bI", 0, 8))
        assert bool(bench.extract().stops) == stopped
        assert CANARY.encode() not in everything(bench)
    assert [(row["kind"], row["email"], row["n"]) for row in rows(bench)] == [("person", None, 5)]
