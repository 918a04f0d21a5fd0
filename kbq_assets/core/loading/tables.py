"""Derives warehouse columns from Avro schemas, and the table changes that a load needs first.

Types are BigQuery's names; the local warehouse maps them to its own. The mapping is BigQuery's for Avro with
``useAvroLogicalTypes`` and ``decimalTargetTypes=[NUMERIC, BIGNUMERIC, STRING]``:
https://cloud.google.com/bigquery/docs/loading-data-cloud-storage-avro#avro_conversions. In short: a union of types
becomes a STRUCT with one field set, a map a REPEATED STRUCT<key, value>, ``duration`` BYTES, ``uuid`` a STRING. Fields,
unions and arrays that can only be null get no column. Arrays of arrays have no type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import ColumnVisitor, visit
from kbq_assets.core.compaction.model import CompactionRule
from kbq_assets.core.errors import ConfigurationError, EncodingError
from kbq_assets.core.loading.column_limits import (
    MAX_COLUMNS,
    MAX_STRUCT_DEPTH,
    check_columns,
    count_columns,
    too_many,
)
from kbq_assets.core.loading.table_notes import TableNotes, has_own_columns_alone
from kbq_assets.core.statements.rules import StatementRule

_SCALARS = {
    "boolean": "BOOL",
    "int": "INT64",
    "long": "INT64",
    "float": "FLOAT64",
    "double": "FLOAT64",
    "bytes": "BYTES",
    "string": "STRING",
    "fixed": "BYTES",
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
#: A schema that reuses its records may have 2**100 columns, so counting ends here.
_MOST_COUNTED = 10 * MAX_COLUMNS
#: Columns of longer schemas are not cached.
_MOST_KEPT = 32_768
_LEVELS = ("", "NONE", "LOW", "MEDIUM", "HIGH")


@dataclass(frozen=True)
class Column:
    """A column. ``mode`` is NULLABLE, REQUIRED or REPEATED; a STRUCT (BigQuery: RECORD) has ``fields``.

    ``description``, ``policy_tag`` (BigQuery's, which limits the column's readers) and ``pii``, the schema's level of
    personal data, do not affect rows; see core/loading/table_notes.py. ``digits`` are precision and scale of a NUMERIC
    if the warehouse stores them (DuckDB does; BigQuery's NUMERIC allows every scale). A difference in digits widens the
    column and never conflicts.
    """

    name: str
    type: str
    mode: str = "NULLABLE"
    fields: tuple[Column, ...] = ()
    description: str = ""
    policy_tag: str = ""
    pii: str = ""
    digits: tuple[int, int] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class TableOptions:
    """How a table is created, and how its load jobs are labeled. ``partition_by`` is a DATE column, ``partition_unit``
    one of `PARTITION_UNITS`, "" for the warehouse's default.

    ``expiry_days``: the warehouse drops older partitions; 0 keeps them. ``notes`` are kept up to date.
    """

    partition_by: str = "event_date"
    cluster_by: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    require_partition_filter: bool = False
    expiry_days: int = 0
    notes: TableNotes = field(default_factory=TableNotes)
    #: the load rules of its topics in the source list; normally all equal
    rules: frozenset[StatementRule] = frozenset()
    partition_unit: str = ""
    #: most bytes that its statements may be billed per day; 0: no limit
    bytes_per_day: int = 0
    compaction: CompactionRule = field(default_factory=CompactionRule)


#: Types of clustering columns in BigQuery: https://cloud.google.com/bigquery/docs/clustered-tables#cluster_column_types
_CLUSTERED = frozenset({"BIGNUMERIC", "BOOL", "DATE", "DATETIME", "INT64", "NUMERIC", "STRING", "TIMESTAMP"})


def clusterable(options: TableOptions, columns: Iterable[Column]) -> TableOptions:
    """Options without clustering columns that the table lacks or that cannot cluster. A pattern may select topics with
    different columns."""
    known = {c.name for c in columns if c.type in _CLUSTERED and c.mode != "REPEATED"}
    return replace(options, cluster_by=tuple(name for name in options.cluster_by if name in known))


@dataclass(frozen=True)
class TableChange:
    """The change that a table needs before a load. ``columns`` are all of its columns afterwards."""

    create: bool
    columns: tuple[Column, ...]
    added: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.create or bool(self.added or self.relaxed or self.widened)


class IncompatibleColumn(ConfigurationError):
    """A column whose type differs from the table's. The table is parked with a message that names both types."""


class FullTable(ConfigurationError):
    """A table that would have too many columns with those of a schema. The table is parked with a message that names
    the first new ones."""


def columns_of(schema: str) -> tuple[Column, ...]:
    """The columns of an Avro record schema. Raises EncodingError if a type fits no warehouse column."""
    return _kept_columns_of(schema) if len(schema) <= _MOST_KEPT else _columns_of(schema)


def _columns_of(schema: str) -> tuple[Column, ...]:
    root = avro.parse(avro.load_schema(schema))
    if not isinstance(root, avro.RecordType):
        raise _refused("", f"{avro.branch_name(root)}, which is not a record,", "stage records")
    columns = record.fields if (record := visit(root, _Columns())) is not None else ()
    check_columns(columns)
    return columns


_kept_columns_of = lru_cache(maxsize=128)(_columns_of)


def plan_table_change(schema: str, existing: tuple[Column, ...] | None) -> TableChange:
    """The change that a table needs for a staged schema. ``existing`` is None if the table does not exist. New columns
    are NULLABLE. A REQUIRED column is relaxed if the schema lacks it or has it as NULLABLE. A NUMERIC is widened to the
    schema's digits. In a table of only tombstones so far, the records' columns go before KBQ's own; BigQuery appends
    them. Raises IncompatibleColumn, FullTable.
    """
    wanted = columns_of(schema)
    if existing is None:
        return TableChange(True, wanted)
    changes = _Changes()
    columns = _merge(existing, wanted, "", changes)
    if changes.added and (count := count_columns(columns)) > MAX_COLUMNS:
        raise FullTable(
            f"with {_few(changes.added)}, the table would have {count} columns, fields of records included; "
            f"it holds {MAX_COLUMNS}",
            next_step="drop columns that no record has any more, or route the topic to another table",
        )
    if has_own_columns_alone(existing):
        columns = columns[len(existing) :] + columns[: len(existing)]
    return TableChange(False, columns, tuple(changes.added), tuple(changes.relaxed), tuple(changes.widened))


def _few(names: Sequence[str]) -> str:
    """The first of some names, and how many others there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@dataclass(frozen=True)
class _Changes:
    """Names of the columns that change."""

    added: list[str] = field(default_factory=list)
    relaxed: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)


def _merge(
    existing: Iterable[Column], wanted: Iterable[Column], prefix: str, changes: _Changes
) -> tuple[Column, ...]:
    by_name = {c.name.lower(): c for c in wanted}
    merged = [_merge_column(c, by_name.pop(c.name.lower(), None), prefix, changes) for c in existing]
    for column in by_name.values():
        changes.added.append(prefix + column.name)
        merged.append(_added(column))
    return tuple(merged)


def _added(column: Column) -> Column:
    """The column without REQUIRED parts, so that it can be added to a table with rows."""
    return replace(_nullable(column), fields=tuple(_added(member) for member in column.fields))


def _merge_column(existing: Column, wanted: Column | None, prefix: str, changes: _Changes) -> Column:
    name = prefix + existing.name
    mode = existing.mode
    if mode == "REQUIRED" and (wanted is None or wanted.mode == "NULLABLE"):
        changes.relaxed.append(name)
        mode = "NULLABLE"
    if wanted is None:
        return replace(existing, mode=mode)
    repeated = (existing.mode == "REPEATED", wanted.mode == "REPEATED")
    if existing.type != wanted.type or repeated[0] != repeated[1]:
        raise IncompatibleColumn(
            f"column {name}: the table has {type_of(existing)}, the records have {type_of(wanted)}",
            next_step="change the table or the schema, then `kbq resume --table`",
        )
    if (digits := _widened(existing.digits, wanted.digits)) != existing.digits:
        changes.widened.append(name)
    fields = _merge(existing.fields, wanted.fields, f"{name}.", changes)
    return replace(existing, mode=mode, fields=fields, digits=digits)


def _widened(existing: tuple[int, int] | None, wanted: tuple[int, int] | None) -> tuple[int, int] | None:
    """The fewest digits that hold both, within NUMERIC's 29 before the point and 9 after it."""
    if existing is None or wanted is None:
        return existing
    scale = max(existing[1], wanted[1])
    return max(existing[0] - existing[1], wanted[0] - wanted[1]) + scale, scale


def type_of(column: Column) -> str:
    """A column's type and repetition, without the fields of a STRUCT."""
    return f"{'REPEATED ' if column.mode == 'REPEATED' else ''}{column.type}"


class _Columns(ColumnVisitor[Column | None]):
    """The column of each type; None for a type that can only be null, which BigQuery ignores. Fields set names: only
    they know the place in the schema, so each use of a type gets its own errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._count = 0

    def primitive(self, node: avro.Primitive) -> Column | None:
        if node.kind == "null":
            return None
        return _tagged(Column("", _scalar(node.kind, node), "REQUIRED", digits=_numeric_digits(node)), node)

    def fixed(self, node: avro.Fixed) -> Column:
        return _tagged(Column("", _scalar("fixed", node), "REQUIRED", digits=_numeric_digits(node)), node)

    def enum(self, node: avro.Enum) -> Column:
        return _tagged(Column("", "STRING", "REQUIRED"), node)

    def array(self, node: avro.Array, items: Column | None) -> Column | None:
        if items is None:
            return None  # BigQuery ignores an array of nulls
        if items.mode == "REPEATED":
            raise _refused(self._place, "an array of arrays or maps", "wrap the inner one in a record")
        return _tagged(replace(items, mode="REPEATED"), node)

    def map(self, node: avro.Map, values: Column | None) -> Column:
        # NULLABLE: a load cannot relax a table's REQUIRED field, but REQUIRED values always fit a NULLABLE one.
        key = Column("key", "STRING")
        fields = (key,) if values is None else (key, _nullable(replace(values, name="value")))
        return _tagged(Column("", "STRUCT", "REPEATED", fields), node)

    def union(self, node: avro.Union, branches: Sequence[Column | None]) -> Column | None:
        members = [
            (branch, column)
            for branch, column in zip(node.branches, branches, strict=True)
            if column is not None
        ]
        if not node.several:
            if not members:
                return None
            column = members[0][1]
            return _tagged(column if len(branches) == 1 else _nullable(column), node)
        fields = tuple(
            _nullable(replace(column, name=avro.member_name(branch))) for branch, column in members
        )
        names = [member.name.lower() for member in fields]
        if len(set(names)) < len(names):
            raise _refused(self._place, "a union of types with one name", "rename one of the types")
        return _tagged(Column("", "STRUCT", "NULLABLE", fields), node)

    def before_record(self, node: avro.RecordType) -> None:
        if self._depth > MAX_STRUCT_DEPTH:
            raise _refused(
                self._place, f"more than {MAX_STRUCT_DEPTH} levels of records", "flatten the inner records"
            )
        self._depth += 1

    def record(self, node: avro.RecordType, fields: Sequence[Column | None]) -> Column:
        self._depth -= 1
        found = tuple(column for column in fields if column is not None)
        if not found:
            raise _refused(
                self._place, "a record without columns", "give the record a field, or leave it out"
            )
        return _tagged(Column("", "STRUCT", "REQUIRED", found), node)

    def field(self, field: avro.Field, result: Column | None) -> Column | None:
        if result is None:
            return None
        self._count += 1
        if self._count > _MOST_COUNTED:
            raise too_many(f"more than {_MOST_COUNTED}")
        own = field.attributes
        column = replace(result, name=field.name, description=_described(own))
        return _at_least(column, own["pii"]) if "pii" in own else column

    def inside_itself(self, node: avro.RecordType) -> Column:
        raise _refused(
            self._place, "its type contains itself", "replace the recursion by an array of records"
        )

    @property
    def _place(self) -> str:
        return ".".join(self.path)


def _described(field: Mapping[str, Any]) -> str:
    """A field's description, with its name in the schema appended if no column can have that name."""
    doc, name = str(field.get("doc") or ""), str(field.get("name") or "")
    text = doc if name.isascii() else f"{doc} (In the schema: {name}.)".lstrip()
    # JSON can escape half a surrogate pair, which no warehouse stores.
    return text.encode("utf-8", "replace").decode()


def _scalar(kind: str, node: avro.AvroType) -> str:
    sql_type, logical = node.attribute("sqlType"), node.attribute("logicalType")
    if kind == "string" and sql_type in ("JSON", "GEOGRAPHY"):
        return str(sql_type)
    if (digits := avro.decimal_of(node)) is not None:
        return _decimal(*digits)
    return _LOGICAL.get((kind, str(logical)), _SCALARS[kind])


def _tagged(column: Column, node: avro.AvroType) -> Column:
    """A column with at least the level of personal data of its type."""
    return _at_least(column, *node.values_of("pii"))


def _at_least(column: Column, *levels: Any) -> Column:
    """A column with the highest of its own level and the given ones."""
    highest = max((column.pii, *(str(each or "").upper() for each in levels)), key=_rank)
    return column if highest == column.pii else replace(column, pii=highest)


def _rank(level: str) -> int:
    return _LEVELS.index(level) if level in _LEVELS else 1


def _decimal(precision: int, scale: int) -> str:
    """NUMERIC has 29 digits before the point and 9 after it, BIGNUMERIC 38 and 38. Longer decimals are a STRING."""
    if precision - scale <= 29 and scale <= 9:
        return "NUMERIC"
    return "BIGNUMERIC" if precision - scale <= 38 and scale <= 38 else "STRING"


def _numeric_digits(node: avro.AvroType) -> tuple[int, int] | None:
    """Precision and scale of a decimal that is a NUMERIC, None for every other type."""
    digits = avro.decimal_of(node)
    return digits if digits is not None and is_numeric(*digits) else None


def is_numeric(precision: int, scale: int) -> bool:
    """Whether NUMERIC can store every decimal with these digits."""
    return _decimal(precision, scale) == "NUMERIC"


def numeric_digits(column: Column) -> tuple[int, int]:
    """Precision and scale of a NUMERIC column: from its schema, or NUMERIC's own."""
    return column.digits or (38, 9)


def _nullable(column: Column) -> Column:
    return column if column.mode == "REPEATED" else replace(column, mode="NULLABLE")


def _refused(place: str, problem: str, next_step: str) -> EncodingError:
    return EncodingError(f"column {place or '(all)'}: {problem} has no column type", next_step=next_step)
