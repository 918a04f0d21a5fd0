"""`schemas/value.json` of a JSON topic: its columns and tags hold without a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.catalog_files import CatalogFolder
from kbq_assets.core.catalog import Catalog
from kbq_assets.core.topics.json.declared import declared, tagged
from kbq_assets.core.topics.json.inference import REST, InferredSchema
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.pipelines.catalog.declared_json import compact
from kbq_assets.pipelines.catalog.reader import read_catalog
from kbq_assets_tests.pipelines.bench import TOPIC, TP, Bench
from kbq_assets_tests.worker.privacy.test_avro import everything, rows

SCHEMA = {
    "title": "An order",
    "type": "object",
    "$defs": {"home": {"type": "object", "properties": {"street": {"type": "string", "pii": "HIGH"}}}},
    "properties": {
        "id": {"type": "integer", "description": "its number"},
        "description": {"type": "string", "examples": ["x"]},
        "home": {"$ref": "#/$defs/home"},
    },
}
ANY_NAME: Any = {**SCHEMA, "properties": {"id": {}}, "additionalProperties": {"$ref": "#/$defs/home"}}
ENTRY = """kafka: {name: shop.events}
encoding: json
records: {json: columns}
consumers: [archiver]
destination: {dataset: d, table: t}
"""


def catalog(folder: Path, schema: Any, entry: str) -> Catalog:
    place = folder / "shop" / "sales" / "orders"
    (place / "schemas").mkdir(parents=True, exist_ok=True)
    (place / "schemas" / "value.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    (place / "prod").mkdir(exist_ok=True)
    (place / "prod" / "topic.yaml").write_text(entry)
    return read_catalog(CatalogFolder(folder).read())


def test_attributes_besides_types_and_tags_are_not_copied() -> None:
    text = compact(SCHEMA)
    assert "its number" not in text and "An order" not in text
    assert tagged(json.loads(text)) == ["home.street"]
    assert InferredSchema().grown_by(declared(json.loads(text))) == InferredSchema().grown_by(
        declared(SCHEMA)
    )
    elsewhere = {"x-types": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/x-types/a"}}}
    assert json.loads(compact(elsewhere)) == elsewhere


@pytest.mark.parametrize(
    ("schema", "entry", "message"),
    [
        (SCHEMA, ENTRY, "no decision about fields with the tag HIGH: home.street"),
        (SCHEMA, ENTRY.replace("json\n", "json-schema\n"), "the tag HIGH: home.street"),
        (SCHEMA, ENTRY.replace("records: {json: columns}\n", ""), "the tag HIGH: home.street"),
        (SCHEMA, f"{ENTRY}pii: {{fields: {{home: drop, emial: drop}}}}\n", "does not declare 'emial'"),
        (ANY_NAME, ENTRY, "tags fields of any name"),
        (ANY_NAME, f"{ENTRY}pii: {{fields: {{id: keep}}, others: keep}}\n", "tags fields of any name"),
        ("{", ENTRY, "not JSON"),
        ({"type": "object"}, ENTRY, "declares no field"),
        ({"properties": {f"{n:0>900}": {} for n in range(120)}}, ENTRY, "too large"),
    ],
)
def test_a_schema_that_cannot_hold_is_a_mistake(
    tmp_path: Path, schema: Any, entry: str, message: str
) -> None:
    found = catalog(
        tmp_path, schema, entry.replace("records: {json: columns}\n", "") if "json-schema" in entry else entry
    )
    assert any(message in str(problem) for problem in found.problems), found.problems


def test_tagged_fields_of_any_name_may_be_dropped(tmp_path: Path) -> None:
    schema = {**ANY_NAME, "properties": {"id": {"type": "integer"}}}
    assert catalog(tmp_path, schema, f"{ENTRY}pii: {{fields: {{id: keep}}, others: drop}}\n").problems == ()


def test_a_topic_that_is_not_archived_needs_no_decision(tmp_path: Path) -> None:
    assert catalog(tmp_path, SCHEMA, ENTRY.replace("[archiver]", "[]")).problems == ()


@pytest.mark.parametrize("others", ["keep", "drop"])
def test_columns_are_those_declared_and_the_rest_has_a_column_of_its_own(tmp_path: Path, others: str) -> None:
    found = catalog(
        tmp_path, SCHEMA, f"{ENTRY}pii: {{fields: {{home.street: pseudonym}}, others: {others}}}\n"
    )
    assert found.problems == ()
    [entry] = found.entries
    keys = Pseudonyms("k", {"k": b"k" * 32})
    bench = Bench(entry.settings, pseudonyms=keys)
    assert entry.topic == TOPIC
    bench.kafka.produce(
        TP, json.dumps({"id": 5, "home": {"street": "canary"}, "new": 1}).encode(), timestamp=1000
    )
    bench.extract()
    [row] = rows(bench)
    assert (row["id"], row["description"], row["home"]) == (
        5,
        None,
        {"street": keys.of("home.street", b"canary")},
    )
    assert ("new" in row, row[REST]) == (False, '{"new":1}' if others == "keep" else None)
    assert b"canary" not in everything(bench)


def test_declared_fields_need_no_decision_where_others_stop(tmp_path: Path) -> None:
    [entry] = catalog(tmp_path, SCHEMA, f"{ENTRY}pii: {{fields: {{home.street: drop}}}}\n").entries
    bench = Bench(entry.settings)
    bench.kafka.produce(TP, b'{"id": 5, "description": "x"}', timestamp=1000)
    bench.extract()
    assert [row["id"] for row in rows(bench)] == [5]
    bench.kafka.produce(TP, b'{"new": 5}', timestamp=1000)
    assert "'new'" in bench.extract().stops[0].message
