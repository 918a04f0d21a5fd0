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
from kbq_assets.core.observation.check_names import BLOCKABLE, CONTIGUOUS
from kbq_assets.core.protocol.names import TableReference, check_topic, sanitise_table
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.core.topics.destinations import (
    PYTHON,
    Template,
    check_exposure,
    check_known,
    is_template,
    parse_template,
    with_topic,
)
from kbq_assets.core.topics.evolution import NEW_TABLE_VERSION, PARK, VARIANT_COLUMN
from kbq_assets.core.topics.personal import HEADERS, KEY, parse_decisions

#: Name of the table that holds a dataset's error rows.
ERROR_TABLE: Final = "kbq_errors"


@dataclass(frozen=True)
class TopicSettings:
    """How one topic is extracted.

    ``format``: avro (Confluent prefix), json (any JSON value, as ``payload``), json_columns (fields of JSON objects as
    columns; core/topics/json/inference.py), json_schema (the same behind Confluent's prefix), protobuf.
    ``route``: topic (all records to ``table``), record_name (a table per Avro record name), or python:<name> (a
    function of a package says each record's table). ``table`` and ``dataset`` may be templates, which each record
    fills (core/topics/destinations.py); then ``error_dataset`` is that of bad records. ``tables``: patterns of the
    tables that records may choose, comma-separated; what goes to others becomes error rows, or by
    ``unknown_table=create`` tables.
    ``max_tables``: of a window; records of more become error rows.
    ``event_date``: where the business time comes from, `auto`, a field, several as ``a|b``
    (core/topics/business_time.py).
    ``errors``: fail | skip | error_table, for bad records. ``tombstones``: skip | error_table | row, for null values
    (row: a row of ``table`` with the metadata and key alone; its REQUIRED columns are relaxed).
    ``start``: earliest | latest, for a topic seen for the first time. ``on_retention_loss``: stop | record.
    ``codec``: of staged files, by Avro's names; deflate is smaller and dearer, null is uncompressed.
    ``error_share``: of a window of ``error_share_records`` or more, above which the partition stops (E10).
    ``min_records``, ``min_bytes``: a partition with less to read waits, until its oldest unread record is
    ``max_wait_seconds`` old. ``max_records``, ``max_bytes``, ``max_seconds`` (of tasks): most that one run reads of the
    topic. 0 is no limit. ``window_seconds``, ``window_records``, ``window_bytes`` (of staged files): at the first of
    these a window ends; 0 is the environment's limit.
    ``priority``: high, normal, low, or a whole number: the topic's weight when turns are shared.
    ``restart``: auto | manual, whether what stopped or is parked is tried again by itself
    (core/extraction/restarts.py).
    ``cluster_by`` (columns, comma-separated), ``owner``, ``cost_center`` (labels), ``require_partition_filter`` and
    ``partition_expiry_days`` (0: never) are its tables', when they are created (core/loading/table_options.py).
    ``max_lag_records`` (positions of the topic), ``max_lag_seconds`` (of an unread record), ``max_age_seconds`` (of one
    that is not in its table) and ``max_error_share`` (of lately read records) are checked, 0 is off; ``blocking`` names
    the checks that hold the topic's files while they fail, comma-separated (core/observation/check_names.py).
    ``on_incompatible``: park | new_table_version | variant_column, for a schema that contradicts its table
    (core/topics/evolution.py).
    ``complete_after_seconds``: how far beyond an hour its partitions must be before it is called complete; tables do
    not wait for a topic with 0 (core/loading/completeness.py).
    ``pii``: what becomes of personal data, ``field:action,…`` (core/topics/personal.py). Topics with decisions, and
    schemas that lack them, have error rows by ``pii_errors``: withhold (no value, key, headers), seal (with
    a public key) or drop (none, counted as skipped); and
    ``pii_others`` says what becomes of fields of JSON that nobody decided about or
    declared: stop, drop, keep.
    ``declared``: a JSON Schema of json and json_columns, as the catalogue has it (pipelines/catalog/declared_json.py).
    """

    dataset: str = "kafka"
    table: str = ""
    format: str = "avro"
    route: str = "topic"
    unknown_table: str = "error_table"
    tables: str = ""
    max_tables: int = 200
    error_dataset: str = ""
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
    window_seconds: int = 0
    window_records: int = 0
    window_bytes: int = 0
    priority: str = "normal"
    restart: str = "auto"
    cluster_by: str = ""
    owner: str = ""
    cost_center: str = ""
    require_partition_filter: bool = False
    partition_expiry_days: int = 0
    max_lag_records: int = 0
    max_lag_seconds: int = 7200
    max_age_seconds: int = 14400
    complete_after_seconds: int = 900
    max_error_share: float = 0.05
    blocking: str = CONTIGUOUS
    on_incompatible: str = PARK
    pii: str = ""
    pii_errors: str = "withhold"
    pii_others: str = "stop"
    declared: str = ""

    def __post_init__(self) -> None:
        _ = self.clustering, self.blocking_checks, parse_business_time(self.event_date)
        self._check_personal()
        self._check_destination()
        for name in _COUNTS:
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)}", next_step="0 or more")
        if self.format.startswith("json_") and self.route == "record_name":
            raise ConfigurationError("route=record_name: JSON records have no names", next_step="route=topic")
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

    def _check_destination(self) -> None:
        template, by_function = self.template, self.route.startswith(PYTHON)
        if self.route not in ("topic", "record_name") and not (by_function and self.route_function):
            raise ConfigurationError(
                f"route={self.route}", next_step=f"topic, record_name, or {PYTHON}<name of an entry point>"
            )
        if self.route != "topic" and any(not name.startswith("topic") for name in template.inputs):
            raise ConfigurationError(
                f"route={self.route} decides, and so does a template",
                next_step="table={record}, or route=topic",
            )
        of_record = [name for name in self.dataset_template.inputs if not name.startswith("topic")]
        if of_record and not self.error_dataset:
            raise ConfigurationError(
                f"dataset={self.dataset}: each record says its own, and bad records have none",
                next_step="error_dataset= names the dataset of kbq_errors",
            )
        if self.max_tables < 1:
            raise ConfigurationError(f"max_tables={self.max_tables}", next_step="1 or more")
        check_known(self.known_tables)
        self.check_inputs(template.inputs)

    def check_inputs(self, inputs: Iterable[str]) -> None:
        """Raises ConfigurationError for what must not or cannot decide about tables of this topic."""
        check_exposure(inputs, parse_decisions(self.pii))
        for name in inputs:
            if name.startswith("field.") and self.format == "json":
                raise ConfigurationError(
                    f"table: {name} of a document that is one column", next_step="format=json_columns"
                )
            if name == "record" and self.format.startswith("json"):
                raise ConfigurationError("table: {record}: JSON records have no names", next_step="a field")

    def _check_personal(self) -> None:
        decided = {decision.path: decision for decision in parse_decisions(self.pii)}
        if not decided:
            return
        if (self.keys or self.tombstones == "row") and KEY not in decided:
            raise ConfigurationError(
                "pii= says nothing about keys", next_step=f"add {KEY}:pseudonym or {KEY}:keep"
            )
        if self.headers and HEADERS not in decided:
            raise ConfigurationError(
                "pii= says nothing about headers", next_step=f"headers=false, or {HEADERS}:keep"
            )

    @property
    def weight(self) -> int:
        """The topic's share of turns and limits, against other topics'. 0 for a priority that is none."""
        number = int(self.priority) if self.priority.isascii() and self.priority.isdigit() else 0
        return _PRIORITIES.get(self.priority, number)

    def table_for(self, topic: str, record_name: str = "") -> TableReference:
        """The table of a record: by topic, or by the Avro record's name without namespace. Raises ConfigurationError
        where each record says its own (`by_record`)."""
        if self.by_record:
            raise ConfigurationError(f"{topic} has no one table", next_step="its records choose their tables")
        by_name = self.route == "record_name" and record_name
        name = record_name.rsplit(".", 1)[-1] if by_name else self.table or topic
        return TableReference(self.dataset, sanitise_table(name))

    def for_topic(self, topic: str) -> TopicSettings:
        """The settings where the topic's name stands in names' templates."""
        table, dataset = with_topic(self.table, topic), with_topic(self.dataset, topic)
        if (table, dataset) == (self.table, self.dataset):
            return self
        return dataclasses.replace(self, table=table, dataset=dataset)

    @property
    def template(self) -> Template:
        """Dataset and table as one template, for what it asks of records."""
        return Template((*self.dataset_template.parts, *self.table_template.parts))

    @property
    def dataset_template(self) -> Template:
        """The dataset in parts."""
        return parse_template("dataset", self.dataset)

    @property
    def table_template(self) -> Template:
        """The table in parts."""
        return parse_template("table", self.table)

    @property
    def by_record(self) -> bool:
        """Whether each record says its table, so that tables cannot be known beforehand."""
        return bool(self.route_function) or is_template(self.dataset) or is_template(self.table)

    @property
    def route_function(self) -> str:
        """The entry point that says each record's table, "" for none."""
        return self.route.removeprefix(PYTHON) if self.route.startswith(PYTHON) else ""

    @property
    def known_tables(self) -> tuple[str, ...]:
        """The patterns of ``tables``."""
        return tuple(filter(None, self.tables.split(",")))

    def target(self, topic: str) -> str:
        """Where rows go, for people: a table, or what tables are called."""
        if self.route == "record_name":
            return f"{self.dataset}.<record name>"
        if self.route_function:
            return f"{self.dataset}.<{self.route}>"
        return f"{self.dataset}.{self.table or topic}" if self.by_record else str(self.table_for(topic))

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
    def blocking_checks(self) -> frozenset[str]:
        """The checks of ``blocking``, `none` for none. Raises ConfigurationError for one that cannot block."""
        names = frozenset(filter(None, self.blocking.split(","))) - {"none"}
        if unknown := sorted(names - set(BLOCKABLE)):
            raise ConfigurationError(
                f"blocking={self.blocking}: {unknown[0]} cannot block a load",
                next_step=f"none, or {', '.join(BLOCKABLE)}",
            )
        return names

    @property
    def error_table(self) -> TableReference:
        """Where bad records go."""
        return TableReference(self.error_dataset or self.dataset, ERROR_TABLE)


_COUNTS: Final = (
    "min_records", "min_bytes", "max_wait_seconds", "max_records", "max_bytes", "max_seconds",
    "window_seconds", "window_records", "window_bytes",
    "partition_expiry_days", "max_lag_records", "max_lag_seconds", "max_age_seconds", "max_error_share",
    "complete_after_seconds",
)  # fmt: skip
_PRIORITIES: Final[Mapping[str, int]] = {"high": 8, "normal": 4, "low": 1}
_MAX_WEIGHT: Final = 100
#: https://cloud.google.com/bigquery/docs/clustered-tables#limitations
_MAX_CLUSTERING: Final = 4
_WILDCARDS: Final = "*?["
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
#: What an option may be, where not every value of its type will do.
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "format": ("avro", "json", "json_columns", "json_schema", "protobuf"),
    "unknown_table": ("error_table", "create"),
    "errors": ("fail", "skip", "error_table"),
    "tombstones": ("skip", "error_table", "row"),
    "start": ("earliest", "latest"),
    "on_retention_loss": ("stop", "record"),
    "codec": ("snappy", "deflate", "null"),
    "restart": ("auto", "manual"),
    "on_incompatible": (PARK, NEW_TABLE_VERSION, VARIANT_COLUMN),
    "pii_errors": ("withhold", "seal", "drop"),
    "pii_others": ("stop", "drop", "keep"),
}


@dataclass(frozen=True)
class SourceEntry:
    """One line of the source list."""

    pattern: str
    settings: TopicSettings

    def matches(self, topic: str) -> bool:
        """Whether the line speaks of a topic."""
        if topic == self.pattern:
            return True
        return self.is_pattern and fnmatch.fnmatchcase(topic, self.pattern)

    @property
    def is_pattern(self) -> bool:
        """Whether the line may speak of several topics."""
        return any(c in self.pattern for c in _WILDCARDS)


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
        topic: next((e.settings.for_topic(topic) for e in entries if e.matches(topic)), None)
        for topic in sorted(topics)
    }
    return {topic: settings for topic, settings in chosen.items() if settings is not None}


def _pattern(word: str, where: str) -> str:
    if not any(c in word for c in _WILDCARDS):
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
    if key in CHOICES and value not in CHOICES[key]:
        raise ConfigurationError(f"{where}: {key}={value}", next_step=f"one of {', '.join(CHOICES[key])}")
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
