"""Tables and columns in DuckDB's catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb import load_jobs
from kbq_assets.adapters.duckdb.notes import catalog_of, described, notes_of, write_notes
from kbq_assets.adapters.duckdb.types import (
    column_of,
    definition,
    duckdb_type,
    noted_types,
    qualified,
    quoted,
)
from kbq_assets.core.errors import InvalidName, NotFound, WrongOptions
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes, has_own_columns_alone
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX

#: Schemas that must not hold data: KBQ's own, and those of DuckDB's catalogs.
_RESERVED: Final = frozenset({load_jobs.SCHEMA, "information_schema", "pg_catalog"})
_POSITION_COLUMNS: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kbq_epoch")
_HERE: Final = "database_name = current_database()"
_REBUILT: Final = "temp.kbq_rebuilt"


def name_of(connection: duckdb.DuckDBPyConnection, table: TableReference) -> str:
    return qualified(catalog_of(connection), table)


def exists(connection: duckdb.DuckDBPyConnection, table: TableReference) -> bool:
    """Whether a table exists.

    Raises WrongOptions for a name that differs from another only in case: for DuckDB they are one table, for BigQuery
    two.
    """
    if table.dataset.lower() in _RESERVED:
        raise WrongOptions(
            f"dataset {table.dataset!r} is reserved in a local warehouse", next_step="choose another name"
        )
    rows = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables()"
        f" WHERE {_HERE} AND lower(schema_name) = lower(?)",
        [table.dataset],
    ).fetchall()
    for dataset, name in rows:
        other = f"{dataset}.{name}"
        if dataset != table.dataset or (name.lower() == table.table.lower() and name != table.table):
            raise WrongOptions(
                f"{table} and {other} differ only in case", next_step="a local warehouse needs distinct names"
            )
    return (table.dataset, table.table) in rows


def is_there(connection: duckdb.DuckDBPyConnection, table: TableReference) -> bool:
    """Whether there is a table to read. False if the name differs from another only in case: such a table is parked."""
    try:
        return exists(connection, table)
    except WrongOptions:
        return False


def columns(connection: duckdb.DuckDBPyConnection, table: TableReference) -> tuple[Column, ...] | None:
    """A table's columns; None if it does not exist."""
    if not exists(connection, table):
        return None
    key = [table.dataset, table.table]
    # A single query: each one makes DuckDB list the columns of all tables.
    listed = connection.execute(
        "SELECT column_name, is_nullable, comment FROM duckdb_columns()"
        f" WHERE {_HERE} AND schema_name = ? AND table_name = ?",
        key,
    ).fetchall()
    not_null = {name for name, is_nullable, _ in listed if not is_nullable}
    noted = _noted(connection, key)
    relation = connection.sql(f"SELECT * FROM {name_of(connection, table)} LIMIT 0")
    found = tuple(
        column_of(name, duckdb_type, name in not_null, noted)
        for name, duckdb_type in zip(relation.columns, relation.types, strict=True)
    )
    comments = {name: comment for name, _, comment in listed if comment is not None}
    return described(connection, table, found, comments)


def find(connection: duckdb.DuckDBPyConnection, table: TableReference) -> StoredTable | None:
    """A table with its descriptions, labels and number of rows; None if it does not exist."""
    if (found := columns(connection, table)) is None:
        return None
    [(rows,)] = connection.execute(f"SELECT count(*) FROM {name_of(connection, table)}").fetchall()
    return StoredTable(found, *notes_of(connection, table), rows)


def create(connection: duckdb.DuckDBPyConnection, table: TableReference, wanted: Sequence[Column]) -> None:
    """Create a table and its schema."""
    connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS {quoted(catalog_of(connection))}.{quoted(table.dataset)}"
    )
    connection.execute(f"CREATE TABLE {name_of(connection, table)} ({', '.join(map(definition, wanted))})")
    _note(connection, table, wanted)


def update(connection: duckdb.DuckDBPyConnection, table: TableReference, wanted: Sequence[Column]) -> None:
    """Add missing columns and nested fields, relax columns that are now NULLABLE, widen decimals. Raises NotFound."""
    existing = columns(connection, table)
    if existing is None:
        raise NotFound(f"table {table} does not exist", next_step="create it first")
    if has_own_columns_alone(existing) and not has_own_columns_alone(wanted):
        _rebuild(connection, table, existing, wanted)
        return
    name = name_of(connection, table)
    for statement in _alterations(existing, wanted):
        connection.execute(f"ALTER TABLE {name} {statement}")
    # Last, because the new type includes all fields.
    for column in _widened(existing, wanted):
        connection.execute(
            f"ALTER TABLE {name} ALTER COLUMN {quoted(column.name)} TYPE {duckdb_type(column)}"
        )
    _fill_lists(connection, name, existing, wanted)
    _note(connection, table, wanted)


def _rebuild(
    connection: duckdb.DuckDBPyConnection,
    table: TableReference,
    existing: Sequence[Column],
    wanted: Sequence[Column],
) -> None:
    """Rebuild a table that has only tombstones, so that the records' columns come first. DuckDB can only append
    columns."""
    name, named = name_of(connection, table), {column.name.lower() for column in wanted}
    rest = [column for column in existing if column.name.lower() not in named]
    description, labels = notes_of(connection, table)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {_REBUILT} AS FROM {name}")
    connection.execute(f"DROP TABLE {name}")
    create(connection, table, [*wanted, *rest])
    write_notes(connection, table, existing, TableNotes(description, labels))
    values = {quoted(column.name): "[]" for column in wanted if column.mode == "REPEATED"}
    values |= {quoted(column.name): quoted(column.name) for column in existing}
    connection.execute(
        f"INSERT INTO {name} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {_REBUILT}"
    )
    connection.execute(f"DROP TABLE {_REBUILT}")


def _widened(existing: Iterable[Column], wanted: Iterable[Column]) -> Iterator[Column]:
    """The columns with a decimal that now has more digits."""
    before = {column.name.lower(): column for column in existing}
    for column in wanted:
        known = before.get(column.name.lower())
        if known is not None and (
            known.digits != column.digits or any(_widened(known.fields, column.fields))
        ):
            yield column


def _fill_lists(
    connection: duckdb.DuckDBPyConnection, name: str, existing: Iterable[Column], wanted: Iterable[Column]
) -> None:
    """Set new list columns of existing rows to empty lists, as in BigQuery.

    ADD COLUMN … DEFAULT would prevent other alterations in the same transaction (DuckDB 1.5).
    """
    known = {column.name.lower() for column in existing}
    lists = [quoted(c.name) for c in wanted if c.mode == "REPEATED" and c.name.lower() not in known]
    for column in lists:
        connection.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT []")
    if lists:
        connection.execute(f"UPDATE {name} SET {', '.join(f'{column} = []' for column in lists)}")


def kafka_tables(connection: duckdb.DuckDBPyConnection) -> tuple[TableReference, ...]:
    """All tables with Kafka positions, sorted. Omits views, which would count rows twice."""
    rows = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_columns()"
        " JOIN duckdb_tables() USING (database_name, schema_name, table_name)"
        f" WHERE {_HERE} AND column_name IN (?, ?, ?, ?) AND NOT starts_with(table_name, ?)"
        " GROUP BY ALL HAVING count(*) = 4 ORDER BY ALL",
        [*_POSITION_COLUMNS, SCRATCH_PREFIX],
    ).fetchall()
    return tuple(_valid_references(rows))


def _valid_references(rows: Iterable[tuple[str, str]]) -> Iterator[TableReference]:
    for dataset, table in rows:
        try:
            yield TableReference(dataset, table)
        except InvalidName:  # someone's own copy, with a name that KBQ never writes
            continue


def _noted(connection: duckdb.DuckDBPyConnection, key: list[str]) -> dict[str, str]:
    try:
        rows = connection.execute(
            f'SELECT path, type FROM {load_jobs.TYPES} WHERE dataset = ? AND "table" = ?', key
        ).fetchall()
    except duckdb.CatalogException:  # a file that KBQ has not written to yet
        return {}
    return dict(rows)


def _note(connection: duckdb.DuckDBPyConnection, table: TableReference, wanted: Iterable[Column]) -> None:
    for path, type_ in noted_types(wanted):
        connection.execute(
            f"INSERT OR REPLACE INTO {load_jobs.TYPES} VALUES (?, ?, ?, ?)",
            [table.dataset, table.table, path, type_],
        )


def _alterations(existing: Iterable[Column], wanted: Iterable[Column], prefix: str = "") -> Iterator[str]:
    """The clauses of ALTER TABLE statements. Nested fields are never NOT NULL, so only whole columns are relaxed."""
    by_name = {column.name.lower(): column for column in existing}
    for column in wanted:
        path, known = prefix + quoted(column.name), by_name.get(column.name.lower())
        if known is None:
            yield f"ADD COLUMN {path} {duckdb_type(column)}"
            continue
        if known.mode == "REQUIRED" and column.mode == "NULLABLE" and not prefix:
            yield f"ALTER COLUMN {path} DROP NOT NULL"
        element = ".element." if known.mode == "REPEATED" else "."
        yield from _alterations(known.fields, column.fields, path + element)
