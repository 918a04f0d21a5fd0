"""Descriptions of tables: DuckDB's comments, and a table for everything else.

DuckDB supports comments on tables and columns, but not on nested fields, and neither labels nor policy tags. Those are
stored in ``_kbq.kbq_notes``, so a local warehouse keeps the same texts as BigQuery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import duckdb

from kbq_assets.adapters.duckdb import load_jobs
from kbq_assets.adapters.duckdb.types import literal, qualified, quoted
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference

#: Keys are path and kind: `description`, `policy_tag`, `label:<name>`. The table's own path is "".
Notes: TypeAlias = Mapping[tuple[str, str], str]

_TEXT: Final = "description"
_TAG: Final = "policy_tag"
_LABEL: Final = "label:"
_HERE: Final = "database_name = current_database() AND schema_name = ? AND table_name = ?"


def write_notes(
    connection: duckdb.DuckDBPyConnection,
    table: TableReference,
    columns: Iterable[Column],
    notes: TableNotes,
) -> None:
    """Write descriptions and labels of a table and its columns, in the caller's transaction. Skips empty ones."""
    rows = {("", _LABEL + key): value for key, value in notes.labels.items()}
    name = qualified(catalog_of(connection), table)
    if notes.text:
        connection.execute(f"COMMENT ON TABLE {name} IS {literal(notes.text)}")
    for path, column in _flat(columns):
        if column.description and "." not in path:
            connection.execute(
                f"COMMENT ON COLUMN {name}.{quoted(column.name)} IS {literal(column.description)}"
            )
        elif column.description:
            rows[path, _TEXT] = column.description
        if column.policy_tag:
            rows[path, _TAG] = column.policy_tag
    if rows:
        connection.executemany(
            f"INSERT OR REPLACE INTO {load_jobs.NOTES} VALUES (?, ?, ?, ?, ?)",
            [[table.dataset, table.table, path, kind, text] for (path, kind), text in rows.items()],
        )


def described(
    connection: duckdb.DuckDBPyConnection,
    table: TableReference,
    columns: Iterable[Column],
    comments: Mapping[str, str],
) -> tuple[Column, ...]:
    """Columns with their descriptions and tags. ``comments`` has the descriptions of top-level columns."""
    notes = {(name, _TEXT): text for name, text in comments.items()} | dict(_noted(connection, table))
    return tuple(_described(column, notes, "") for column in columns)


def notes_of(connection: duckdb.DuckDBPyConnection, table: TableReference) -> tuple[str, Mapping[str, str]]:
    comments = connection.execute(
        f"SELECT comment FROM duckdb_tables() WHERE {_HERE}", [table.dataset, table.table]
    ).fetchall()
    noted = _noted(connection, table)
    return "".join(comment or "" for (comment,) in comments), {
        kind.removeprefix(_LABEL): text for (path, kind), text in noted.items() if not path
    }


def _described(column: Column, notes: Notes, prefix: str) -> Column:
    path = prefix + column.name
    return replace(
        column,
        description=notes.get((path, _TEXT), ""),
        policy_tag=notes.get((path, _TAG), ""),
        fields=tuple(_described(member, notes, f"{path}.") for member in column.fields),
    )


def _noted(connection: duckdb.DuckDBPyConnection, table: TableReference) -> Notes:
    try:
        rows = connection.execute(
            f'SELECT path, kind, text FROM {load_jobs.NOTES} WHERE dataset = ? AND "table" = ?',
            [table.dataset, table.table],
        ).fetchall()
    except duckdb.CatalogException:  # an older file, written before notes existed
        return {}
    return {(path, kind): text for path, kind, text in rows}


def _flat(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, Column]]:
    for column in columns:
        yield prefix + column.name, column
        yield from _flat(column.fields, f"{prefix}{column.name}.")


def catalog_of(connection: duckdb.DuckDBPyConnection) -> str:
    [(name,)] = connection.execute("SELECT current_database()").fetchall()
    return str(name)
