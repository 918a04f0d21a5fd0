"""Options of a topic's tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.partitions import PARTITION_UNITS
from kbq_assets.core.protocol.names import TableReference, sanitise_table
from kbq_assets.core.topics.column_names import AS_WRITTEN, SNAKE_CASE
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.destinations import Template
from kbq_assets.core.topics.error_tables import check_table_of_rows
from kbq_assets.core.topics.evolution import NEW_TABLE_VERSION, PARK, VARIANT_COLUMN
from kbq_assets.core.topics.option_types import (
    CLUSTERING,
    FLAG,
    ROUTE,
    TABLES,
    TEMPLATE,
    TEXT,
    WAREHOUSES,
    choice,
    whole,
)


@dataclass(frozen=True)
class DestinationOptions:
    """The tables that get the rows, and how they are created. Records fill the templates ``dataset`` and ``table``."""

    dataset: Template = option(
        "kafka",
        TEMPLATE,
        "dataset of the tables, or a [template](catalog.md#destinations); bad records go to its `errors_table`",
        shown_default="`KBQ_DATASET`",
    )
    table: Template = option(
        "",
        TEMPLATE,
        "table, or a [template](catalog.md#destinations) such as `orders_{header.country}`; characters other than "
        "letters, digits and `_` become `_`",
        shown_default="the topic's name",
    )
    route: str = option(
        "topic",
        ROUTE,
        "`topic`: all records go to `table`; `record_name`: one table per Avro record name, also if a schema is a "
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
        "records whose table is not in `tables`: `error_table`, or `create` the table",
        place="destination.unknown",
    )
    max_tables: int = option(
        "200",
        whole(1),
        "most tables that the records of one window may choose; records for more tables become error rows",
    )
    error_dataset: str = option(
        "", TEXT, "dataset of `errors_table`, if `dataset` is a template", shown_default="`dataset`"
    )
    cluster_by: tuple[str, ...] = option(
        "",
        CLUSTERING,
        "clustering columns of the topic's tables, `a,b`, at most 4; columns that a table lacks, or that cannot "
        "cluster, are ignored",
    )
    partitioning: str = option(
        "auto",
        choice("auto", *PARTITION_UNITS),
        "partition new tables by `hour`, `day` or `month` of the business time; `auto`: by day in BigQuery, by day "
        "and hour in a lake; DuckDB has no partitions",
    )
    require_partition_filter: bool = option("false", FLAG, "queries must filter by date")
    partition_expiry_days: int = option(
        "0", whole(), "the warehouse drops partitions older than this; 0: never"
    )
    schema_ids: bool = option(
        "false", FLAG, "add `_kbq_schema_id`, the id of the record's schema; a lake's tables always have it"
    )
    on_incompatible: str = option(
        PARK,
        choice(PARK, NEW_TABLE_VERSION, VARIANT_COLUMN),
        "a schema that [conflicts with its table](catalog.md#schema-evolution): `park` the table, add a "
        "`variant_column` (`amount__string`), or create a `new_table_version` (`orders__v2`)",
    )

    column_names: str = option(
        AS_WRITTEN,
        choice(AS_WRITTEN, SNAKE_CASE),
        "`schema`: columns are named like the schema's fields; `snake_case`: `orderId` becomes "
        "[`order_id`](formats.md#names-of-columns), also in nested records",
    )
    warehouses: tuple[str, ...] = option(
        "",
        WAREHOUSES,
        "names from `KBQ_WAREHOUSE` of the [warehouses](warehouses.md) that get the topic's rows, from its next "
        "window on: `bq,lake`",
        shown_default="the first",
    )

    def __post_init__(self) -> None:
        check_table_of_rows(self.table.text)
        of_record = [name for name in self.dataset.inputs if not name.startswith("topic")]
        if of_record and not self.error_dataset:
            raise ConfigurationError(
                f"dataset={self.dataset}: each record chooses its own dataset, but bad records have none",
                next_step="set error_dataset= to the dataset of errors_table",
            )
        if self.route != "topic" and any(not name.startswith("topic") for name in self.template.inputs):
            raise ConfigurationError(
                f"route={self.route} and a template both choose the table",
                next_step="table={record}, or route=topic",
            )

    @property
    def template(self) -> Template:
        """Dataset and table as one template, with the inputs of both."""
        return Template(f"{self.dataset}.{self.table}", (*self.dataset.parts, *self.table.parts))

    @property
    def partition_unit(self) -> str:
        """The unit of time by which new tables are partitioned, "" for the warehouse's default."""
        return "" if self.partitioning == "auto" else self.partitioning

    @property
    def by_record(self) -> bool:
        """Whether each record chooses its table, so the tables are not known beforehand."""
        return self.dataset.is_template or self.table.is_template

    def table_for(self, topic: str, record_name: str = "") -> TableReference:
        """The table of a record, by topic or by the Avro record's name without namespace. Raises ConfigurationError if
        each record chooses its own (`by_record`)."""
        if self.by_record:
            raise ConfigurationError(
                f"{topic} has no single table", next_step="its records choose their tables"
            )
        by_name = self.route == "record_name" and record_name
        name = record_name.rsplit(".", 1)[-1] if by_name else self.table.text or topic
        return TableReference(self.dataset.text, sanitise_table(name))

    def target(self, topic: str) -> str:
        """The destination of rows, to display: a table, or a pattern of table names."""
        if self.route == "record_name":
            return f"{self.dataset}.<record name>"
        return f"{self.dataset}.{self.table.text or topic}" if self.by_record else str(self.table_for(topic))

    def for_topic(self, topic: str) -> DestinationOptions:
        """The options with the topic's placeholders filled into the templates."""
        dataset, table = self.dataset.for_topic(topic), self.table.for_topic(topic)
        unchanged = dataset is self.dataset and table is self.table
        return self if unchanged else replace(self, dataset=dataset, table=table)
