"""Descriptions, labels and policy tags of a table. They do not affect rows or files.

The catalog's notes always win. A schema's notes only fill empty texts, because two schemas of one topic may differ, and
texts that a person wrote must stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbq_assets.core.loading.tables import Column

#: https://cloud.google.com/bigquery/docs/schemas#column_descriptions
MAX_COLUMN_TEXT: Final = 1024
#: https://cloud.google.com/bigquery/docs/reference/rest/v2/tables: descriptions of tables.
MAX_TABLE_TEXT: Final = 16_384

#: Descriptions of KBQ's own columns, including those of error tables.
OWN_COLUMNS: Final[Mapping[str, str]] = {
    "_kafka_topic": "The Kafka topic of the record.",
    "_kafka_partition": "The partition of the topic.",
    "_kafka_offset": "The record's offset in its partition. Topic, partition, offset and epoch identify the row.",
    "_kafka_timestamp": "The record's time in Kafka.",
    "_kafka_key": "The record's key, as it was sent.",
    "_key": "The record's key, decoded.",
    "_kafka_headers": "The record's headers.",
    "_kbq_epoch": "The topic's epoch: 1 at first, one more after each recreation or reset of the topic.",
    "_kbq_schema_id": "The id of the schema with which the record was written.",
    "_kbq_rest": "The parts of the JSON document that have no column of their own, as JSON.",
    "_kbq_replayed_at": "When kbq errors replay turned the bad record into a row; null for all others.",
    "_kbq_replay": "The number of the replay that wrote the row (kbq replay); null for all others.",
    "_event_time": "The record's business time, or its time in Kafka if it has none.",
    "event_date": "The day (UTC) of the record's business time, or of its time in Kafka. Partitions the table.",
}


@dataclass(frozen=True)
class ColumnNote:
    """The catalog's notes about a column; "" means no note. ``pii`` is a level of personal data."""

    description: str = ""
    pii: str = ""


@dataclass(frozen=True)
class TableNotes:
    """The catalog's notes about a table. Keys of ``columns`` are dotted paths in lower case, keys of ``policy_tags``
    are levels of personal data."""

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnNote] = field(default_factory=dict)
    policy_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The description, cut to the warehouses' limit."""
        return short(self.description.strip(), MAX_TABLE_TEXT)


@dataclass(frozen=True)
class StoredTable:
    """A table as stored in the warehouse. ``expires``: the warehouse will drop the whole table.
    ``partition_expiry_ms``: it drops partitions older than this; 0 keeps all."""

    columns: tuple[Column, ...]
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    expires: bool = False
    partition_expiry_ms: int = 0


def has_own_columns_alone(columns: Iterable[Column]) -> bool:
    """Whether all columns are KBQ's own, as in a table that has only tombstones."""
    return all(column.name.lower() in OWN_COLUMNS for column in columns)


def noted(columns: Iterable[Column], staged: Iterable[Column], notes: TableNotes) -> tuple[Column, ...]:
    """Columns with the catalog's notes. The staged schema's notes fill empty texts."""
    return _noted(columns, staged, notes, "", ("", ""))


def needs_notes(stored: StoredTable, notes: TableNotes) -> bool:
    """Whether a table's description or labels differ from the catalog's. Ignores labels that others added."""
    is_other = bool(notes.text) and stored.description != notes.text
    return is_other or any(stored.labels.get(key) != value for key, value in notes.labels.items())


def short(text: str, most: int) -> str:
    """Text cut to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _noted(
    columns: Iterable[Column],
    staged: Iterable[Column],
    notes: TableNotes,
    prefix: str,
    above: tuple[str, str],
) -> tuple[Column, ...]:
    by_name = {column.name.lower(): column for column in staged}
    return tuple(_note(column, by_name.get(column.name.lower()), notes, prefix, above) for column in columns)


def _note(
    column: Column, staged: Column | None, notes: TableNotes, prefix: str, above: tuple[str, str]
) -> Column:
    """A column with its notes. ``above`` are the levels of its record in the catalog and in the schema."""
    path = f"{prefix}{column.name.lower()}"
    if path not in notes.columns and (field := path.rpartition("__")[0]) in notes.columns:
        path = field  # a variant column (core/topics/evolution.py) is as personal as its field
    note = notes.columns.get(path, _SILENT)
    noted, found = note.pii or above[0], (staged.pii if staged else "") or above[1]
    text = note.description or column.description or (staged.description if staged else "")
    inner = _noted(column.fields, staged.fields if staged else (), notes, f"{path}.", (noted, found))
    tags = notes.policy_tags
    # BigQuery protects leaves, so a record's level applies to its fields.
    tag = "" if column.fields else tags.get(noted) or column.policy_tag or tags.get(found, "")
    text = short(text.strip() or OWN_COLUMNS.get(path, ""), MAX_COLUMN_TEXT)
    return replace(column, description=text, policy_tag=tag, pii="", fields=inner)


_SILENT: Final = ColumnNote()
