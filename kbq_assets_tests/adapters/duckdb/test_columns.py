"""Columns of tables in DuckDB: written, read back and quoted, whatever their names are."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.duckdb.types import (
    NOTED,
    column_of,
    definition,
    duckdb_type,
    literal,
    noted_types,
    qualified,
    quoted,
)
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference

SCALARS = (
    *(
        "BOOL",
        "INT64",
        "FLOAT64",
        "STRING",
        "BYTES",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "DATETIME",
        "NUMERIC",
        "JSON",
    ),
    *sorted(NOTED),
)
modes = st.sampled_from(["NULLABLE", "REQUIRED", "REPEATED"])
names = st.sampled_from(["a", "b", 'a "name"', "select", "é.x"])


def unique(columns: list[Column]) -> tuple[Column, ...]:
    return tuple({column.name: column for column in columns}.values())


columns = st.recursive(
    st.builds(Column, names, st.sampled_from(SCALARS), modes),
    lambda inner: st.builds(
        Column, names, st.just("STRUCT"), modes, st.lists(inner, min_size=1, max_size=3).map(unique)
    ),
    max_leaves=5,
)


def stored(column: Column, top: bool = True) -> Column:
    """As DuckDB has it: nothing inside a record, and no list, is required."""
    mode = column.mode if top or column.mode != "REQUIRED" else "NULLABLE"
    return Column(column.name, column.type, mode, tuple(stored(each, top=False) for each in column.fields))


def read(connection: Any, noted: dict[str, str]) -> tuple[Column, ...]:
    """The columns of the table ``t``."""
    required = {
        name
        for (name,) in connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE NOT is_nullable"
        ).fetchall()
    }
    relation = connection.table("t")
    return tuple(
        column_of(name, kind, name in required, noted)
        for name, kind in zip(relation.columns, relation.types, strict=True)
    )


@pytest.fixture(scope="module")
def connection() -> Any:
    with duckdb.connect() as opened:
        yield opened


@given(given_columns=st.lists(columns, min_size=1, max_size=4).map(unique))
@settings(max_examples=40)
def test_columns_come_back(connection: Any, given_columns: tuple[Column, ...]) -> None:
    connection.execute(f"CREATE OR REPLACE TABLE t ({', '.join(map(definition, given_columns))})")
    assert read(connection, dict(noted_types(given_columns))) == tuple(map(stored, given_columns))


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        (Column("a", "INT64"), '"a" BIGINT'),
        (Column("a", "STRING", "REQUIRED"), '"a" VARCHAR NOT NULL'),
        (Column("a", "BOOL", "REPEATED"), '"a" BOOLEAN[]'),
        (Column("a", "NUMERIC"), '"a" DECIMAL(38,9)'),
        (Column("a", "NUMERIC", digits=(5, 2)), '"a" DECIMAL(5,2)'),
        (Column("a", "STRUCT", "REPEATED", (Column("x", "DATE"),)), '"a" STRUCT("x" DATE)[]'),
        (Column("a", "HUGEINT"), '"a" HUGEINT'),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_column_is_written_in_sql(column: Column, sql: str) -> None:
    assert definition(column) == sql
    assert sql.startswith(f'"a" {duckdb_type(column)}')


@pytest.mark.parametrize(
    ("digits", "kind"),
    [((38, 9), "NUMERIC"), ((5, 2), "NUMERIC"), ((38, 10), "DECIMAL(38,10)"), ((38, 0), "DECIMAL(38,0)")],
)
def test_a_decimal_that_numeric_does_not_hold_keeps_its_name(
    connection: Any, digits: tuple[int, int], kind: str
) -> None:
    connection.execute("CREATE OR REPLACE TABLE t (a DECIMAL({},{}))".format(*digits))
    [column] = read(connection, {})
    assert (column.type, column.digits) == (kind, digits if kind == "NUMERIC" else None)


@pytest.mark.parametrize(
    "kind", ["HUGEINT", "UUID", "FLOAT", "INTERVAL", "MAP(VARCHAR, BIGINT)", "BIGINT[][]"]
)
def test_a_type_that_kbq_does_not_write_keeps_duckdbs_name(connection: Any, kind: str) -> None:
    connection.execute(f"CREATE OR REPLACE TABLE t (a {kind})")
    [column] = read(connection, {})
    assert column.type + ("[]" if column.mode == "REPEATED" else "") == kind


def test_a_note_is_about_one_path() -> None:
    inner = Column("b", "BIGNUMERIC")
    found = dict(
        noted_types([Column("a", "STRUCT", fields=(inner, Column("c", "STRING"))), Column("g", "GEOGRAPHY")])
    )
    assert found == {"a.b": "BIGNUMERIC", "g": "GEOGRAPHY"}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
@settings(max_examples=60)
def test_a_literal_is_its_text(connection: Any, text: str) -> None:
    assert connection.execute(f"SELECT {literal(text)}").fetchall() == [(text,)]


@pytest.mark.parametrize("name", ['a"b', "'", "a.b", "select", "é", '""', "a;--"])
def test_a_quoted_name_is_one_name(connection: Any, name: str) -> None:
    connection.execute(f"CREATE OR REPLACE TABLE {quoted(name)} ({quoted(name)} INTEGER)")
    assert connection.execute(f"SELECT * FROM {quoted(name)}").description[0][0] == name
    connection.execute(f"DROP TABLE {quoted(name)}")


def test_a_table_is_named_with_its_catalog() -> None:
    assert qualified('c"', TableReference("d", "t")) == '"c""".."d"."t"'.replace("..", ".")
