"""Warehouse columns from Avro schemas, and the changes a load needs first.

Types are BigQuery's names; the local warehouse maps them to its own. The mapping is BigQuery's for Avro with
``useAvroLogicalTypes``: https://cloud.google.com/bigquery/docs/loading-data-cloud-storage-avro#avro_conversions
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kbq_assets.core.errors import ConfigurationError, EncodingError

_PRIMITIVES = {
    "boolean": "BOOL",
    "int": "INT64",
    "long": "INT64",
    "float": "FLOAT64",
    "double": "FLOAT64",
    "bytes": "BYTES",
    "string": "STRING",
}
_LOGICAL = {
    ("int", "date"): "DATE",
    ("int", "time-millis"): "TIME",
    ("long", "time-micros"): "TIME",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "DATETIME",
    ("long", "local-timestamp-micros"): "DATETIME",
}


@dataclass(frozen=True)
class Column:
    """A column. ``mode`` is NULLABLE, REQUIRED or REPEATED; ``fields`` are set for STRUCT (BigQuery: RECORD)."""

    name: str
    type: str
    mode: str = "NULLABLE"
    fields: tuple[Column, ...] = ()


@dataclass(frozen=True)
class TableOptions:
    """How a table is created. ``partition_by`` is a DATE column."""

    partition_by: str = "event_date"
    cluster_by: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableChange:
    """What must happen to a table before a load. ``columns`` are all of the table's columns afterwards."""

    create: bool
    columns: tuple[Column, ...]
    added: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.create or bool(self.added or self.relaxed)


class IncompatibleColumn(ConfigurationError):
    """A column whose type differs from the table's: the table is parked with both types named."""


def columns_of(schema: str) -> tuple[Column, ...]:
    """The columns of an Avro record schema. Raises EncodingError for what no warehouse column can hold."""
    return tuple(_fields(json.loads(schema), {}, ""))


def plan_table_change(schema: str, existing: tuple[Column, ...] | None) -> TableChange:
    """Compare a staged schema with a table, None when there is none.

    New columns are added NULLABLE; a REQUIRED column that the schema has NULLABLE, or lacks, is relaxed.
    Raises IncompatibleColumn.
    """
    wanted = columns_of(schema)
    if existing is None:
        return TableChange(True, wanted)
    added: list[str] = []
    relaxed: list[str] = []
    columns = _merge(existing, wanted, "", added, relaxed)
    return TableChange(False, columns, tuple(added), tuple(relaxed))


def _merge(
    existing: Iterable[Column], wanted: Iterable[Column], prefix: str, added: list[str], relaxed: list[str]
) -> tuple[Column, ...]:
    by_name = {c.name.lower(): c for c in wanted}
    merged = [_merge_column(c, by_name.pop(c.name.lower(), None), prefix, added, relaxed) for c in existing]
    for column in by_name.values():
        added.append(prefix + column.name)
        mode = "REPEATED" if column.mode == "REPEATED" else "NULLABLE"
        merged.append(Column(column.name, column.type, mode, column.fields))
    return tuple(merged)


def _merge_column(
    existing: Column, wanted: Column | None, prefix: str, added: list[str], relaxed: list[str]
) -> Column:
    name = prefix + existing.name
    mode = existing.mode
    if mode == "REQUIRED" and (wanted is None or wanted.mode == "NULLABLE"):
        relaxed.append(name)
        mode = "NULLABLE"
    if wanted is None:
        return Column(existing.name, existing.type, mode, existing.fields)
    repeated = (existing.mode == "REPEATED", wanted.mode == "REPEATED")
    if existing.type != wanted.type or repeated[0] != repeated[1]:
        raise IncompatibleColumn(
            f"column {name}: the table has {_shown(existing)}, the records have {_shown(wanted)}",
            next_step="change the table or the schema, then `kbq resume --table`",
        )
    return Column(
        existing.name, existing.type, mode, _merge(existing.fields, wanted.fields, f"{name}.", added, relaxed)
    )


def _shown(column: Column) -> str:
    return f"{'REPEATED ' if column.mode == 'REPEATED' else ''}{column.type}"


def _fields(schema: Mapping[str, Any], named: dict[str, Any], namespace: str) -> Iterable[Column]:
    namespace = _remember(schema, named, namespace)
    for item in schema["fields"]:
        yield _column(item["name"], item["type"], named, namespace)


def _column(name: str, schema: Any, named: dict[str, Any], namespace: str) -> Column:
    if isinstance(schema, str) and schema not in _PRIMITIVES and schema != "null":
        schema = named.get(
            schema if "." in schema or not namespace else f"{namespace}.{schema}", named.get(schema)
        )
        if schema is None:
            raise EncodingError(
                f"column {name}: its type is not defined", next_step="check the schema in the registry"
            )
    if isinstance(schema, list):
        return _union(name, schema, named, namespace)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, (dict, list)):
        return _column(name, kind, named, namespace)
    if kind == "record":
        return Column(name, "STRUCT", "REQUIRED", tuple(_fields(schema, named, namespace)))
    if kind in ("array", "map"):
        return _repeated(name, schema, named, namespace)
    return Column(name, _scalar(name, kind, schema, named, namespace), "REQUIRED")


def _scalar(name: str, kind: str, schema: Any, named: dict[str, Any], namespace: str) -> str:
    details = schema if isinstance(schema, dict) else {}
    if kind in ("enum", "fixed"):
        _remember(details, named, namespace)
    if details.get("sqlType") in ("JSON", "GEOGRAPHY"):
        return str(details["sqlType"])
    logical = details.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = details.get("precision", 0), details.get("scale", 0)
        return "NUMERIC" if precision - scale <= 29 and scale <= 9 else "BIGNUMERIC"
    if kind in ("enum", "fixed"):
        return "STRING" if kind == "enum" else "BYTES"
    if kind not in _PRIMITIVES:
        raise EncodingError(
            f"column {name}: {kind} has no column type", next_step="leave the field out, or wrap it"
        )
    return _LOGICAL.get((kind, str(logical)), _PRIMITIVES[kind])


def _union(name: str, branches: list[Any], named: dict[str, Any], namespace: str) -> Column:
    others = [b for b in branches if b != "null"]
    if len(others) == 1:
        column = _column(name, others[0], named, namespace)
        mode = "REPEATED" if column.mode == "REPEATED" else "NULLABLE"
        return Column(name, column.type, mode if len(branches) > 1 else column.mode, column.fields)
    members = (_column(f"{_branch_name(b)}_value", b, named, namespace) for b in others)
    fields = tuple(
        Column(m.name, m.type, "REPEATED" if m.mode == "REPEATED" else "NULLABLE", m.fields) for m in members
    )
    return Column(name, "STRUCT", "NULLABLE", fields)


def _branch_name(branch: Any) -> str:
    text = branch if isinstance(branch, str) else branch.get("name", branch["type"])
    return str(text).rsplit(".", 1)[-1]


def _repeated(name: str, schema: Mapping[str, Any], named: dict[str, Any], namespace: str) -> Column:
    if schema["type"] == "map":
        value = _column("value", schema["values"], named, namespace)
        return Column(name, "STRUCT", "REPEATED", (Column("key", "STRING", "REQUIRED"), value))
    item = _column("item", schema["items"], named, namespace)
    if item.mode == "REPEATED":
        raise EncodingError(
            f"column {name}: an array of arrays has no column type",
            next_step="wrap the inner array in a record",
        )
    return Column(name, item.type, "REPEATED", item.fields)


def _remember(schema: Mapping[str, Any], named: dict[str, Any], namespace: str) -> str:
    """Note a named type; return the namespace its content lives in."""
    name = str(schema.get("name", ""))
    if "." in name:
        namespace, _, name = name.rpartition(".")
    else:
        namespace = str(schema.get("namespace", namespace))
    named[f"{namespace}.{name}" if namespace else name] = schema
    return namespace
