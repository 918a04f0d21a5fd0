"""Tables in the catalog: columns, notes, partitions, and their changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import HourTransform, IdentityTransform, MonthTransform, Transform
from pyiceberg.types import TimestamptzType

from kbq_assets.adapters.iceberg.types import NOTED, column_of, fields_of, paths
from kbq_assets.core.loading.partitions import HOUR, MONTH, time_column
from kbq_assets.core.loading.table_notes import OWN_COLUMNS, StoredTable, TableNotes, has_own_columns_alone
from kbq_assets.core.loading.tables import Column, TableOptions

POSITIONS: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kbq_epoch")
#: The schema id of a row's file. It is a column because Iceberg can only partition by columns.
SCHEMA_ID: Final = "_kbq_schema_id"
SCHEMA_VERSION, EVENT_HOUR, EVENT_MONTH = "schema_version", "event_hour", "event_month"
RETRIES: Final = "commit.retry.num-retries"
_COMMENT, _LABEL, _TAG, _TYPE = "comment", "kbq.label.", "kbq.policy-tag.", "kbq.type."
#: Property of a table whose staged files have this column too. Otherwise batches lack it.
_STAGED_ID: Final = "kbq.staged-schema-id"
_PROPERTIES: Final = {
    "format-version": "2",
    # Otherwise the library would rebase a stale append, and a late job would be loaded (PROTOCOL, The lake).
    RETRIES: "0",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


def columns_in(table: Table) -> tuple[Column, ...]:
    """A table's columns, without a column that exists only for partitioning."""
    noted = _with_prefix(table.properties, _TYPE)
    tags = _with_prefix(table.properties, _TAG)
    hidden = "" if table.properties.get(_STAGED_ID) else SCHEMA_ID
    return tuple(column_of(f, noted, tags) for f in table.schema().fields if f.name != hidden)


def stored_table(table: Table) -> StoredTable:
    """A table with its descriptions, labels and number of rows."""
    labels = _with_prefix(table.properties, _LABEL)
    return StoredTable(columns_in(table), table.properties.get(_COMMENT, ""), labels, _rows(table))


def _rows(table: Table) -> int:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    total = snapshot.summary.additional_properties.get("total-records") if snapshot.summary else None
    return table.scan().count() if total is None else int(total)


def has_positions(table: Table) -> bool:
    return set(POSITIONS) <= {field.name for field in table.schema().fields}


def new_schema(columns: Iterable[Column]) -> Schema:
    columns = tuple(columns)
    names = {column.name for column in columns}
    if set(POSITIONS) <= names and SCHEMA_ID not in names:
        columns = (*columns, Column(SCHEMA_ID, "INT64", description=OWN_COLUMNS[SCHEMA_ID]))
    return Schema(*fields_of(columns))


def new_spec(schema: Schema, options: TableOptions) -> PartitionSpec:
    """Partitions by schema version, day and hour of business time, as far as the table has the columns. The options may
    ask for days or months instead."""
    names = [field.name for field in schema.fields]
    unit, time = options.partition_unit or HOUR, time_column(names)
    wanted: list[tuple[str, str, Transform]] = []  # type: ignore[type-arg]
    if SCHEMA_ID in names:
        wanted.append((SCHEMA_VERSION, SCHEMA_ID, IdentityTransform()))
    if options.partition_by in names and unit == MONTH:
        wanted.append((EVENT_MONTH, options.partition_by, MonthTransform()))
    elif options.partition_by in names:
        wanted.append((options.partition_by, options.partition_by, IdentityTransform()))
        if unit == HOUR and time and schema.find_type(time) == TimestamptzType():
            wanted.append((EVENT_HOUR, time, HourTransform()))
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(column).field_id, 1000 + i, transform, name)
            for i, (name, column, transform) in enumerate(wanted)
        )
    )


def new_order(schema: Schema, options: TableOptions) -> SortOrder:
    """Sorts by the clustering columns."""
    return SortOrder(
        *(
            SortField(source_id=schema.find_field(name).field_id, transform=IdentityTransform())
            for name in options.cluster_by
        )
    )


def new_properties(columns: Iterable[Column], options: TableOptions) -> dict[str, str]:
    """The properties of a new table: KBQ's own, labels and notes."""
    notes = TableNotes(options.notes.text, {**options.labels, **options.notes.labels})
    return {**_PROPERTIES, **_noted_properties(columns, notes)}


def update(table: Table, columns: Iterable[Column], notes: TableNotes) -> None:
    """Add missing columns and nested fields, relax columns that are now NULLABLE, and update descriptions. Empty texts
    change nothing. If the table had only tombstones, the records' columns go before its own.

    Takes one commit, or none if nothing differs. Field ids stay, so older files can be read with the new schema.
    """
    wanted = tuple(columns)
    existing = columns_in(table)
    known = {path.lower(): column for path, column in paths(existing)}
    described = tuple(_kept(column, known, "") for column in wanted)
    properties = _noted_properties(wanted, notes)
    changed = {name: text for name, text in properties.items() if table.properties.get(name) != text}
    differs = any(known.get(path.lower()) is None for path, _ in paths(wanted)) or any(
        _alters(known[path.lower()], column, "." in path)
        for path, column in paths(described)
        if path.lower() in known
    )
    if not changed and not differs:
        return
    with table.transaction() as transaction:
        if differs:
            with transaction.update_schema() as change:
                change.case_sensitive(False).union_by_name(Schema(*fields_of(described)))
                if has_own_columns_alone(existing):
                    for column in (each for each in wanted if each.name.lower() not in known):
                        change.move_before(column.name, existing[0].name)
        if changed:
            transaction.set_properties(changed)


def _alters(known: Column, wanted: Column, nested: bool) -> bool:
    relaxed = known.mode == "REQUIRED" and wanted.mode == "NULLABLE" and not nested
    return relaxed or known.description != wanted.description


def _kept(column: Column, known: Mapping[str, Column], prefix: str) -> Column:
    """A column with its stored description, if it has no new one, and with a possible mode: a table with rows cannot
    gain a required column, and an optional column cannot become required."""
    path = (prefix + column.name).lower()
    stored = known.get(path)
    mode = column.mode
    if mode == "REQUIRED" and (stored is None or stored.mode != "REQUIRED"):
        mode = "NULLABLE"
    return Column(
        column.name,
        column.type,
        mode,
        tuple(_kept(member, known, f"{path}.") for member in column.fields),
        column.description or (stored.description if stored else ""),
    )


def _noted_properties(columns: Iterable[Column], notes: TableNotes) -> dict[str, str]:
    found = {_LABEL + key: value for key, value in notes.labels.items()}
    if notes.text:
        found[_COMMENT] = notes.text
    for path, column in paths(columns):
        if column.type in NOTED:
            found[_TYPE + path] = column.type
        if path == SCHEMA_ID:
            found[_STAGED_ID] = "true"
        if column.policy_tag:
            found[_TAG + path] = column.policy_tag
    return found


def _with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}
