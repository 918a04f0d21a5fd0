"""Which topics are extracted, and how: the source list.

One topic or pattern a line, options after it; the first line that matches a topic decides. A pattern has '*' or '?'.

    # topic or pattern     options
    shop.orders.v1         dataset=sales table=orders event_date=ordered_at
    audit-*                format=json errors=skip
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.names import TableReference, check_topic, sanitise_table

#: Name of the table that holds a dataset's error rows.
ERROR_TABLE: Final = "kbq_errors"


@dataclass(frozen=True)
class TopicSettings:
    """How one topic is extracted.

    ``format``: avro (Confluent prefix) or json (any JSON value, as ``payload``).
    ``route``: topic (all records to ``table``) or record_name (a table per Avro record name).
    ``errors``: fail | skip | error_table, for bad records. ``tombstones``: skip | error_table | row, for null values
    (row: a row of ``table`` with the metadata and key alone; its REQUIRED columns are relaxed).
    ``start``: earliest | latest, for a topic seen for the first time. ``on_retention_loss``: stop | record.
    ``codec``: of staged files, by Avro's names; deflate is smaller and dearer, null is uncompressed.
    ``error_share``: of a window of ``error_share_records`` or more, above which the partition stops (E10).
    ``min_records``, ``min_bytes``: a partition with less to read waits, until its oldest unread record is
    ``max_wait_seconds`` old. ``max_records``, ``max_bytes``, ``max_seconds`` (of tasks): most that one run reads of the
    topic. 0 is no limit. ``priority``: high, normal, low, or a whole number: the topic's weight when turns are shared.
    ``cluster_by`` (columns, comma-separated), ``owner``, ``cost_center`` (labels), ``require_partition_filter`` and
    ``partition_expiry_days`` (0: never) are its tables', when they are created (core/table_options.py).
    """

    dataset: str = "kafka"
    table: str = ""
    format: str = "avro"
    route: str = "topic"
    event_date: str = ""
    keys: bool = False
    headers: bool = False
    errors: str = "error_table"
    tombstones: str = "error_table"
    start: str = "earliest"
    on_retention_loss: str = "stop"
    error_share: float = 0.2
    error_share_records: int = 1000
    max_record_bytes: int = 10 * 1024 * 1024
    codec: str = "snappy"
    min_records: int = 0
    min_bytes: int = 0
    max_wait_seconds: int = 3600
    max_records: int = 0
    max_bytes: int = 0
    max_seconds: int = 0
    priority: str = "normal"
    cluster_by: str = ""
    owner: str = ""
    cost_center: str = ""
    require_partition_filter: bool = False
    partition_expiry_days: int = 0

    def __post_init__(self) -> None:
        _ = self.clustering
        for name in _COUNTS:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)}", next_step="0 or more")
        if 0 < self.max_bytes < self.max_record_bytes:
            raise ConfigurationError(
                f"max_bytes={self.max_bytes} would let no record of max_record_bytes={self.max_record_bytes} through",
                next_step="raise max_bytes, or lower max_record_bytes",
            )
        if not 1 <= self.weight <= _MAX_WEIGHT:
            raise ConfigurationError(
                f"priority={self.priority}",
                next_step=f"{', '.join(_PRIORITIES)}, or a whole number from 1 to {_MAX_WEIGHT}",
            )

    @property
    def weight(self) -> int:
        """The topic's share of turns and limits, against other topics'. 0 for a priority that is none."""
        number = int(self.priority) if self.priority.isascii() and self.priority.isdigit() else 0
        return _PRIORITIES.get(self.priority, number)

    def table_for(self, topic: str, record_name: str = "") -> TableReference:
        """The table of a record: by topic, or by the Avro record's name without namespace."""
        by_name = self.route == "record_name" and record_name
        name = record_name.rsplit(".", 1)[-1] if by_name else self.table or topic
        return TableReference(self.dataset, sanitise_table(name))

    @property
    def clustering(self) -> tuple[str, ...]:
        """The columns of ``cluster_by``. Raises ConfigurationError for more than BigQuery takes, or no names."""
        columns = tuple(self.cluster_by.split(",")) if self.cluster_by else ()
        if len(columns) > _MAX_CLUSTERING or not all(map(_COLUMN.fullmatch, columns)):
            raise ConfigurationError(
                f"cluster_by={self.cluster_by}",
                next_step=f"at most {_MAX_CLUSTERING} columns: cluster_by=a,b",
            )
        return columns

    @property
    def error_table(self) -> TableReference:
        """Where bad records go."""
        return TableReference(self.dataset, ERROR_TABLE)


_COUNTS: Final = (
    "min_records", "min_bytes", "max_wait_seconds", "max_records", "max_bytes", "max_seconds",
    "partition_expiry_days",
)  # fmt: skip
_PRIORITIES: Final[Mapping[str, int]] = {"high": 8, "normal": 4, "low": 1}
_MAX_WEIGHT: Final = 100
#: https://cloud.google.com/bigquery/docs/clustered-tables#limitations
_MAX_CLUSTERING: Final = 4
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "format": ("avro", "json"),
    "route": ("topic", "record_name"),
    "errors": ("fail", "skip", "error_table"),
    "tombstones": ("skip", "error_table", "row"),
    "start": ("earliest", "latest"),
    "on_retention_loss": ("stop", "record"),
    "codec": ("snappy", "deflate", "null"),
}


@dataclass(frozen=True)
class SourceEntry:
    """One line of the source list."""

    pattern: str
    settings: TopicSettings

    def matches(self, topic: str) -> bool:
        """Whether the line speaks of a topic."""
        return topic == self.pattern or fnmatch.fnmatchcase(topic, self.pattern)


def parse_source_list(
    text: str, origin: str, defaults: TopicSettings | None = None
) -> tuple[SourceEntry, ...]:
    """Parse a source list. Raises ConfigurationError with ``origin`` and the line's number."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            where = f"{origin}:{number}"
            entries.append(SourceEntry(_pattern(words[0], where), _settings(words[1:], where, defaults)))
    return tuple(entries)


def select_topics(entries: Iterable[SourceEntry], topics: Iterable[str]) -> dict[str, TopicSettings]:
    """The settings of each topic that a line names or matches; the first line decides."""
    entries = tuple(entries)
    chosen = {
        topic: next((e.settings for e in entries if e.matches(topic)), None) for topic in sorted(topics)
    }
    return {topic: settings for topic, settings in chosen.items() if settings is not None}


def _pattern(word: str, where: str) -> str:
    if not any(c in word for c in "*?["):
        return check_topic(word)
    if "=" in word:
        raise ConfigurationError(f"{where}: the first word is a topic or pattern, not {word!r}")
    return word


def _settings(words: Iterable[str], where: str, defaults: TopicSettings | None) -> TopicSettings:
    base = defaults or TopicSettings()
    types = {f.name: type(getattr(base, f.name)) for f in dataclasses.fields(base)}
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in types:
            raise _unknown_option(key, tuple(types), where)
        changes[key] = _converted(types[key], key, value, where)
    try:
        return dataclasses.replace(base, **changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}", next_step=error.next_step) from error


def _converted(kind: type, key: str, value: str, where: str) -> Any:
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigurationError(f"{where}: {key}={value}", next_step=f"one of {', '.join(_CHOICES[key])}")
    if kind is bool:
        if value not in ("true", "false"):
            raise ConfigurationError(f"{where}: {key}={value}", next_step="true or false")
        return value == "true"
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigurationError(
            f"{where}: {key}={value}: {error}", next_step=f"expected {kind.__name__}"
        ) from error


def _unknown_option(key: str, known: tuple[str, ...], where: str) -> ConfigurationError:
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(known)}"
    return ConfigurationError(f"{where}: unknown option {key!r}", next_step=hint)
