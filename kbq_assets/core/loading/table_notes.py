"""What is said of a table beside its shape: descriptions, labels, policy tags. It changes no row and no file.

What the catalogue says is kept true. What a schema says fills what is empty: two schemas of one topic may differ, and a
person's own words stay.
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
    "_kafka_headers": "The record's headers.",
    "_kbq_epoch": "How often the topic was made anew, or read again from an offset; 1 at first.",
    "_kbq_rest": "What of the JSON document has no column of its own, as JSON.",
    "_event_time": "The record's business time, else its time in Kafka.",
    "event_date": "The day (UTC) of the record's business time, else of its time in Kafka. The partition of the table.",
}


@dataclass(frozen=True)
class ColumnNote:
    """What the catalogue says of a column; "" says nothing. ``pii`` is a level of personal data."""

    description: str = ""
    pii: str = ""


@dataclass(frozen=True)
class TableNotes:
    """What the catalogue says of a table. ``columns`` by dotted path in lower case; ``policy_tags`` by level of
    personal data."""

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnNote] = field(default_factory=dict)
    policy_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The description as warehouses take it."""
        return short(self.description.strip(), MAX_TABLE_TEXT)


@dataclass(frozen=True)
class StoredTable:
    """A table as the warehouse has it."""

    columns: tuple[Column, ...]
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def noted(columns: Iterable[Column], staged: Iterable[Column], notes: TableNotes) -> tuple[Column, ...]:
    """Columns of a table with the catalogue's notes; what nobody described yet is as the staged schema describes it."""
    return _noted(columns, staged, notes, "", ("", ""))


def needs_notes(stored: StoredTable, notes: TableNotes) -> bool:
    """Whether a table's description or labels are others than the catalogue's. Labels of other people stay."""
    is_other = bool(notes.text) and stored.description != notes.text
    return is_other or any(stored.labels.get(key) != value for key, value in notes.labels.items())


def short(text: str, most: int) -> str:
    """Text of at most so many characters."""
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
    """``above``: the levels, by catalogue and by schema, of the record that the column is in."""
    path = f"{prefix}{column.name.lower()}"
    if path not in notes.columns and (field := path.rpartition("__")[0]) in notes.columns:
        path = field  # a column beside, for another type of the field (core/topics/evolution.py): as personal as that
    note = notes.columns.get(path, _SILENT)
    said, found = note.pii or above[0], (staged.pii if staged else "") or above[1]
    text = note.description or column.description or (staged.description if staged else "")
    inner = _noted(column.fields, staged.fields if staged else (), notes, f"{path}.", (said, found))
    tags = notes.policy_tags
    # BigQuery protects leaves: a record's level is that of its fields.
    tag = "" if column.fields else tags.get(said) or column.policy_tag or tags.get(found, "")
    text = short(text.strip() or OWN_COLUMNS.get(path, ""), MAX_COLUMN_TEXT)
    return replace(column, description=text, policy_tag=tag, pii="", fields=inner)


_SILENT: Final = ColumnNote()
