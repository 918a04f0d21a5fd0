"""SQL that copies rows between tables whose columns differ in order or number. BigQuery matches the fields of records
by position, not by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import BIGQUERY


def insertion(
    target: str, into: Iterable[Column], source: str, columns: Sequence[Column], added: str = ""
) -> str:
    """An INSERT of all columns of ``source`` by name, without a WHERE. The column ``added`` gets ``@number``
    instead."""
    known = {column.name.lower(): column for column in columns}
    pairs = [
        (column.name, value_of(f"s.{BIGQUERY.quoted(found.name)}", column, found))
        for column in into
        if (found := known.get(column.name.lower())) is not None and column.name != added
    ]
    pairs += [(added, "@number")] if added else []
    names = ", ".join(BIGQUERY.quoted(name) for name, _ in pairs)
    return (
        f"INSERT INTO {target} ({names}) SELECT {', '.join(value for _, value in pairs)} FROM {source} AS s"
    )


def value_of(path: str, target: Column, source: Column, depth: int = 0) -> str:
    """A value converted from one type to another, field by field. Fields that ``source`` lacks are null or empty."""
    if _is_same(target, source):
        return path
    repeated = target.mode == "REPEATED"
    inner = f"e{depth}" if repeated else path
    known = {field.name.lower(): field for field in source.fields}
    members = []
    for field in target.fields:
        value = nothing(field)
        if (found := known.get(field.name.lower())) is not None:
            value = value_of(f"{inner}.{BIGQUERY.quoted(found.name)}", field, found, depth + 1)
        members.append(f"{value} AS {BIGQUERY.quoted(field.name)}")
    fields = ", ".join(members)
    if repeated:
        at = f"o{depth}"
        return f"ARRAY(SELECT AS STRUCT {fields} FROM UNNEST({path}) AS {inner} WITH OFFSET AS {at} ORDER BY {at})"
    return f"IF({path} IS NULL, NULL, STRUCT({fields}))"


def nothing(column: Column) -> str:
    """The null or empty value of a column."""
    return f"CAST({'[]' if column.mode == 'REPEATED' else 'NULL'} AS {sql_type(column)})"


def sql_type(column: Column) -> str:
    fields = ", ".join(f"{BIGQUERY.quoted(field.name)} {sql_type(field)}" for field in column.fields)
    scalar = f"STRUCT<{fields}>" if column.fields else column.type
    return f"ARRAY<{scalar}>" if column.mode == "REPEATED" else scalar


def _is_same(one: Column, other: Column) -> bool:
    return len(one.fields) == len(other.fields) and all(
        a.name.lower() == b.name.lower() and _is_same(a, b)
        for a, b in zip(one.fields, other.fields, strict=True)
    )
