"""The options of a topic, in parts: each is declared once, here or in a module of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.partitions import PARTITION_UNITS
from kbq_assets.core.protocol.names import TableReference, sanitise_table
from kbq_assets.core.topics.business_time import MOST_DAYS_AHEAD, BusinessTime, TimeBounds
from kbq_assets.core.topics.column_names import AS_WRITTEN, SNAKE_CASE
from kbq_assets.core.topics.declaration import NO_PLACE, option
from kbq_assets.core.topics.destinations import Template
from kbq_assets.core.topics.error_tables import ERROR_TABLE, check_error_table, check_table_of_rows
from kbq_assets.core.topics.evolution import NEW_TABLE_VERSION, PARK, VARIANT_COLUMN
from kbq_assets.core.topics.option_types import (
    BACKUP,
    BUSINESS_TIME,
    CLUSTERING,
    DAY,
    DECISIONS,
    FLAG,
    PRIORITIES,
    PRIORITY,
    ROUTE,
    SCHEMA,
    SHARE,
    TABLES,
    TEMPLATE,
    TEXT,
    WAREHOUSES,
    choice,
    whole,
)
from kbq_assets.core.topics.personal import Decision

#: What becomes of nulls in arrays.
KEEP: Final = "keep"
BAD: Final = "bad"


@dataclass(frozen=True)
class OwnershipOptions:
    """Who answers for a topic, and who pays."""

    owner: str = option("", TEXT, "label `owner` of the topic's tables and load jobs", place="ownership.team")
    cost_center: str = option("", TEXT, "their label `cost_center`", place="ownership.cost_center")
    errors_table: str = option(
        ERROR_TABLE,
        TEXT,
        "table of bad records: `kbq_errors`, which topics of a dataset share, or `kbq_errors__<name>` for one topic or "
        "owner",
        place="destination.errors_table",
    )

    def __post_init__(self) -> None:
        check_error_table(self.errors_table)


@dataclass(frozen=True)
class DestinationOptions:
    """Where rows go, and how their tables are created. Records fill the templates of ``dataset`` and ``table``."""

    dataset: Template = option(
        "kafka",
        TEMPLATE,
        "dataset of the tables, or a [template](catalog.md#destinations); bad records go to its `errors_table`",
        shown_default="`KBQ_DATASET`",
    )
    table: Template = option(
        "",
        TEMPLATE,
        "table, or a [template](catalog.md#destinations) such as `orders_{header.country}`; every character but "
        "letters, digits and `_` becomes `_`",
        shown_default="the topic's name",
    )
    route: str = option(
        "topic",
        ROUTE,
        "`topic`: all records to `table`; `record_name`: a table per Avro record name, also where a schema is a "
        "union of records",
    )
    tables: tuple[str, ...] = option(
        "",
        TABLES,
        "patterns of the tables that records may choose, `a,b*` or `dataset.a`",
        shown_default="any",
    )
    unknown_table: str = option(
        "error_table",
        choice("error_table", "create"),
        "records that choose none of `tables`: `error_table`, or `create` the table",
        place="destination.unknown",
    )
    max_tables: int = option(
        "200",
        whole(1),
        "most tables of a window that records may choose; further records become error rows",
    )
    error_dataset: str = option(
        "", TEXT, "dataset of `errors_table`, if `dataset` is a template", shown_default="`dataset`"
    )
    cluster_by: tuple[str, ...] = option(
        "",
        CLUSTERING,
        "columns, `a,b`, at most 4, that the topic's tables are clustered by; columns that a table lacks, or that "
        "cannot cluster, are left out",
    )
    partitioning: str = option(
        "auto",
        choice("auto", *PARTITION_UNITS),
        "new tables are partitioned by `hour`, `day` or `month` of the business time; `auto`: by day in BigQuery, by "
        "day and hour in a lake. DuckDB has no partitions",
    )
    require_partition_filter: bool = option("false", FLAG, "queries must name dates")
    partition_expiry_days: int = option(
        "0", whole(), "the warehouse drops partitions older than this; 0 keeps them"
    )
    schema_ids: bool = option(
        "false", FLAG, "add `_kbq_schema_id`, the id of the record's schema; a lake's tables always have it"
    )
    on_incompatible: str = option(
        PARK,
        choice(PARK, NEW_TABLE_VERSION, VARIANT_COLUMN),
        "a schema that [contradicts its table](catalog.md#schema-evolution): `park` it, `variant_column` (more "
        "columns, `amount__string`), `new_table_version` (another table, `orders__v2`)",
    )

    column_names: str = option(
        AS_WRITTEN,
        choice(AS_WRITTEN, SNAKE_CASE),
        "`schema`: columns have the names of the schema's fields; `snake_case`: `orderId` becomes "
        "[`order_id`](formats.md#names-of-columns), in nested records too",
    )
    warehouses: tuple[str, ...] = option(
        "",
        WAREHOUSES,
        "[warehouses](warehouses.md) that get the topic's rows from its next window on, by their names in "
        "`KBQ_WAREHOUSE`: `bq,lake`",
        shown_default="the first",
    )

    def __post_init__(self) -> None:
        check_table_of_rows(self.table.text)
        of_record = [name for name in self.dataset.inputs if not name.startswith("topic")]
        if of_record and not self.error_dataset:
            raise ConfigurationError(
                f"dataset={self.dataset}: each record names its own, and bad records have none",
                next_step="error_dataset= names the dataset of errors_table",
            )
        if self.route != "topic" and any(not name.startswith("topic") for name in self.template.inputs):
            raise ConfigurationError(
                f"route={self.route} decides, and so does a template",
                next_step="table={record}, or route=topic",
            )

    @property
    def template(self) -> Template:
        """Dataset and table as one template: its inputs are what both need of a record."""
        return Template(f"{self.dataset}.{self.table}", (*self.dataset.parts, *self.table.parts))

    @property
    def partition_unit(self) -> str:
        """The unit of time that new tables are partitioned by, "" for the warehouse's own."""
        return "" if self.partitioning == "auto" else self.partitioning

    @property
    def by_record(self) -> bool:
        """Whether each record names its table, so that tables cannot be known beforehand."""
        return self.dataset.is_template or self.table.is_template

    def table_for(self, topic: str, record_name: str = "") -> TableReference:
        """The table of a record: by topic, or by the Avro record's name without namespace. Raises ConfigurationError
        where each record names its own (`by_record`)."""
        if self.by_record:
            raise ConfigurationError(f"{topic} has no one table", next_step="its records choose their tables")
        by_name = self.route == "record_name" and record_name
        name = record_name.rsplit(".", 1)[-1] if by_name else self.table.text or topic
        return TableReference(self.dataset.text, sanitise_table(name))

    def target(self, topic: str) -> str:
        """Where rows go, for people: a table, or a pattern of tables' names."""
        if self.route == "record_name":
            return f"{self.dataset}.<record name>"
        return f"{self.dataset}.{self.table.text or topic}" if self.by_record else str(self.table_for(topic))

    def for_topic(self, topic: str) -> DestinationOptions:
        """The options with the topic's name filled into the templates."""
        dataset, table = self.dataset.for_topic(topic), self.table.for_topic(topic)
        unchanged = dataset is self.dataset and table is self.table
        return self if unchanged else replace(self, dataset=dataset, table=table)


@dataclass(frozen=True)
class RecordOptions:
    """How single records are read, and what happens to bad ones."""

    format: str = option(
        "avro",
        choice("avro", "json", "json_columns", "json_schema", "protobuf", "debezium"),
        "`avro`: Confluent's prefix and Avro; `json`: any JSON value, as the column `payload`; one with a number that "
        "no double holds, such as `1e400`, is a bad record (`OUT_OF_RANGE`); `json_columns`: "
        "[fields as columns](formats.md#json-columns); `json_schema`: the same, behind Confluent's prefix and a JSON "
        "Schema; [`protobuf`](formats.md#protobuf); [`debezium`](change-data.md): change events in Avro or JSON, "
        "without their envelope",
        place=NO_PLACE,
    )
    framing: str = option(
        "prefix",
        choice("prefix", "header", "single_object", "none"),
        "[how a record names its schema](formats.md#schemas-of-records): `prefix`: Confluent's prefix; `header`: "
        "Confluent's record header `__value_schema_id`; `single_object`: Avro's fingerprint; `none`: `value_schema` "
        "names it",
    )
    value_schema: str = option(
        "",
        TEXT,
        "the schema of `framing=none`: its id; for `framing=single_object` the subject with the schemas of all "
        "fingerprints, `<topic>-value` by default",
    )
    validate: bool = option(
        "false",
        FLAG,
        "[validate](formats.md#validation) JSON values by their JSON Schema: the registry's, or the declared one; a "
        "value that violates it is a bad record (`VIOLATES_SCHEMA`)",
    )
    event_date: BusinessTime | None = option(
        "",
        BUSINESS_TIME,
        "where the [business time](catalog.md#business-time) comes from: a field, `a.b` through records; `auto`; the "
        "first field of `a|b|c` that exists; followed by `:epoch_s` or another format",
        place="partition_time",
        shown_default="the Kafka time",
    )
    event_date_from: int = option(
        "2000-01-01",
        DAY,
        "an earlier business time does not count: the row gets its Kafka time, and counts as one without a business "
        "time; `0001-01-01`: all count",
    )
    event_date_days_ahead: int = option(
        "2",
        whole(),
        "neither does one more days than this after the day of its Kafka time; `3652059`: all count",
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
        "null values: `error_table`, `skip`, or `row`: a row of `table` with metadata and key alone; the table's "
        "REQUIRED columns are relaxed for it",
    )
    error_share: float = option(
        "0.2", SHARE, "the share of bad records in a window above which the partition stops"
    )
    error_share_records: int = option(
        "1000", whole(), "the share does not count in windows with fewer records"
    )
    max_record_bytes: int = option("10485760", whole(), "larger records are bad records")
    null_items: str = option(
        KEEP,
        choice(KEEP, BAD),
        "a null in an array of an Avro record: `keep` it, or the record is `bad` (`NULL_ITEM`): BigQuery refuses the "
        "whole file for it",
        shown_default="`bad` with BigQuery among the warehouses, else `keep`",
    )
    declared: Any = option(
        "",
        SCHEMA,
        "a JSON Schema of `json` and `json_columns`; the catalog takes it from "
        "[`schemas/value.json`](catalog.md#an-entry)",
        place=NO_PLACE,
    )

    @property
    def event_bounds(self) -> TimeBounds:
        """The business times that count."""
        return TimeBounds(self.event_date_from, min(self.event_date_days_ahead, MOST_DAYS_AHEAD))

    @property
    def is_json(self) -> bool:
        return self.format.startswith("json")


@dataclass(frozen=True)
class ExtractionOptions:
    """How the topic is read. A limit of 0 means no limit; for windows, the environment's."""

    backup: str = option(
        "false",
        BACKUP,
        "`true`: also keep a [verbatim copy](backup.md) of every record; `only`: keep the copy, and no tables",
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
        "`stop`, or `record`: accept positions that were deleted unread, counted as lost",
    )
    codec: str = option(
        "snappy",
        choice("snappy", "deflate", "null"),
        "compression of staged files: `snappy`, `deflate` (smaller, slower), or `null` (none)",
    )
    priority: int = option(
        "normal",
        PRIORITY,
        "`high` (8), `normal` (4), `low` (1), or a number from 1 to 100: the topic's weight when turns and limits are "
        "shared",
    )
    restart: str = option(
        "auto",
        choice("auto", "manual"),
        "`auto`: a stop that may pass is [retried](operations.md#what-kbq-retries-on-its-own); `manual`: a stopped "
        "partition or parked table waits for `kbq resume`",
    )
    advisory_group: str = option(
        "",
        TEXT,
        "a consumer group that gets the [published positions](tuning.md#lag-in-kafkas-own-tools) after each run, "
        "for Kafka's own tools; by default `KBQ_ADVISORY_GROUP`; `none`: no group",
    )
    max_records: int = option(
        "0", whole(), "most records that one run reads of the topic, counted in positions; 0: no limit"
    )
    max_bytes: int = option(
        "0",
        whole(),
        "the same in bytes of values, by the average record so far; at least `max_record_bytes`",
    )
    max_seconds: int = option(
        "0",
        whole(),
        "after this many task seconds of one run no task starts for the topic, and running ones stop reading; "
        "[shared out](tuning.md#limits)",
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
    """The treatment of personal data (core/topics/personal.py)."""

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
        "fields of its JSON documents without a decision that no schema declares: `stop` the partition, `drop` or "
        "`keep` them",
        name="pii_others",
        place="pii.others",
    )

    def action(self, path: str) -> str:
        """The decision about a field, `_key` or `_headers`; "" for none."""
        return next((each.action for each in self.decisions if each.path == path), "")
