"""How KBQ's things are called and described in Dagster: keys, groups, kinds, owners.

Partition keys are stable things, never files: a topic, its partition and a table
(`nyc.flights.v1/0/nyc.flights`), or a table alone (`nyc.flights`). Subclass `Translator` to change names, and
hand it to `build_definitions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.names import TableReference, check_topic
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.core.settings import Settings
from kbq_assets.core.topics import SourceEntry
from kbq_assets.defs.links import staging_links, warehouse_links

#: Dagster reads `...` in a partition key as a range. A topic may contain it; '%' is in no topic name.
_RANGE_MARK: Final = "..."
_ESCAPED: Final = "..%2E"


@dataclass(frozen=True)
class StagedKey:
    """What one partition of `staged_files` stands for."""

    topic_partition: TopicPartition
    table: TableReference

    def format(self) -> str:
        """Example: ``nyc.flights.v1/0/nyc.flights``."""
        topic, partition = self.topic_partition
        while _RANGE_MARK in topic:
            topic = topic.replace(_RANGE_MARK, _ESCAPED)
        return f"{topic}/{partition}/{self.table}"

    @classmethod
    def parse(cls, key: str) -> StagedKey:
        """Parse a partition key. Raises InvalidName."""
        parts = key.split("/")
        if len(parts) != 3 or not parts[1].isdecimal():
            raise InvalidName(f"{key!r} is not a staged partition", next_step="topic/partition/dataset.table")
        topic = check_topic(parts[0].replace("%2E", "."))
        return cls(TopicPartition(topic, int(parts[1])), TableReference.parse(parts[2]))


@dataclass(frozen=True)
class Translator:
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
    def staged_partitions(self) -> dg.DynamicPartitionsDefinition:
        """A key per topic, partition and table."""
        return dg.DynamicPartitionsDefinition(name="staged_files")

    @property
    def table_partitions(self) -> dg.DynamicPartitionsDefinition:
        """A key per table."""
        return dg.DynamicPartitionsDefinition(name="warehouse_tables")

    def topic_key(self, pattern: str) -> dg.AssetKey:
        """The external asset of a line of the source list."""
        return dg.AssetKey(["kafka", re.sub(r"[^A-Za-z0-9._-]", "_", pattern)])

    def topic_specs(self, entries: Iterable[SourceEntry]) -> list[dg.AssetSpec]:
        """An external asset per line of the source list."""
        specs = {self.topic_key(entry.pattern): self._topic_spec(entry) for entry in entries}
        return list(specs.values())

    def _topic_spec(self, entry: SourceEntry) -> dg.AssetSpec:
        settings = entry.settings
        target = (
            f"`{settings.dataset}.<record name>`"
            if settings.route == "record_name"
            else f"`{settings.table_for(entry.pattern)}`"
        )
        return dg.AssetSpec(
            self.topic_key(entry.pattern),
            description=f"Kafka topic `{entry.pattern}` ({settings.format}), extracted to {target}.",
            group_name="kafka",
            kinds={"kafka", settings.format},
            owners=list(self.owners),
            metadata={
                "topic": entry.pattern,
                "format": settings.format,
                "route": settings.route,
                "errors": settings.errors,
                "tombstones": settings.tombstones,
            },
        )

    def staged_spec(self, settings: Settings, topics: Sequence[dg.AssetSpec]) -> dg.AssetSpec:
        """The asset of staged Avro files, downstream of the topics."""
        return dg.AssetSpec(
            self.staged_files,
            deps=[spec.key for spec in topics],
            description=(
                "Records of a topic-partition, with `_kafka_*` columns, as committed Avro files per table. "
                "Materialising partitions brings their topics up to date; whatever the selection, each "
                "record is read once, and what is up to date already is left alone."
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
        scheme = settings.warehouse_url.partition(":")[0]
        return dg.AssetSpec(
            self.warehouse_tables,
            # Without a mapping Dagster takes keys of the same name for each other, finds none, and refuses backfills.
            deps=[dg.AssetDep(self.staged_files, partition_mapping=dg.AllPartitionMapping())],
            description=(
                "Tables of the warehouse, one partition each. Materialising partitions loads what is "
                "committed and not yet loaded, every row exactly once."
            ),
            group_name="warehouse",
            kinds={scheme},
            owners=list(self.owners),
            metadata={"warehouse": settings.warehouse_url, **warehouse_links(settings)},
            partitions_def=self.table_partitions,
            skippable=True,
        )
