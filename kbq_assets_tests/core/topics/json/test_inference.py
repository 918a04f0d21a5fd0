"""Columns inferred from documents: the first documents decide, and later ones only add columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.json.inference import (
    MAX_FIELDS_AT_ONCE,
    MAX_LEVELS,
    MOST_COLUMNS,
    InferredSchema,
    InferredType,
    avro_schema,
)
from kbq_assets.core.topics.json.numbers import Number

FIRST = InferredSchema()


def kinds(inferred: InferredType) -> dict[str, Any]:
    """Column names and their types, for comparing."""
    return {each.column: kind(each.inferred) for each in inferred.fields}


def kind(inferred: InferredType) -> Any:
    if inferred.kind == "RECORD":
        return kinds(inferred)
    return [kind(inferred.item)] if inferred.item is not None else inferred.kind


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], "INT64"),
        ([1, 2.5], "FLOAT64"),
        ([True, None], "BOOL"),
        (["a"], "STRING"),
        (["a", 1], "JSON"),
        ([True, 1], "JSON"),
        ([2**63], "JSON"),
        ([Number("1.2345678901234567890")], "JSON"),
        ([Number("1.2345678901234567890"), 1], "JSON"),
        ([Number("1.2345678901234567890"), 1.5, 1], "FLOAT64"),
        ([Number("1.2345678901234567890"), "a"], "JSON"),
        ([{"b": 1}, {"c": "x"}], {"b": "INT64", "c": "STRING"}),
        ([{"b": 1}, 5], "JSON"),
        ([[1], [2.5]], ["FLOAT64"]),
        ([[1], ["a"]], "JSON"),
        ([[[1]]], "JSON"),
        ([[1, None]], "JSON"),
        ([[{"b": 1}], [{"c": True}]], [{"b": "INT64", "c": "BOOL"}]),
    ],
)
def test_a_column_s_type_is_that_of_all_its_values(values: list[Any], expected: Any) -> None:
    assert kinds(FIRST.grown({"a": value} for value in values).root) == {"a": expected}


@pytest.mark.parametrize("value", [None, {}, [], {"b": None}, {"b": {}}])
def test_values_without_a_type_get_no_column_yet(value: object) -> None:
    assert FIRST.grown([{"a": value}]) is FIRST


def test_columns_are_added_and_never_change() -> None:
    first = FIRST.grown([{"a": 1, "r": {"x": 1}, "l": [{"x": 1}]}])
    second = first.grown([{"a": "text", "b": True, "r": {"x": "y", "z": 1.5}, "l": [{"y": "s"}]}])
    assert (first.version, second.version) == (2, 3)
    assert kinds(second.root) == {
        "a": "INT64",
        "r": {"x": "INT64", "z": "FLOAT64"},
        "l": [{"x": "INT64", "y": "STRING"}],
        "b": "BOOL",
    }
    assert second.grown([{"a": 1}, {"b": False, "r": {"z": 2}}]) is second


def test_documents_that_are_no_objects_have_no_columns() -> None:
    assert FIRST.grown([1, "a", [1], None]) is FIRST


def test_names_are_columns_names_and_no_two_are_alike() -> None:
    keys = ["Date Egg", "date_egg", "1st", "_kafka_offset", "event_date", "_TABLE_x", "é", "", "a" * 500]
    inferred = FIRST.grown([dict.fromkeys(keys, 1)])
    names = list(kinds(inferred.root))
    assert names[:7] == [
        "Date_Egg", "date_egg_2", "field_1st", "field__kafka_offset", "field_event_date", "field__TABLE_x", "_",
    ]  # fmt: skip
    assert len({name.lower() for name in names}) == len(keys)
    assert [each.key for each in inferred.root.fields] == keys


def test_a_map_in_disguise_and_what_is_too_deep_are_one_column() -> None:
    wide = {f"key{n}": n for n in range(MAX_FIELDS_AT_ONCE + 1)}
    assert kinds(FIRST.grown([{"m": wide}]).root) == {"m": "JSON"}
    deep: Any = 1
    for _ in range(MAX_LEVELS + 20):
        deep = {"d": deep}
    inferred, levels = FIRST.grown([deep]).root, 0
    while inferred.kind == "RECORD":
        inferred, levels = inferred.fields[0].inferred, levels + 1
    assert (inferred.kind, levels) == ("JSON", MAX_LEVELS - 1)


def test_there_are_never_more_columns_than_a_table_takes() -> None:
    inferred = FIRST
    for start in range(0, MOST_COLUMNS + 1000, 250):
        inferred = inferred.grown([{f"f{n}": n for n in range(start, start + 250)}])
    assert MOST_COLUMNS - 250 < inferred.root.columns <= MOST_COLUMNS


def test_every_version_is_a_schema_that_tables_take() -> None:
    inferred = FIRST.grown([{"a": 1, "r": {"x": [{"y": 1}]}, "j": [1, "a"], "s": "x", "b": True, "f": 1.5}])
    schema = avro_schema(inferred, event_time=True)
    columns = {column.name: (column.type, column.mode) for column in columns_of(json.dumps(schema))}
    assert columns == {
        "a": ("INT64", "NULLABLE"),
        "r": ("STRUCT", "NULLABLE"),
        "j": ("JSON", "NULLABLE"),
        "s": ("STRING", "NULLABLE"),
        "b": ("BOOL", "NULLABLE"),
        "f": ("FLOAT64", "NULLABLE"),
        "_kbq_rest": ("JSON", "NULLABLE"),
        "_kbq_event_time": ("TIMESTAMP", "NULLABLE"),
    }


def test_an_inferred_schema_is_stored_under_the_keys_of_older_versions() -> None:
    inferred = FIRST.grown([{"z": 1, "a": {"b": [{"c": 1.5}]}}])
    stored = json.loads(codec.dumps(inferred))
    assert stored["root"]["fields"][0] == {"key": "z", "column": "z", "shape": {"kind": "INT64"}}
    assert codec.loads(InferredSchema, codec.dumps(inferred), "shapes/t.json") == inferred
