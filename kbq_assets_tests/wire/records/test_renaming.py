"""Other names in a file's header: the same bytes, the same values; and tables that take every schema."""

from __future__ import annotations

import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.tables import Column, columns_of, plan_table_change
from kbq_assets.core.topics.evolution import (
    NEW_TABLE_VERSION,
    VARIANT_COLUMN,
    SchemaVariant,
    TableVariants,
    find_variant,
)
from kbq_assets.wire.records.renaming import field_paths, renamed
from kbq_assets.wire.records.staged_schema import MetadataColumns, StagedSchema, staged_schema
from kbq_assets_tests.wire.generate import make_schema
from kbq_assets_tests.wire.samples import Sinks, avro_body, chunk_of, framed, record_of, staged, window

ADDRESS = record_of(
    ("zip", "long"), ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}), name="Address"
)


def rows(schema: StagedSchema, source: dict[str, Any], value: dict[str, Any]) -> list[dict[str, Any]]:
    """A record as it is staged under a schema."""
    sinks = Sinks()
    encoder = window(sinks, {1: schema})
    rejects = encoder.add(chunk_of(framed(avro_body(source, value))))
    assert len(rejects) == 0
    encoder.finish()
    return [{k: v for k, v in row.items() if not k.startswith("_k")} for row in sinks.rows()]


def test_a_record_is_staged_under_its_new_names() -> None:
    source = record_of(("a", "long"), ("b", ["null", "string"]))
    schema = renamed(staged_schema(source, MetadataColumns()), {("a",): "a__int64"})
    [row] = rows(schema, source, {"a": 5, "b": "x"})
    assert (row["a__int64"], row["b"], "a" in row) == (5, "x", False)
    assert schema.columns[:2] == ("a__int64", "b")


@pytest.mark.parametrize("namespace", ["", "shop.v1"])
def test_a_type_used_twice_gets_a_name_in_one_place_only(namespace: str) -> None:
    kinds = {"items": "Address", "type": "array"}
    source = {
        **record_of(("home", ADDRESS), ("work", ["null", "Address"]), ("old", kinds)),
        "namespace": namespace,
    }
    schema = renamed(staged_schema(source, MetadataColumns()), {("work", "zip"): "zip__int64"})
    address = {"zip": 7, "kind": "B"}
    [row] = rows(schema, source, {"home": address, "work": address, "old": [address]})
    assert row["home"] == row["old"][0] == address
    assert row["work"] == {"zip__int64": 7, "kind": "B"}
    assert [c.fields[0].name for c in columns_of(schema.json)[:3]] == ["zip", "zip__int64", "zip"]


def test_a_union_s_types_keep_the_names_that_columns_come_from() -> None:
    source = record_of(("first", ADDRESS), ("u", ["null", "Address", "string"]))
    schema = renamed(staged_schema(source, MetadataColumns()), {("u", "Address_value", "zip"): "z"})
    union = columns_of(schema.json)[1]
    assert [c.name for c in union.fields] == ["Address_value", "string_value"]
    assert [c.name for c in union.fields[0].fields] == ["z", "kind"]


def test_attributes_besides_names_and_types_are_kept() -> None:
    text = {"type": "string", "sqlType": "JSON"}
    source = record_of(("a", text), ("b", {"type": {"type": "long", "logicalType": "timestamp-micros"}}))
    source["fields"][0]["doc"] = "what it is"
    schema = renamed(staged_schema(source, MetadataColumns()), {("a",): "c"})
    assert json.loads(schema.json)["fields"][0] == {"name": "c", "type": text, "doc": "what it is"}
    assert [c.type for c in columns_of(schema.json)[:2]] == ["JSON", "TIMESTAMP"]


def test_without_new_names_the_schema_stays_as_it_is() -> None:
    schema = staged(("a", "long"))
    assert renamed(schema, {}) is schema


def test_only_fields_of_records_may_have_other_names() -> None:
    fields = ("m", {"type": "map", "values": record_of(("a", "int"), name="I")}), ("u", ["long", "string"])
    own = {path for path in field_paths(staged(*fields).json) if not path[0].startswith("_k")}
    assert own == {("m",), ("m", "value", "a"), ("u",), ("event_date",)}


def _schemas(seed: int, count: int) -> list[StagedSchema]:
    """Schemas whose fields have few names and many types."""
    found: list[StagedSchema] = []
    rng = random.Random(seed)
    while len(found) < count:
        schema = staged_schema(make_schema(rng), MetadataColumns())
        try:
            columns_of(schema.json)
        except EncodingError:
            continue
        found.append(schema)
    return found


def _variant(schema: StagedSchema, known: TableVariants, policy: str) -> tuple[SchemaVariant, StagedSchema]:
    found = find_variant(columns_of(schema.json), field_paths(schema.json), known, policy)
    return found, renamed(schema, found.renames)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([VARIANT_COLUMN, NEW_TABLE_VERSION]))
def test_whatever_schemas_come_their_tables_take_them_and_each_stays_where_it_was(
    seed: int, policy: str
) -> None:
    schemas, known, first = _schemas(seed, 4), TableVariants(), []
    tables: dict[int, tuple[Column, ...]] = {}
    for schema in schemas:
        found, under = _variant(schema, known, policy)
        known = found.variants
        # Raises IncompatibleColumn where the table has another type.
        tables[found.version] = plan_table_change(under.json, tables.get(found.version)).columns
        fastavro.parse_schema(json.loads(under.json))
        first.append((found.version, under.fingerprint))
    again = [_variant(schema, known, policy) for schema in schemas]
    assert [(found.version, under.fingerprint) for found, under in again] == first
    if policy == VARIANT_COLUMN:
        assert set(tables) == {1}
