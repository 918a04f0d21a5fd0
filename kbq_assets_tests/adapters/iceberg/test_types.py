"""Column types in Iceberg: every column survives the round trip with its notes, and ids are unique."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from kbq_assets.adapters.iceberg.types import NOTED, column_of, fields_of, paths
from kbq_assets.core.loading.tables import Column

SCALARS = (
    *("BOOL", "INT64", "FLOAT64", "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP", "DATETIME", "NUMERIC"),
    *sorted(NOTED),
)
modes = st.sampled_from(["NULLABLE", "REQUIRED", "REPEATED"])
names = st.sampled_from("abcd")
scalars = st.builds(Column, names, st.sampled_from(SCALARS), modes, description=st.sampled_from(["", "what"]))


def unique(columns: list[Column]) -> tuple[Column, ...]:
    return tuple({column.name: column for column in columns}.values())


columns = st.recursive(
    scalars,
    lambda inner: st.builds(
        Column, names, st.just("STRUCT"), modes, st.lists(inner, min_size=1, max_size=3).map(unique)
    ),
    max_leaves=6,
)


def nested(column: Column, top: bool = True) -> Column:
    """As Iceberg has it: nothing inside a record, and no list, is required."""
    mode = column.mode if top or column.mode != "REQUIRED" else "NULLABLE"
    inner = tuple(nested(each, top=False) for each in column.fields)
    return Column(column.name, column.type, mode, inner, column.description)


@given(st.lists(columns, max_size=4).map(unique))
@settings(max_examples=60)
def test_columns_come_back(given_columns: tuple[Column, ...]) -> None:
    noted = {path: column.type for path, column in paths(given_columns) if column.type in NOTED}
    fields = fields_of(given_columns)
    assert tuple(column_of(field, noted, {}) for field in fields) == tuple(map(nested, given_columns))
    Schema(*fields)  # refuses an id that is used twice


@pytest.mark.parametrize("kind", SCALARS)
def test_a_type_that_iceberg_lacks_is_a_text_with_a_note(kind: str) -> None:
    [field] = fields_of([Column("a", kind)])
    found = column_of(field, {}, {})
    assert found.type == ("STRING" if kind in NOTED else kind)
    assert column_of(field, {"a": "JSON"}, {}).type == ("JSON" if found.type == "STRING" else kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (iceberg.IntegerType(), "int"),
        (iceberg.FloatType(), "float"),
        (iceberg.UUIDType(), "uuid"),
        (iceberg.DecimalType(10, 2), "decimal(10, 2)"),
        (iceberg.FixedType(3), "fixed[3]"),
        (iceberg.MapType(2, iceberg.StringType(), 3, iceberg.LongType()), "map<string, long>"),
    ],
)
def test_a_type_that_kbq_does_not_write_keeps_icebergs_name(kind: iceberg.IcebergType, name: str) -> None:
    assert column_of(iceberg.NestedField(1, "a", kind, required=False), {"a": "JSON"}, {}).type == name


def test_tags_and_notes_are_found_by_their_paths() -> None:
    inner = Column("b", "JSON", policy_tag="tag")
    [field] = fields_of([Column("a", "STRUCT", "REPEATED", (inner, Column("c", "STRING")))])
    found = column_of(field, {"a.b": "JSON", "b": "GEOGRAPHY"}, {"a.b": "tag", "c": "none"})
    assert found == Column("a", "STRUCT", "REPEATED", (inner, Column("c", "STRING")))


def test_paths_are_of_columns_and_of_the_fields_inside() -> None:
    deep = Column(
        "r", "STRUCT", fields=(Column("s", "STRUCT", fields=(Column("x", "INT64"),)), Column("y", "BOOL"))
    )
    assert [path for path, _ in paths([deep, Column("z", "DATE")])] == ["r", "r.s", "r.s.x", "r.y", "z"]
    assert list(paths([])) == []
