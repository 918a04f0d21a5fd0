"""BigQuery's column types as Iceberg's, and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyiceberg import types as iceberg

from kbq_assets.core.loading.tables import Column

_ICEBERG: Final[Mapping[str, iceberg.PrimitiveType]] = {
    "BOOL": iceberg.BooleanType(),
    "INT64": iceberg.LongType(),
    "FLOAT64": iceberg.DoubleType(),
    "STRING": iceberg.StringType(),
    "BYTES": iceberg.BinaryType(),
    "DATE": iceberg.DateType(),
    "TIME": iceberg.TimeType(),
    "TIMESTAMP": iceberg.TimestamptzType(),
    "DATETIME": iceberg.TimestampType(),
    "NUMERIC": iceberg.DecimalType(38, 9),
    "JSON": iceberg.StringType(),
    "BIGNUMERIC": iceberg.StringType(),
    "GEOGRAPHY": iceberg.StringType(),
}
#: Types that Iceberg stores as text, so the table's properties record them.
NOTED: Final = frozenset({"JSON", "BIGNUMERIC", "GEOGRAPHY"})
_BIGQUERY: Final = {str(type_): name for name, type_ in _ICEBERG.items() if name not in NOTED}


def fields_of(columns: Iterable[Column]) -> tuple[iceberg.NestedField, ...]:
    """The fields of new columns. Their ids are provisional, since the catalog assigns its own."""
    ids = itertools.count(1)
    return tuple(_field(column, ids, top=True) for column in columns)


def _field(column: Column, ids: Iterator[int], *, top: bool) -> iceberg.NestedField:
    """A field. Only top-level columns can be required: a nested field is optional, because its record may be null."""
    number = next(ids)
    kind = _type(column, ids)
    if column.mode == "REPEATED":
        kind = iceberg.ListType(next(ids), kind, element_required=False)
    required = top and column.mode == "REQUIRED"
    return iceberg.NestedField(number, column.name, kind, required=required, doc=column.description or None)


def _type(column: Column, ids: Iterator[int]) -> iceberg.IcebergType:
    if column.type == "STRUCT":
        return iceberg.StructType(*(_field(member, ids, top=False) for member in column.fields))
    return _ICEBERG[column.type]


def column_of(field: iceberg.NestedField, noted: Mapping[str, str], tags: Mapping[str, str]) -> Column:
    """The column of a field. ``noted`` has types and ``tags`` policy tags, both by path. A type that KBQ does not write
    keeps Iceberg's name."""
    return _column(field, noted, tags, field.name)


def _column(
    field: iceberg.NestedField, noted: Mapping[str, str], tags: Mapping[str, str], path: str
) -> Column:
    kind, mode = field.field_type, "REQUIRED" if field.required else "NULLABLE"
    if isinstance(kind, iceberg.ListType):
        kind, mode = kind.element_type, "REPEATED"
    doc, tag = field.doc or "", tags.get(path, "")
    if isinstance(kind, iceberg.StructType):
        members = tuple(_column(each, noted, tags, f"{path}.{each.name}") for each in kind.fields)
        return Column(field.name, "STRUCT", mode, members, doc, tag)
    name = _BIGQUERY.get(str(kind), str(kind))
    return Column(
        field.name, noted.get(path, name) if name == "STRING" else name, mode, description=doc, policy_tag=tag
    )


def paths(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, Column]]:
    """All columns and nested fields, by path."""
    for column in columns:
        yield prefix + column.name, column
        yield from paths(column.fields, f"{prefix}{column.name}.")
