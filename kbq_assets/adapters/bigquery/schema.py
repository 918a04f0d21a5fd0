"""Columns and tables in the API's form.

The API uses the type names of legacy SQL (INTEGER, FLOAT, BOOLEAN, RECORD). It also accepts and may return the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from google.cloud import bigquery

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.loading.partitions import DAY, HOUR, time_column
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes, needs_notes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference

#: A field as JSON. KBQ sends fields back as it read them, apart from its own changes. So descriptions, policy tags,
#: default values and future attributes are preserved.
ApiField: TypeAlias = dict[str, Any]

_OURS: Final = {
    "INTEGER": "INT64",
    "FLOAT": "FLOAT64",
    "BOOLEAN": "BOOL",
    "RECORD": "STRUCT",
    "DECIMAL": "NUMERIC",
    "BIGDECIMAL": "BIGNUMERIC",
}
_THEIRS: Final = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_PARTITION_TYPES: Final = frozenset({"DATE", "DATETIME", "TIMESTAMP"})
_CLUSTER_TYPES: Final = frozenset(
    {"BIGNUMERIC", "BOOL", "DATE", "DATETIME", "GEOGRAPHY", "INT64", "NUMERIC", "STRING", "TIMESTAMP"}
)
#: https://cloud.google.com/bigquery/docs/clustered-tables#limitations
MAX_CLUSTER_COLUMNS: Final = 4
#: The attributes that decide whether a file loads. Policy tags are omitted, since setting them needs a permission.
_SHAPE: Final = ("name", "type", "mode", "precision", "scale", "maxLength", "roundingMode")
_DAY_MS: Final = 86_400_000


def api_fields(schema: Iterable[bigquery.SchemaField]) -> list[ApiField]:
    return [field.to_api_repr() for field in schema]


def schema_fields(fields: Iterable[ApiField]) -> list[bigquery.SchemaField]:
    return [bigquery.SchemaField.from_api_repr(field) for field in fields]


def column_of(field: Mapping[str, Any]) -> Column:
    kind = str(field["type"]).upper()
    return Column(
        str(field["name"]),
        _OURS.get(kind, kind),
        str(field.get("mode") or "NULLABLE").upper(),
        tuple(column_of(inner) for inner in field.get("fields", ())),
        str(field.get("description") or ""),
        next(iter((field.get("policyTags") or {}).get("names") or ()), ""),
    )


def field_of(column: Column) -> ApiField:
    field: ApiField = {
        "name": column.name,
        "type": _THEIRS.get(column.type, column.type),
        "mode": column.mode,
    }
    field |= {"fields": [field_of(inner) for inner in column.fields]} if column.fields else {}
    return field | _notes_of(column)


def _notes_of(column: Column) -> ApiField:
    """A column's description and policy tag. Omits empty ones, so that existing values stay."""
    text = {"description": column.description} if column.description else {}
    return text | ({"policyTags": {"names": [column.policy_tag]}} if column.policy_tag else {})


def has_policy_tags(columns: Iterable[Column]) -> bool:
    """Whether any of the columns has a policy tag, which needs its own permission to write."""
    return any(column.policy_tag or has_policy_tags(column.fields) for column in columns)


def updated(existing: Sequence[ApiField], wanted: Iterable[Column]) -> list[ApiField]:
    """The ``existing`` fields, relaxed if ``wanted`` is NULLABLE, then the missing columns. Names ignore case."""
    by_name = {column.name.lower(): column for column in wanted}
    kept = [_relaxed(field, by_name.pop(str(field["name"]).lower(), None)) for field in existing]
    return kept + [field_of(_added(column)) for column in by_name.values()]


def shape(field: Mapping[str, Any]) -> ApiField:
    """A field with only the attributes that affect loading."""
    kept = {name: field[name] for name in _SHAPE if field.get(name) is not None}
    return kept | ({"fields": [shape(inner) for inner in field["fields"]]} if field.get("fields") else {})


def new_table(
    reference: bigquery.TableReference, columns: Sequence[Column], options: TableOptions
) -> bigquery.Table:
    """A table to create. Options for partitioning and clustering apply only if their columns exist."""
    table = bigquery.Table(reference, schema=schema_fields(map(field_of, columns)))
    name = TableReference(reference.dataset_id, reference.table_id)
    by_name = {column.name.lower(): column for column in columns}
    if partition := by_name.get(options.partition_by.lower()):
        _check(name, partition, _PARTITION_TYPES, "partitioned")
        unit = options.partition_unit or DAY
        if unit == HOUR:  # a DATE has no hour
            partition = by_name.get(time_column(by_name), partition)
            unit = HOUR if partition.type == "TIMESTAMP" else DAY
        table.time_partitioning = bigquery.TimePartitioning(
            unit.upper(),
            field=partition.name,
            expiration_ms=options.expiry_days * _DAY_MS or None,
        )
        table.require_partition_filter = options.require_partition_filter
    if cluster := _cluster(name, by_name, options):
        table.clustering_fields = cluster
    table.labels = {**options.labels, **options.notes.labels}
    if options.notes.text:
        table.description = options.notes.text
    return table


def stored_table(table: bigquery.Table) -> StoredTable:
    partitions = table.time_partitioning
    return StoredTable(
        tuple(map(column_of, api_fields(table.schema))),
        table.description or "",
        dict(table.labels),
        table.num_rows or 0,
        table.expires is not None,
        int(partitions.expiration_ms or 0) if partitions else 0,
    )


def expire(table: bigquery.Table, days: int) -> list[str]:
    """Set the expiration of partitions (0 is never), and make the table itself never expire. Returns the names of the
    changed properties."""
    table.expires = None
    if table.time_partitioning is None:
        return ["expires"]
    partitions = bigquery.TimePartitioning(table.time_partitioning.type_, field=table.time_partitioning.field)
    # Null removes the expiration; 0 is refused.
    partitions.expiration_ms = days * _DAY_MS or None
    table.time_partitioning = partitions
    return ["expires", "time_partitioning"]


def noted_fields(table: bigquery.Table, notes: TableNotes) -> list[str]:
    """Set a table's description and labels if they differ. Returns the names of the changed properties."""
    changed = []
    if needs_notes(StoredTable((), table.description or ""), TableNotes(notes.description)):
        table.description = notes.text
        changed.append("description")
    if needs_notes(StoredTable((), "", table.labels), TableNotes(labels=notes.labels)):
        table.labels = {**table.labels, **notes.labels}
        changed.append("labels")
    return changed


def _cluster(name: TableReference, by_name: Mapping[str, Column], options: TableOptions) -> list[str]:
    found = [by_name[wanted.lower()] for wanted in options.cluster_by if wanted.lower() in by_name]
    if len(found) > MAX_CLUSTER_COLUMNS:
        raise WrongOptions(
            f"table {name}: {len(found)} columns to cluster by",
            next_step=f"name at most {MAX_CLUSTER_COLUMNS}",
        )
    for column in found:
        _check(name, column, _CLUSTER_TYPES, "clustered")
    return [column.name for column in found]


def _check(table: TableReference, column: Column, types: frozenset[str], purpose: str) -> None:
    if column.type not in types or column.mode == "REPEATED":
        raise WrongOptions(
            f"table {table} cannot be {purpose} by {column.name}: it is {column.mode} {column.type}",
            next_step=f"name a column of {', '.join(sorted(types))}",
        )


def _relaxed(field: ApiField, wanted: Column | None) -> ApiField:
    if wanted is None:
        return field
    changed = dict(field) | _notes_of(wanted)
    if field.get("mode") == "REQUIRED" and wanted.mode == "NULLABLE":
        changed["mode"] = "NULLABLE"
    if wanted.fields:
        changed["fields"] = updated(field.get("fields", ()), wanted.fields)
    return changed


def _added(column: Column) -> Column:
    """A column to add to a table with rows. Neither it nor its fields are REQUIRED."""
    mode = "REPEATED" if column.mode == "REPEATED" else "NULLABLE"
    return replace(column, mode=mode, fields=tuple(_added(inner) for inner in column.fields))
