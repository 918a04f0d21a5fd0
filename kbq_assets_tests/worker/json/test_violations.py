"""JSON values are validated if the topic says so: bad ones become error rows, good ones rows as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.core.catalog.documents import mistake_of
from kbq_assets_tests.pipelines.bench import Bench
from kbq_assets_tests.worker.json.test_inferred_columns import bench_of, framed, produce, records_of, rows

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
BAD = "/id violates its JSON Schema at /properties/id/type"


def settings(**options: Any) -> TopicSettings:
    return TopicSettings.of(dataset="d", table="t", validate="true", **options)


def errors(bench: Bench) -> list[tuple[str, str, bytes]]:
    files = [f for w in bench.commit().partitions[0].windows for f in w.files if "errors" in f.table.table]
    return [(e["reason"], e["message"], e["value"]) for e in records_of(bench, files)]


@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_the_registrys_schema_judges(framing: str) -> None:
    bench = Bench(settings(format="json_schema", framing=framing))
    bench.registry.documents = {7: json.dumps(SCHEMA), 8: "true"}
    bad = framed(7, {"id": "x"})
    produce(bench, framed(7, {"id": 1}), bad, framed(8, {"id": "x"}), None, framed(7, b"{".decode()), b"\x01")
    bench.extract()
    assert [row["_kafka_offset"] for row in rows(bench)] == [0, 2]
    assert errors(bench)[0] == ("VIOLATES_SCHEMA", BAD, bad)
    assert [reason for reason, _, _ in errors(bench)] == [
        "VIOLATES_SCHEMA", "TOMBSTONE", "VIOLATES_SCHEMA", "WRONG_MAGIC",
    ]  # fmt: skip
    bench.load()
    assert bench.reconcile().accounted


@pytest.mark.parametrize("format", ["json", "json_columns"])
@pytest.mark.parametrize("pii", ["", "note:drop"])
def test_a_declared_schema_judges_documents_as_they_came(format: str, pii: str) -> None:
    if pii:
        own = settings(format=format, declared=json.dumps(SCHEMA), pii=pii, pii_others="keep")
    else:
        own = settings(format=format, declared=json.dumps(SCHEMA))
    bench = bench_of({"id": 1, "note": "x"}, {"id": "secret"}, {"id": 2, "note": 5}, b"{", settings=own)
    bench.extract()
    assert [row["_kafka_offset"] for row in rows(bench)] == [0]
    assert [reason for reason, _, _ in errors(bench)] == ["VIOLATES_SCHEMA"] * 2 + ["INVALID_JSON"]
    if format == "json":
        assert rows(bench)[0]["payload"].replace(" ", "") == ('{"id":1}' if pii else '{"id":1,"note":"x"}')
    assert not pii or all("/id" not in message.split(" at ")[0] for _, message, _ in errors(bench))


def test_a_schema_that_cannot_validate_stops_its_partition_with_the_reason() -> None:
    bench = Bench(settings(format="json_schema"))
    bench.registry.documents = {7: '{"$ref": "https://example.com/a.json"}'}
    produce(bench, framed(7, {"id": 1}))
    report = bench.extract()
    [stop] = report.stops
    assert "schema 7" in str(report.stops)
    assert "KBQ does not fetch schemas" in str(report.stops)
    assert stop is not None


def test_validation_needs_a_schema() -> None:
    with pytest.raises(ConfigurationError, match="format=avro have no JSON Schema"):
        settings(format="avro")
    assert "declares no schema" in mistake_of("t dataset=d format=json validate=true")
    assert parse_source_list("t dataset=d format=json_schema validate=true", "x")[0].settings.records.validate
    bench = bench_of({"id": 1}, settings=settings(format="json_columns"))
    assert "no schema is declared" in str(bench.extract().stops)
