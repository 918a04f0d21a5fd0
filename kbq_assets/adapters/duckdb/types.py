"""BigQuery's column types in DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kbq_assets.core.loading.tables import Column, is_numeric, numeric_digits
from kbq_assets.core.protocol.names import TableReference

_DUCKDB: Final = {
    "BOOL": "BOOLEAN",
    "INT64": "BIGINT",
    "FLOAT64": "DOUBLE",
    "STRING": "VARCHAR",
    "BYTES": "BLOB",
    "DATE": "DATE",
    "TIME": "TIME",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "DATETIME": "TIMESTAMP",
    "JSON": "JSON",
    "BIGNUMERIC": "VARCHAR",
    "GEOGRAPHY": "VARCHAR",
}
#: Types that DuckDB stores as another type, so they are recorded separately.
NOTED: Final = frozenset({"BIGNUMERIC", "GEOGRAPHY"})
_BIGQUERY: Final = {duckdb: bigquery for bigquery, duckdb in _DUCKDB.items() if bigquery not in NOTED}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal in SQL, for statements without parameters."""
    return "'" + text.replace("'", "''") + "'"


def qualified(catalog: str, table: TableReference) -> str:
    """A table's name in SQL, with its catalog: a dataset may have the name of a catalog (``temp``)."""
    return f"{quoted(catalog)}.{quoted(table.dataset)}.{quoted(table.table)}"


def duckdb_type(column: Column) -> str:
    """A column's type in SQL, without NOT NULL."""
    if column.type == "STRUCT":
        members = ", ".join(f"{quoted(member.name)} {duckdb_type(member)}" for member in column.fields)
        scalar = f"STRUCT({members})"
    else:
        scalar = _DUCKDB.get(column.type, column.type)  # else a type that was read from DuckDB
        if column.type == "NUMERIC":
            scalar = "DECIMAL({},{})".format(*numeric_digits(column))
    return scalar + ("[]" if column.mode == "REPEATED" else "")


def definition(column: Column) -> str:
    return f"{quoted(column.name)} {duckdb_type(column)}{' NOT NULL' if column.mode == 'REQUIRED' else ''}"


def noted_types(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Paths and types of the fields whose type DuckDB cannot represent."""
    for column in columns:
        if column.type in NOTED:
            yield prefix + column.name, column.type
        yield from noted_types(column.fields, f"{prefix}{column.name}.")


def column_of(name: str, duckdb: Any, not_null: bool, noted: Mapping[str, str], prefix: str = "") -> Column:
    """The column of a DuckDB type (`DuckDBPyType`). A type that KBQ does not write keeps DuckDB's name."""
    path, mode = prefix + name, "REQUIRED" if not_null else "NULLABLE"
    if duckdb.id == "list":
        duckdb, mode = duckdb.children[0][1], "REPEATED"
    if duckdb.id == "struct":
        members = (column_of(n, t, False, noted, f"{path}.") for n, t in duckdb.children)
        return Column(name, "STRUCT", mode, tuple(members))
    text = str(duckdb)
    if duckdb.id == "decimal":
        (_, precision), (_, scale) = duckdb.children
        if is_numeric(precision, scale):
            return Column(name, "NUMERIC", mode, digits=(precision, scale))
    return Column(name, noted.get(path, _BIGQUERY.get(text, text)), mode)
