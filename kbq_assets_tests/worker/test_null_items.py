"""Nulls in arrays: BigQuery refuses the file of such a record, so with BigQuery the record alone is bad."""

from __future__ import annotations

import itertools
import json
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.fakes.platform import FakePlatform
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.pipelines.bench import ERRORS, TP, Bench
from kbq_assets_tests.worker.debezium.events import ENVELOPE_ID, UPDATE, avro_envelope, encoded

T = TableReference("d", "t")
OTHERS = ["null", "string", "long"]
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "ys", "type": {"type": "array", "items": OTHERS}}],
}
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "xs", "type": ["null", {"type": "array", "items": ["null", "long"]}]},
        {"name": "inner", "type": {"type": "array", "items": [INNER, "null"]}},
        {"name": "m", "type": {"type": "map", "values": ["null", "long"]}},
    ],
}
GOOD = {"xs": [1, 2], "inner": [{"ys": ["a", 3]}], "m": {"a": None}}


def rows_of(record: dict[str, Any], null_items: str) -> tuple[int, int]:
    """The rows and error rows of a good record and another one; all are accounted for."""
    bench = Bench(TopicSettings.of(dataset="d", table="t", null_items=null_items, error_share=1.0))
    bench.registry = FakeRegistry({1: json.dumps(SCHEMA)})
    for each in (GOOD, record):
        body = BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), each)
        bench.kafka.produce(TP, struct.pack(">bI", 0, 1) + body.getvalue(), key=b"k", timestamp=1000)
    report = bench.extract()
    assert (report.stops, report.failures) == ((), {})
    bench.load()
    assert bench.reconcile().accounted
    return len(bench.offsets(T)), len(bench.offsets(ERRORS))


@pytest.mark.parametrize(
    "wrong", [{"xs": [1, None]}, {"inner": [None]}, {"inner": [{"ys": []}, {"ys": ["a", None]}]}]
)
def test_a_null_in_an_array_makes_its_record_bad_where_bigquery_loads_it(wrong: dict[str, Any]) -> None:
    assert rows_of({**GOOD, **wrong}, "bad") == (1, 1)
    assert rows_of({**GOOD, **wrong}, "keep") == (2, 0)


@pytest.mark.parametrize("right", [{"xs": None}, {"xs": []}, {"inner": []}, {"m": {"a": None, "b": 1}}])
def test_other_nulls_and_empty_arrays_are_rows(right: dict[str, Any]) -> None:
    assert rows_of({**GOOD, **right}, "bad") == (2, 0)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(("null_items", "expected"), [("bad", (1, 1)), ("keep", (2, 0))])
def test_arrays_of_changed_rows_are_judged_by_the_row_after_the_change(
    optional: bool, null_items: str, expected: tuple[int, int]
) -> None:
    """The null in the row before the change is in no file."""
    array = {"type": "array", "items": ["null", "long"]}
    schema = avro_envelope({"id": "int", "xs": ["null", array] if optional else array})
    settings = TopicSettings.of(
        dataset="d", table="t", format="debezium", null_items=null_items, error_share=1.0
    )
    bench = Bench(settings)
    bench.registry = FakeRegistry({ENVELOPE_ID: json.dumps(schema)})
    rows = [{"id": 1, "xs": [1, None]}, {"id": 1, "xs": [1, 2]}, {"id": 1, "xs": [None]}]
    for before, after in itertools.pairwise(rows):
        event = encoded(schema, {**UPDATE, "before": before, "after": after})
        bench.kafka.produce(TP, event, key=b"k", timestamp=1000)
    report = bench.extract()
    assert (report.stops, report.failures) == ((), {})
    bench.load()
    assert bench.reconcile().accounted
    assert (len(bench.offsets(T)), len(bench.offsets(ERRORS))) == expected


@pytest.mark.parametrize(
    ("environ", "option", "expected"),
    [
        ({}, "", "keep"),
        (
            {"KBQ_STAGING": "gs://my-bucket/p", "KBQ_WAREHOUSE": "bigquery://my-project?location=EU"},
            "",
            "bad",
        ),
        (
            {"KBQ_STAGING": "gs://my-bucket/p", "KBQ_WAREHOUSE": "bigquery://my-project?location=EU"},
            "null_items=keep",
            "keep",
        ),
    ],
)
def test_bigquery_among_the_warehouses_decides_unless_the_topic_does(
    tmp_path: Path, environ: dict[str, str], option: str, expected: str
) -> None:
    world = FakePlatform(tmp_path, sources=f"orders dataset=d {option}\n", environ=environ)
    [source] = world.parts.deployment.sources.read()
    assert source.settings.records.null_items == expected
