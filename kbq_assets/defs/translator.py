"""Names and descriptions of KBQ's assets in Dagster: keys, groups, kinds, owners.

Partition keys are stable, never files: a topic, its partition and a table (`nyc.flights.v1/0/nyc.flights`; by
KBQ_PARTITION_KEYS a topic and a table, `nyc.flights.v1/nyc.flights`), or a table alone (`nyc.flights`). Subclass
`AssetTranslator` to change names, and pass it to `build_definitions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg

from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.core.protocol.names import TableReference, check_topic
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.options import ERROR_TABLE
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.defs.links import staging_links, warehouse_links
from kbq_assets.wire.files.error_rows import error_schema_json

#: Dagster reads `...` in a partition key as a range. A topic may contain it; '%' is in no topic name.
_RANGE_MARK: Final = "..."
_ESCAPED: Final = "..%2E"


#: Kafka's numbers of partitions have 31 bits.
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
#: Partition number of a key that stands for the whole topic.
_WHOLE_TOPIC: Final = -1
#: First part of topics' asset keys.
_TOPICS: Final = "kafka"


@dataclass(frozen=True, order=True)
class StagedKey:
    """A partition of `staged_files`. Kafka partition -1 stands for the whole topic."""

    topic_partition: TopicPartition
    table: TableReference

    @property
    def is_of_topic(self) -> bool:
        """Whether the key stands for all Kafka partitions of the topic."""
        return self.topic_partition.partition == _WHOLE_TOPIC

    @property
    def of_topic(self) -> StagedKey:
        """The coarser key of topic and table."""
        return StagedKey(TopicPartition(self.topic_partition.topic, _WHOLE_TOPIC), self.table)

    def format(self) -> str:
        """Example: ``nyc.flights.v1/0/nyc.flights``; of a whole topic: ``nyc.flights.v1/nyc.flights``."""
        topic, partition = self.topic_partition
        while _RANGE_MARK in topic:
            topic = topic.replace(_RANGE_MARK, _ESCAPED)
        number = "" if self.is_of_topic else f"/{partition}"
        return f"{topic}{number}/{self.table}"

    @classmethod
    def parse(cls, key: str) -> StagedKey:
        """Parse a partition key of either form. Raises InvalidName."""
        parts = key.split("/")
        if len(parts) not in (2, 3) or (len(parts) == 3 and not _NUMBER.fullmatch(parts[1])):
            raise InvalidName(f"{key!r} is not a staged partition", next_step="topic/partition/dataset.table")
        topic = check_topic(parts[0].replace("%2E", "."))
        partition = int(parts[1]) if len(parts) == 3 else _WHOLE_TOPIC
        return cls(TopicPartition(topic, partition), TableReference.parse(parts[-1]))


@dataclass(frozen=True)
class AssetTranslator:
    """Names and descriptions of the assets."""

    owners: tuple[str, ...] = ("team:data-platform",)

    @property
    def staged_files(self) -> dg.AssetKey:
        """The asset of staged Avro files."""
        return dg.AssetKey("staged_files")

    @property
    def warehouse_tables(self) -> dg.AssetKey:
        """The asset of warehouse tables."""
        return dg.AssetKey("warehouse_tables")

    @property
    def error_tables(self) -> dg.AssetKey:
        """The asset of tables of bad records."""
        return dg.AssetKey("error_tables")

    def asset_of(self, table: TableReference) -> dg.AssetKey:
        """The asset that a table is a partition of."""
        return self.error_tables if table.table == ERROR_TABLE else self.warehouse_tables

    def dataset_key(self, table: TableReference) -> dg.AssetKey:
        """Key of a table's own page: `sales/orders`. A dataset named kafka gets a prefix, as topics have that name."""
        above = ["warehouse"] if table.dataset == _TOPICS else []
        return dg.AssetKey([*above, table.dataset, table.table])

    @property
    def staged_partitions(self) -> dg.DynamicPartitionsDefinition:
        """A key per topic, partition and table, or per topic and table."""
        return dg.DynamicPartitionsDefinition(name="staged_files")

    @property
    def table_partitions(self) -> dg.DynamicPartitionsDefinition:
        """A key per table."""
        return dg.DynamicPartitionsDefinition(name="warehouse_tables")

    @property
    def error_partitions(self) -> dg.DynamicPartitionsDefinition:
        """A key per table of bad records."""
        return dg.DynamicPartitionsDefinition(name="error_tables")

    def partitions_of(self, asset: dg.AssetKey) -> dg.DynamicPartitionsDefinition:
        """The keys of an asset."""
        definitions = {
            self.staged_files: self.staged_partitions,
            self.warehouse_tables: self.table_partitions,
            self.error_tables: self.error_partitions,
        }
        return definitions[asset]

    def topic_key(self, pattern: str) -> dg.AssetKey:
        """The external asset of a line of the source list: `kafka/audit-any` of `audit-*`."""
        return dg.AssetKey([_TOPICS, re.sub(r"[^A-Za-z0-9._-]", "_", pattern.replace("*", "any"))])

    def topic_assets(self, entries: Iterable[SourceEntry], topics: Iterable[str]) -> dict[str, dg.AssetKey]:
        """The external asset of each topic: that of the first line that matches it."""
        entries = tuple(entries)
        found = {topic: next((e for e in entries if e.matches(topic)), None) for topic in topics}
        return {topic: self.topic_key(entry.pattern) for topic, entry in found.items() if entry is not None}

    def topic_specs(self, entries: Iterable[SourceEntry]) -> list[dg.AssetSpec]:
        """An external asset per line of the source list."""
        specs = {self.topic_key(entry.pattern): self._topic_spec(entry) for entry in entries}
        return list(specs.values())

    def _topic_spec(self, entry: SourceEntry) -> dg.AssetSpec:
        settings = entry.settings
        target = f"`{settings.destination.target(entry.pattern)}`"
        owner, cost_center = (
            dagster_owner(settings.destination.owner),
            tag_value(settings.destination.cost_center),
        )
        return dg.AssetSpec(
            self.topic_key(entry.pattern),
            description=f"Kafka topic `{entry.pattern}` ({settings.records.format}), extracted to {target}.",
            group_name="kafka",
            kinds={"kafka", settings.records.format},
            owners=[owner] if owner else list(self.owners),
            tags={"kbq/cost_center": cost_center} if cost_center else {},
            metadata={
                "topic": entry.pattern,
                "format": settings.records.format,
                "route": settings.destination.route,
                "errors": settings.records.errors,
                "tombstones": settings.records.tombstones,
                "priority": settings.extraction.priority_name,
            },
        )

    def staged_spec(self, settings: Settings, topics: Sequence[dg.AssetSpec]) -> dg.AssetSpec:
        """The asset of staged Avro files, downstream of the topics."""
        return dg.AssetSpec(
            self.staged_files,
            deps=[spec.key for spec in topics],
            description=(
                "Records of a topic-partition, with `_kafka_*` columns, as committed Avro files per table. "
                "Materializing partitions brings their topics up to date; whatever the selection, each "
                "record is read once, and nothing happens to topics that are up to date. `extraction_sensor` does so "
                "automatically; partitions appear with the first extraction (job `extract_and_load`)."
            ),
            group_name="staging",
            kinds={"kafka", "spark", "avro"},
            owners=list(self.owners),
            metadata={"staging": settings.staging_url, **staging_links(settings)},
            partitions_def=self.staged_partitions,
            skippable=True,
        )

    def tables_spec(self, settings: Settings) -> dg.AssetSpec:
        """The asset of warehouse tables, downstream of the staged files."""
        return self._warehouse_spec(
            settings,
            self.warehouse_tables,
            "Tables of the warehouse, one partition each. Materializing partitions loads the committed files "
            "that are not loaded yet, every row exactly once. `done_file_sensor` does so automatically; partitions "
            "appear with the first load (job `extract_and_load`).",
        )

    def errors_spec(self, settings: Settings) -> dg.AssetSpec:
        """The asset of tables of bad records, downstream of the staged files."""
        spec = self._warehouse_spec(
            settings,
            self.error_tables,
            f"Records that could not be staged, with the reason and their bytes: `{ERROR_TABLE}` of each dataset, one "
            "partition each. Loaded with the other tables; `kbq errors list` shows them.",
        )
        columns = column_schema(columns_of(error_schema_json()))
        return spec.merge_attributes(metadata={"dagster/column_schema": columns})

    def _warehouse_spec(self, settings: Settings, key: dg.AssetKey, description: str) -> dg.AssetSpec:
        return dg.AssetSpec(
            key,
            # Without a mapping Dagster matches keys by name, finds none, and refuses backfills.
            deps=[dg.AssetDep(self.staged_files, partition_mapping=dg.AllPartitionMapping())],
            description=description,
            group_name="warehouse",
            kinds={settings.warehouse_url.partition(":")[0]},
            owners=list(self.owners),
            metadata={"warehouse": settings.warehouse_url, **warehouse_links(settings)},
            partitions_def=self.partitions_of(key),
            skippable=True,
        )


def dagster_owner(owner: str) -> str:
    """An owner that Dagster accepts: unchanged if it does, else as a team; "" for an empty one.

    Dagster refuses some valid addresses (`ops@example.solutions`, `o'brien@example.com`), and with them the whole code
    location.
    """
    owner = " ".join(owner.split())
    team = owner.removeprefix("team:").strip()
    if not team or _is_owner(owner):
        return owner if team else ""
    return f"team:{team}"


def _is_owner(owner: str) -> bool:
    try:
        dg.AssetSpec("anything", owners=[owner])
    except dg.DagsterInvalidDefinitionError:
        return False
    return True


def tag_value(text: str) -> str:
    """Text as the value of a Dagster tag."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:63].strip("_.-")


def column_schema(columns: Iterable[Column], levels: Mapping[str, str] | None = None) -> dg.TableSchema:
    """A table's columns for Dagster; fields of records by their path. ``levels`` are levels of personal data."""
    return dg.TableSchema(columns=list(_flat(columns, "", levels or {})))


def _flat(columns: Iterable[Column], prefix: str, levels: Mapping[str, str]) -> Iterator[dg.TableColumn]:
    for column in columns:
        kind = f"ARRAY<{column.type}>" if column.mode == "REPEATED" else column.type
        nullable = dg.TableColumnConstraints(nullable=column.mode != "REQUIRED")
        path = prefix + column.name
        tags = {"kbq/pii": level} if (level := levels.get(path)) else {}
        yield dg.TableColumn(path, kind, column.description or None, nullable, tags)
        yield from _flat(column.fields, f"{path}.", levels)
