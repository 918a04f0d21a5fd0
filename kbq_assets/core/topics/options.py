"""The options of a topic, by part. Each is declared once, here or in a module of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.core.topics.business_time import MOST_DAYS_AHEAD, BusinessTime, TimeBounds
from kbq_assets.core.topics.declaration import NO_PLACE, option
from kbq_assets.core.topics.error_tables import ERROR_TABLE, check_error_table
from kbq_assets.core.topics.option_types import (
    BACKUP,
    BUSINESS_TIME,
    DAY,
    DECISIONS,
    FLAG,
    PRIORITIES,
    PRIORITY,
    SCHEMA,
    SHARE,
    TEXT,
    choice,
    whole,
)
from kbq_assets.core.topics.personal import Decision

#: Treatments of nulls in arrays.
KEEP: Final = "keep"
BAD: Final = "bad"


@dataclass(frozen=True)
class OwnershipOptions:
    """Who is responsible for a topic, and who pays."""

    owner: str = option("", TEXT, "label `owner` of the topic's tables and load jobs", place="ownership.team")
    cost_center: str = option("", TEXT, "their label `cost_center`", place="ownership.cost_center")
    errors_table: str = option(
        ERROR_TABLE,
        TEXT,
        "table of bad records: `kbq_errors`, shared by the topics of a dataset, or `kbq_errors__<name>` for one "
        "topic or owner",
        place="destination.errors_table",
    )

    def __post_init__(self) -> None:
        check_error_table(self.errors_table)


@dataclass(frozen=True)
class RecordOptions:
    """How records are read, and what happens to bad ones."""

    format: str = option(
        "avro",
        choice("avro", "json", "json_columns", "json_schema", "protobuf", "debezium"),
        "`avro`: Confluent's prefix and Avro; `json`: any JSON value, as the column `payload` (a value with a number "
        "too large for a double, such as `1e400`, is a bad record, `OUT_OF_RANGE`); `json_columns`: [fields as "
        "columns](formats.md#json-columns); `json_schema`: the same, with Confluent's prefix and a JSON Schema; "
        "[`protobuf`](formats.md#protobuf); [`debezium`](change-data.md): change events in Avro or JSON, without "
        "their envelope",
        place=NO_PLACE,
    )
    framing: str = option(
        "prefix",
        choice("prefix", "header", "single_object", "none"),
        "[how a record refers to its schema](formats.md#schemas-of-records): `prefix`: Confluent's prefix; `header`: "
        "Confluent's record header `__value_schema_id`; `single_object`: Avro's fingerprint; `none`: not at all, "
        "`value_schema` sets it",
    )
    value_schema: str = option(
        "",
        TEXT,
        "for `framing=none`, the id of the schema; for `framing=single_object`, the subject that has the schemas of "
        "all fingerprints, by default `<topic>-value`",
    )
    validate: bool = option(
        "false",
        FLAG,
        "[validate](formats.md#validation) JSON values against the registry's or the declared JSON Schema; a value "
        "that violates it is a bad record (`VIOLATES_SCHEMA`)",
    )
    event_date: BusinessTime | None = option(
        "",
        BUSINESS_TIME,
        "source of the [business time](catalog.md#business-time): a field, such as `a.b` in a record; the first "
        "existing field of `a|b|c`; or `auto`; each may be followed by a format such as `:epoch_s`",
        place="partition_time",
        shown_default="the Kafka time",
    )
    event_date_from: int = option(
        "2000-01-01",
        DAY,
        "earliest valid business time; a row with an earlier one gets its Kafka time, and counts as a row without a "
        "business time; `0001-01-01`: all are valid",
    )
    event_date_days_ahead: int = option(
        "2",
        whole(),
        "the same for a business time more than this many days after the day of its Kafka time; `3652059`: all are "
        "valid",
    )
    headers: bool = option("false", FLAG, "add `_kafka_headers` (repeated key and value)")
    errors: str = option(
        "error_table",
        choice("fail", "skip", "error_table"),
        "bad records: `error_table`, `skip` (counted), `fail` (the partition stops)",
    )
    tombstones: str = option(
        "error_table",
        choice("skip", "error_table", "row"),
        "null values: `error_table`, `skip`, or `row`: a row in `table` with only metadata and key, for which the "
        "table's REQUIRED columns are relaxed",
    )
    error_share: float = option(
        "0.2", SHARE, "the share of bad records in a window above which the partition stops"
    )
    error_share_records: int = option(
        "1000", whole(), "windows with fewer records are exempt from `error_share`"
    )
    max_record_bytes: int = option("10485760", whole(), "larger records are bad records")
    null_items: str = option(
        KEEP,
        choice(KEEP, BAD),
        "a null in an array of an Avro record: `keep` it, or treat the record as `bad` (`NULL_ITEM`), because "
        "BigQuery would refuse the whole file",
        shown_default="`bad` with BigQuery among the warehouses, else `keep`",
    )
    declared: Any = option(
        "",
        SCHEMA,
        "a JSON Schema for `json` and `json_columns`; the catalog reads it from "
        "[`schemas/value.json`](catalog.md#an-entry)",
        place=NO_PLACE,
    )

    @property
    def event_bounds(self) -> TimeBounds:
        """The range of valid business times."""
        return TimeBounds(self.event_date_from, min(self.event_date_days_ahead, MOST_DAYS_AHEAD))

    @property
    def is_json(self) -> bool:
        return self.format.startswith("json")


@dataclass(frozen=True)
class ExtractionOptions:
    """How the topic is read. A limit of 0 means no limit, or for windows the environment's limit."""

    backup: str = option(
        "false",
        BACKUP,
        "`true`: also keep a [verbatim copy](backup.md) of every record; `only`: keep the copy, but load no tables",
        shown_default="`KBQ_BACKUP`",
    )
    start: str = option(
        "earliest",
        choice("earliest", "latest"),
        "where a new topic starts: `earliest` or `latest`",
    )
    on_retention_loss: str = option(
        "stop",
        choice("stop", "record"),
        "positions that were deleted unread: `stop` the partition, or `record` them as lost and continue",
    )
    codec: str = option(
        "snappy",
        choice("snappy", "deflate", "null"),
        "compression of staged files: `snappy`, `deflate` (smaller, slower), or `null` (none)",
    )
    priority: int = option(
        "normal",
        PRIORITY,
        "the topic's weight when turns and limits are shared: `high` (8), `normal` (4), `low` (1), or a number from "
        "1 to 100",
    )
    restart: str = option(
        "auto",
        choice("auto", "manual"),
        "`auto`: [retry](operations.md#what-kbq-retries-on-its-own) stops that may be temporary; `manual`: a stopped "
        "partition or parked table waits for `kbq resume`",
    )
    advisory_group: str = option(
        "",
        TEXT,
        "a consumer group that gets the [published positions](tuning.md#lag-in-kafkas-own-tools) after each run, for "
        "Kafka's own tools; `none`: no group; by default `KBQ_ADVISORY_GROUP`",
    )
    max_records: int = option(
        "0", whole(), "most records of the topic that one run reads, counted in positions; 0: no limit"
    )
    max_bytes: int = option(
        "0",
        whole(),
        "the same in bytes of values, estimated from the average record so far; at least `max_record_bytes`",
    )
    max_seconds: int = option(
        "0",
        whole(),
        "after this many task seconds in one run, no more tasks start for the topic, and running ones stop reading; "
        "[shared](tuning.md#limits) by its partitions",
    )
    window_seconds: int = option(
        "0",
        whole(),
        "a [window](tuning.md#windows-and-files) of the topic ends after this many seconds; 0: after "
        "`KBQ_WINDOW_SECONDS`",
    )
    window_records: int = option("0", whole(), "or after this many records; 0: `KBQ_WINDOW_RECORDS`")
    window_bytes: int = option("0", whole(), "or after this many staged bytes; 0: `KBQ_WINDOW_BYTES`")

    @property
    def priority_name(self) -> str:
        return next(
            (name for name, weight in PRIORITIES.items() if weight == self.priority), str(self.priority)
        )


@dataclass(frozen=True)
class PrivacyOptions:
    """How personal data is treated (core/topics/personal.py)."""

    decisions: tuple[Decision, ...] = option(
        "",
        DECISIONS,
        "what happens to [personal data](catalog.md#personal-data), by field: `keep`, `drop`, `null`, `pseudonym`, "
        "`truncate:3`, `generalise:year`; `email:pseudonym,born:generalise:year,name:drop`",
        name="pii",
        place="pii.fields",
    )
    error_rows: str = option(
        "withhold",
        choice("withhold", "seal", "drop"),
        "error rows of a topic with `pii`, or of a schema with undecided tags: `withhold` value, key and headers, "
        "[`seal`](bad-records.md#sealed-error-rows) them with `KBQ_PII_SEAL_KEY`, or `drop` the row (counted as "
        "skipped)",
        name="pii_errors",
        place="pii.error_rows",
    )
    others: str = option(
        "stop",
        choice("stop", "drop", "keep"),
        "fields of JSON documents that have no decision and are in no schema: `stop` the partition, `drop` or `keep` "
        "them",
        name="pii_others",
        place="pii.others",
    )

    def action(self, path: str) -> str:
        """The decision about a field, `_key` or `_headers`; "" for none."""
        return next((each.action for each in self.decisions if each.path == path), "")
