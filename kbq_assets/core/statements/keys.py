"""The columns of a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference

#: Types whose values are equal or not: https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types
_KEYS: Final = frozenset(
    {"BIGNUMERIC", "BOOL", "BYTES", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIME", "TIMESTAMP"}
)


def key_columns(table: TableReference, key: Iterable[str], columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns of a key, which may be fields of records. Raises ConfigurationError for one that a table lacks, or
    that identifies no row."""
    known = tuple(columns)
    return tuple(_key_column(table, path, known) for path in key)


def _key_column(table: TableReference, path: str, columns: Iterable[Column]) -> Column:
    found: Mapping[str, Column] = {column.name: column for column in columns}
    name, _, rest = path.partition(".")
    column = found.get(name)
    if column is not None and rest and column.type == "STRUCT" and column.mode != "REPEATED":
        return _key_column(table, rest, column.fields)
    if column is None or rest:
        raise ConfigurationError(
            f"{table} has no column {path}, which its key names",
            next_step="correct `key`; files wait until the next load",
        )
    if column.type not in _KEYS or column.mode == "REPEATED":
        raise ConfigurationError(
            f"{table}: {path} has the type {column.type}, which cannot be part of a key",
            next_step=f"a key has columns of the types {', '.join(sorted(_KEYS))}",
        )
    return column
