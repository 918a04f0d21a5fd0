"""Descriptions, labels and policy tags of a table. They change no row and no file.

The catalog's notes always win. A schema's notes only fill what is empty: two schemas of one topic may differ, and text
that a person wrote stays.
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

#: KBQ's own columns, those of error tables among them.
OWN_COLUMNS: Final[Mapping[str, str]] = {
    "_kafka_topic": "The Kafka topic of the record.",
    "_kafka_partition": "The partition of the topic.",
    "_kafka_offset": "The record's offset in its partition: with topic, partition and epoch it names the row.",
    "_kafka_timestamp": "The record's time in Kafka.",
    "_kafka_key": "The record's key, as it was sent.",
    "_key": "The record's key, decoded.",
    "_kafka_headers": "The record's headers.",
    "_kbq_epoch": "How often the topic was made anew, or read again from an offset; 1 at first.",
    "_kbq_schema_id": "The id of the schema that the record was written with.",
    "_kbq_rest": "What of the JSON document has no column of its own, as JSON.",
    "_kbq_replayed_at": "When kbq errors replay turned the bad record into a row; null for all others.",
    "_kbq_replay": "The number of the replay that the row came from (kbq replay); null for all others.",
    "_event_time": "The record's business time, else its time in Kafka.",
    "event_date": "The day (UTC) of the record's business time, else of its time in Kafka. The partition of the table.",
}


@dataclass(frozen=True)
class ColumnNote:
    """The catalog's notes about a column; "" means no note. ``pii`` is a level of personal data."""

    description: str = ""
    pii: str = ""


@dataclass(frozen=True)
class TableNotes:
    """The catalog's notes about a table. ``columns`` are by dotted path in lower case, ``policy_tags`` by level of
    personal data."""

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnNote] = field(default_factory=dict)
    policy_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The description, within the warehouses' limit."""
        return short(self.description.strip(), MAX_TABLE_TEXT)


@dataclass(frozen=True)
class StoredTable:
    """A table as the warehouse has it. ``expires``: the warehouse will drop the whole table. ``partition_expiry_ms``:
    it drops older partitions; 0 keeps them."""

    columns: tuple[Column, ...]
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    expires: bool = False
    partition_expiry_ms: int = 0


def has_own_columns_alone(columns: Iterable[Column]) -> bool:
    """Whether all columns are KBQ's: rows of tombstones have no others."""
    return all(column.name.lower() in OWN_COLUMNS for column in columns)


def noted(columns: Iterable[Column], staged: Iterable[Column], notes: TableNotes) -> tuple[Column, ...]:
    """Columns with the catalog's notes; the staged schema's notes fill what is empty."""
    return _noted(columns, staged, notes, "", ("", ""))


def needs_notes(stored: StoredTable, notes: TableNotes) -> bool:
    """Whether a table's description or labels differ from the catalog's. Labels that others added stay."""
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
    """A column with its notes. ``above`` are its record's levels, by catalog and by schema."""
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
