"""Warehouse columns from Avro schemas, and the changes a load needs first.

Types are BigQuery's names; the local warehouse maps them to its own. The mapping is BigQuery's for Avro with
``useAvroLogicalTypes`` and ``decimalTargetTypes=[NUMERIC, BIGNUMERIC, STRING]``:
https://cloud.google.com/bigquery/docs/loading-data-cloud-storage-avro#avro_conversions. In short: a union of
several types is a STRUCT of which one field is set, a map a REPEATED STRUCT<key, value>, ``duration`` BYTES, ``uuid``
a STRING; fields, unions and arrays of nothing but null have no column; arrays of arrays have no type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.loading.table_notes import TableNotes

_PRIMITIVES = {
    "boolean": "BOOL",
    "int": "INT64",
    "long": "INT64",
    "float": "FLOAT64",
    "double": "FLOAT64",
    "bytes": "BYTES",
    "string": "STRING",
}
_SCALARS = {**_PRIMITIVES, "enum": "STRING", "fixed": "BYTES"}
_KINDS = frozenset({*_SCALARS, "null", "record", "error", "array", "map"})
_LOGICAL = {
    ("int", "date"): "DATE",
    ("int", "time-millis"): "TIME",
    ("long", "time-micros"): "TIME",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "DATETIME",
    ("long", "local-timestamp-micros"): "DATETIME",
}
#: BigQuery's limit of nested records: https://cloud.google.com/bigquery/docs/nested-repeated#limitations
MAX_STRUCT_DEPTH = 15
#: Fields of records count as columns: https://cloud.google.com/bigquery/quotas#table_limits
MAX_COLUMNS = 10_000
#: https://cloud.google.com/bigquery/docs/schemas#column_names
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_LEVELS = ("", "NONE", "LOW", "MEDIUM", "HIGH")
_RESERVED_PREFIXES = ("_TABLE_", "_FILE_", "_PARTITION", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER")


@dataclass(frozen=True)
class Column:
    """A column. ``mode`` is NULLABLE, REQUIRED or REPEATED; a STRUCT (BigQuery: RECORD) has ``fields``.

    ``description``, ``policy_tag`` (BigQuery's, which says who may read it) and ``pii``, the level of personal data by
    the schema, change no row: core/loading/table_notes.py.
    """

    name: str
    type: str
    mode: str = "NULLABLE"
    fields: tuple[Column, ...] = ()
    description: str = ""
    policy_tag: str = ""
    pii: str = ""


@dataclass(frozen=True)
class TableOptions:
    """How a table is created, and how its load jobs are labelled. ``partition_by`` is a DATE column.

    ``expiry_days``: partitions older than that are dropped by the warehouse; 0 keeps them. ``notes`` are kept true.
    """

    partition_by: str = "event_date"
    cluster_by: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    require_partition_filter: bool = False
    expiry_days: int = 0
    notes: TableNotes = field(default_factory=TableNotes)


#: What BigQuery clusters by: https://cloud.google.com/bigquery/docs/clustered-tables#cluster_column_types
_CLUSTERED = frozenset({"BIGNUMERIC", "BOOL", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})


def clusterable(options: TableOptions, columns: Iterable[Column]) -> TableOptions:
    """Options without the clustering columns that a table lacks or that cannot cluster: a pattern's topics differ."""
    known = {c.name for c in columns if c.type in _CLUSTERED and c.mode != "REPEATED"}
    return replace(options, cluster_by=tuple(name for name in options.cluster_by if name in known))


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
    columns = _SchemaReader().fields(json.loads(schema), "", "")
    if (count := _check_names(columns, "")) > MAX_COLUMNS:
        raise EncodingError(
            f"{count} columns, fields of records included: a table holds {MAX_COLUMNS}",
            next_step="leave some out",
        )
    return columns


def _check_names(columns: Iterable[Column], prefix: str) -> int:
    """Check what columns of one record are called; return how many they are. BigQuery's names ignore case."""
    count, seen = 0, set[str]()
    for column in columns:
        place, name = prefix + column.name, column.name.upper()
        problem = ""
        if not _COLUMN_NAME.fullmatch(column.name):
            problem = "a name is up to 300 letters, digits and '_', and begins with no digit"
        elif name.startswith(_RESERVED_PREFIXES):
            problem = "the prefix is reserved by BigQuery"
        elif name in seen:
            problem = "another one's name differs by case alone, or not at all"
        if problem:
            raise EncodingError(f"column {place}: {problem}", next_step="rename the field")
        seen.add(name)
        count += 1 + _check_names(column.fields, f"{place}.")
    return count


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
        merged.append(_added(column))
    return tuple(merged)


def _added(column: Column) -> Column:
    """A column as it can be added to a table with rows: nothing in it is REQUIRED."""
    return replace(_nullable(column), fields=tuple(_added(member) for member in column.fields))


def _merge_column(
    existing: Column, wanted: Column | None, prefix: str, added: list[str], relaxed: list[str]
) -> Column:
    name = prefix + existing.name
    mode = existing.mode
    if mode == "REQUIRED" and (wanted is None or wanted.mode == "NULLABLE"):
        relaxed.append(name)
        mode = "NULLABLE"
    if wanted is None:
        return replace(existing, mode=mode)
    repeated = (existing.mode == "REPEATED", wanted.mode == "REPEATED")
    if existing.type != wanted.type or repeated[0] != repeated[1]:
        raise IncompatibleColumn(
            f"column {name}: the table has {type_of(existing)}, the records have {type_of(wanted)}",
            next_step="change the table or the schema, then `kbq resume --table`",
        )
    fields = _merge(existing.fields, wanted.fields, f"{name}.", added, relaxed)
    return replace(existing, mode=mode, fields=fields)


def type_of(column: Column) -> str:
    """All that makes a column's type, without the fields of a STRUCT."""
    return f"{'REPEATED ' if column.mode == 'REPEATED' else ''}{column.type}"


class _SchemaReader:
    """Reads one schema: remembers its named types, and how deep in records it is."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Any, str]] = {}
        self._open: list[int] = []  # identities of the records being read: one inside itself is recursive

    def fields(self, schema: Mapping[str, Any], namespace: str, place: str) -> tuple[Column, ...]:
        """The columns of a record. A field of type null has none: BigQuery ignores it."""
        namespace = self._remember(schema, namespace)
        if id(schema) in self._open:
            raise _refused(place, "its type contains itself", "replace the recursion by an array of records")
        if len(self._open) > MAX_STRUCT_DEPTH:
            raise _refused(
                place, f"more than {MAX_STRUCT_DEPTH} levels of records", "flatten the inner records"
            )
        self._open.append(id(schema))
        columns = [_told(self.column(i["name"], i["type"], namespace, place), i) for i in schema["fields"]]
        self._open.pop()
        found = tuple(c for c in columns if c is not None)
        if not found:
            raise _refused(place, "a record without columns", "give the record a field, or leave it out")
        return found

    def column(self, name: str, schema: Any, namespace: str, place: str) -> Column | None:
        """The column of one field, None for a type that holds nothing but nulls."""
        inside = f"{place}.{name}" if place else name
        levels: list[str] = []
        schema, namespace = self._resolved(schema, namespace, inside, levels)
        column = self._column(name, schema, namespace, inside)
        return None if column is None else _at_least(column, *levels)

    def _column(self, name: str, schema: Any, namespace: str, inside: str) -> Column | None:
        """The same for a definition; ``inside`` is the place of what is in it."""
        if isinstance(schema, list):
            return self._union(name, schema, namespace, inside)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "null":
            return None
        if kind in ("record", "error"):
            return Column(name, "STRUCT", "REQUIRED", self.fields(schema, namespace, inside))
        if kind == "map":
            return self._map(name, schema, namespace, inside)
        if kind == "array":
            return self._array(name, schema, namespace, inside)
        return Column(name, self._scalar(kind, schema, namespace), "REQUIRED")

    def _resolved(self, schema: Any, namespace: str, place: str, levels: list[str]) -> tuple[Any, str]:
        """Follow names, and types in two coats (``{"type": {…}}``), to a definition and its namespace. Adds the levels
        of personal data on the way to ``levels``."""
        while True:
            if isinstance(schema, str) and schema not in _PRIMITIVES and schema != "null":
                full = f"{namespace}.{schema}" if namespace and "." not in schema else schema
                found = self._named.get(full) or self._named.get(schema)
                if found is None:
                    raise _refused(
                        place, f"type {schema!r} is not defined", "check the schema in the registry"
                    )
                schema, namespace = found
            levels.append(_level(schema))
            if not isinstance(schema, dict) or (isinstance(schema["type"], str) and schema["type"] in _KINDS):
                return schema, namespace
            schema = schema["type"]

    def _scalar(self, kind: str, schema: Any, namespace: str) -> str:
        details = schema if isinstance(schema, dict) else {}
        if kind in ("enum", "fixed"):
            self._remember(details, namespace)
        if kind == "string" and details.get("sqlType") in ("JSON", "GEOGRAPHY"):
            return str(details["sqlType"])
        logical = details.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(details)
        return _LOGICAL.get((kind, str(logical)), _SCALARS[kind])

    def _union(self, name: str, branches: list[Any], namespace: str, place: str) -> Column | None:
        others = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        if not others:
            return None
        if len(others) == 1:
            column = self.column(name, others[0], namespace, place.rpartition(".")[0])
            if column is None or column.mode == "REPEATED" or len(branches) == 1:
                return column
            return replace(column, mode="NULLABLE")
        members = [self.column(f"{branch_name(b)}_value", b, namespace, place) for b in others]
        fields = tuple(_nullable(member) for member in members if member is not None)
        names = [member.name.lower() for member in fields]
        if len(set(names)) < len(names):
            raise _refused(place, "a union of types with one name", "rename one of the types")
        return Column(name, "STRUCT", "NULLABLE", fields)

    def _map(self, name: str, schema: Mapping[str, Any], namespace: str, place: str) -> Column:
        # NULLABLE: a load may not make a REQUIRED field of a table NULLABLE, the reverse is always allowed.
        key, value = Column("key", "STRING"), self.column("value", schema["values"], namespace, place)
        return Column(name, "STRUCT", "REPEATED", (key,) if value is None else (key, _nullable(value)))

    def _array(self, name: str, schema: Mapping[str, Any], namespace: str, place: str) -> Column | None:
        item = self.column(name, schema["items"], namespace, place.rpartition(".")[0])
        if item is None:
            return None  # BigQuery ignores an array of nulls
        if item.mode == "REPEATED":
            raise _refused(place, "an array of arrays or maps", "wrap the inner one in a record")
        return replace(item, mode="REPEATED")

    def _remember(self, schema: Mapping[str, Any], namespace: str) -> str:
        """Note a named type; return the namespace its content lives in."""
        outer, name = namespace, str(schema.get("name", ""))
        if "." in name:
            namespace, _, name = name.rpartition(".")
        else:
            namespace = str(schema.get("namespace", namespace) or "")
        self._named[f"{namespace}.{name}" if namespace else name] = (schema, outer)
        return namespace


def _told(column: Column | None, field: Mapping[str, Any]) -> Column | None:
    """A column with what its field says of itself, and its type."""
    if column is None or not ("doc" in field or "pii" in field):
        return column
    return _at_least(replace(column, description=str(field.get("doc") or "")), _level(field))


def _at_least(column: Column, *levels: str) -> Column:
    """A column as personal as each of these levels says."""
    highest = max((column.pii, *levels), key=_rank)
    return column if highest == column.pii else replace(column, pii=highest)


def _rank(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else 1


def _level(said: Any) -> str:
    return str(said.get("pii") or "").upper() if isinstance(said, Mapping) else ""


def branch_name(branch: Any) -> str:
    """The name of a union's branch, without its namespace: its field is ``<name>_value``."""
    while isinstance(branch, dict):
        branch = branch.get("name", branch["type"])
    return str(branch).rsplit(".", 1)[-1]


def _decimal(details: Mapping[str, Any]) -> str:
    """NUMERIC has 29 digits before the point and 9 after it, BIGNUMERIC 38 and 38; a longer one is a STRING.

    A decimal without a valid precision is plain bytes, as Avro's specification says.
    """
    precision, scale = details.get("precision", 0), details.get("scale", 0)
    if (
        not isinstance(precision, int)
        or not isinstance(scale, int)
        or not 0 <= scale <= precision
        or precision < 1
    ):
        return "BYTES"
    if precision - scale <= 29 and scale <= 9:
        return "NUMERIC"
    return "BIGNUMERIC" if precision - scale <= 38 and scale <= 38 else "STRING"


def _nullable(column: Column) -> Column:
    return column if column.mode == "REPEATED" else replace(column, mode="NULLABLE")


def _refused(place: str, problem: str, next_step: str) -> EncodingError:
    return EncodingError(f"column {place or '(all)'}: {problem} has no column type", next_step=next_step)
