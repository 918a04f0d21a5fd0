"""The columns of a key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference

#: Types whose values can be compared for equality:
#: https://cloud.google.com/bigquery/docs/reference/standard-sql/data-types
_KEYS: Final = frozenset(
    {"BIGNUMERIC", "BOOL", "BYTES", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIME", "TIMESTAMP"}
)
#: Types whose values have the same order in every warehouse.
_VERSIONS: Final = frozenset({"DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})


def key_columns(
    table: TableReference, key: Iterable[str], columns: Iterable[Column], option: str = "key"
) -> tuple[Column, ...]:
    """The columns of a key, or of another ``option``, which may be fields of records. Raises WrongOptions if the table
    lacks one, or its type is not allowed."""
    known = tuple(columns)
    return tuple(_key_column(table, path, known, option) for path in key)


def has_paths(columns: Iterable[Column], paths: Collection[str]) -> bool:
    """Whether there are paths, and a table has a column, or a field of a record, at all of them."""
    known = tuple(columns)
    return bool(paths) and all(_has_path(known, path) for path in paths)


def _has_path(columns: Iterable[Column], path: str) -> bool:
    name, _, rest = path.partition(".")
    column = next((column for column in columns if column.name == name), None)
    if column is None or column.mode == "REPEATED":
        return False
    return not rest or _has_path(column.fields, rest)


def _key_column(table: TableReference, path: str, columns: Iterable[Column], option: str) -> Column:
    found: Mapping[str, Column] = {column.name: column for column in columns}
    name, _, rest = path.partition(".")
    column = found.get(name)
    if column is not None and rest and column.type == "STRUCT" and column.mode != "REPEATED":
        return _key_column(table, rest, column.fields, option)
    if column is None or rest:
        raise WrongOptions(
            f"{table} has no column {path}, but its {option} names it",
            next_step=f"correct `{option}`, or add it to the records, then kbq reset --topic T --give-up-pending",
        )
    types = _KEYS if option == "key" else _VERSIONS
    if column.type not in types or column.mode == "REPEATED":
        raise WrongOptions(
            f"{table}: {path} has the type {column.type}, which `{option}` does not allow",
            next_step=f"allowed types: {', '.join(sorted(types))}",
        )
    return column
