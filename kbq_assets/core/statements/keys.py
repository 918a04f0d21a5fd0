"""The columns of a key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kbq_assets.core.debezium.change_columns import DELETED, OP, SOURCE, UNAVAILABLE
from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import UPSERT, StatementRule
from kbq_assets.core.topics.evolution import varied_field

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


def check_variants(table: TableReference, rule: StatementRule, staged: Collection[Column]) -> None:
    """Raise WrongOptions if records have a variant (core/topics/evolution.py) of a column that their statement needs.
    The column itself is null in each of them, so rows of one key would be doubled, or versions and deletions ignored.
    """
    paths = [*rule.key, *filter(None, [rule.version])]
    if rule.kind == UPSERT and any(column.name == SOURCE for column in staged):
        paths += [OP, DELETED, UNAVAILABLE]
    for path in paths:
        if variant := _variant(staged, path):
            raise WrongOptions(
                f"{table}: its records have {variant} instead of {path}, which load={rule.kind} needs",
                next_step="give the topic another table, then kbq reset --topic T --give-up-pending",
            )


def _variant(columns: Collection[Column], path: str) -> str:
    """The path of the variant that replaces a column; "" if none does."""
    name, _, rest = path.partition(".")
    own = next((column for column in columns if column.name == name), None)
    if own is None:
        return next((each.name for each in columns if varied_field(each, [Column(name, "")])), "")
    inner = _variant(own.fields, rest) if rest else ""
    return inner and f"{name}.{inner}"


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
