"""Names and descriptions of KBQ's assets in Dagster: keys, groups, kinds, owners.

A topic's staged files are an asset (`staged/nyc.flights.v1`), and so is a table (`nyc/flights`). Partition keys of
staged files are stable: a topic, a Kafka partition and a table (`nyc.flights.v1/0/nyc.flights`), not single files. To
change names, subclass `AssetTranslator` and pass an instance to `build_definitions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference, check_topic
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, select_entries
from kbq_assets.defs.links import staging_links, warehouse_links

#: Dagster reads `...` in a partition key as a range. A topic's name may contain it, but never '%'.
_RANGE_MARK: Final = "..."
_ESCAPED: Final = "..%2E"


#: Kafka's partition numbers have 31 bits.
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
#: First parts of the asset keys of topics and of their staged files.
_TOPICS: Final = "kafka"
_STAGED: Final = "staged"
#: First part of the asset keys of tables in warehouses after the first.
_WAREHOUSES: Final = "warehouses"
#: Beginnings of the descriptions of the pages for all topics and for all tables.
_ALL_TOPICS: Final = "All topics together: the checks over all of them, and the summary of each extraction. "
_ALL_TABLES: Final = "All tables together: the checks over all of them, and the summary of each load. "


@dataclass(frozen=True, order=True)
class StagedKey:
    """A partition of a topic's staged files: a Kafka partition, and one of the tables that it feeds."""

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
        if len(parts) != 3 or not _NUMBER.fullmatch(parts[1]):
            raise InvalidName(f"{key!r} is not a staged partition", next_step="topic/partition/dataset.table")
        topic = check_topic(parts[0].replace("%2E", "."))
        return cls(TopicPartition(topic, int(parts[1])), TableReference.parse(parts[2]))


@dataclass(frozen=True)
class AssetTranslator:
    """Names and descriptions of the assets. Every asset key begins with ``prefix``. ``warehouse`` is the tables'
    warehouse, "" for the first."""

    owners: tuple[str, ...] = ("team:data-platform",)
    prefix: tuple[str, ...] = ()
    warehouse: str = field(default="", kw_only=True)

    def key(self, *parts: str) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, *parts])

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec as Dagster shows it. Override this to change owners, tags, groups or automation conditions. Keep the
        key, because events use it; to change keys, set ``prefix``."""
        return spec

    @property
    def staged_files(self) -> dg.AssetKey:
        """The asset for all topics' staged files together."""
        return self.key("staged_files")

    @property
    def warehouse_tables(self) -> dg.AssetKey:
        """The asset for all tables together."""
        return self.key(*self._of_warehouse, "warehouse_tables")

    @property
    def complete_hours(self) -> dg.AssetKey:
        return self.key("complete_hours")

    def staged_key(self, topic: str) -> dg.AssetKey:
        return self.key(_STAGED, topic)

    def dataset_key(self, table: TableReference) -> dg.AssetKey:
        """The asset of a table: `sales/orders`, or `warehouses/lake/sales/orders` in another warehouse. A dataset
        called `kafka` or `staged` gets the prefix `warehouse`."""
        above = ["warehouse"] if table.dataset in (_TOPICS, _STAGED) else []
        return self.key(*self._of_warehouse, *above, table.dataset, table.table)

    @property
    def _of_warehouse(self) -> tuple[str, ...]:
        return (_WAREHOUSES, self.warehouse) if self.warehouse else ()

    def staged_partitions(self, topic: str) -> dg.DynamicPartitionsDefinition:
        """Partitions with a key per Kafka partition of the topic and table."""
        return dg.DynamicPartitionsDefinition(name="/".join((*self.prefix, _STAGED, topic)))

    @property
    def table_partitions(self) -> dg.DynamicPartitionsDefinition:
        """Partitions of complete hours, with a key per table."""
        name = "/".join((*self.prefix, *self._of_warehouse, "warehouse_tables"))
        return dg.DynamicPartitionsDefinition(name=name)

    def topic_key(self, pattern: str) -> dg.AssetKey:
        """The external asset of a line of the source list: `kafka/audit-any` for `audit-*`."""
        return self.key(_TOPICS, re.sub(r"[^A-Za-z0-9._-]", "_", pattern.replace("*", "any")))

    def topic_assets(self, entries: Iterable[SourceEntry], topics: Iterable[str]) -> dict[str, dg.AssetKey]:
        """The external asset of each topic: the one of the first line that matches it."""
        found = select_entries(entries, topics)
        return {topic: self.topic_key(entry.pattern) for topic, entry in found.items()}

    def topic_specs(self, entries: Iterable[SourceEntry]) -> list[dg.AssetSpec]:
        """An external asset per line of the source list."""
        specs = {self.topic_key(entry.pattern): self._topic_spec(entry) for entry in entries}
        return list(specs.values())

    def _topic_spec(self, entry: SourceEntry) -> dg.AssetSpec:
        settings = entry.settings
        target = f"`{settings.destination.target(entry.pattern)}`"
        return dg.AssetSpec(
            self.topic_key(entry.pattern),
            description=f"Kafka topic `{entry.pattern}` ({settings.records.format}), extracted to {target}.",
            group_name="kafka",
            kinds={"kafka", settings.records.format},
            owners=self._owners(entry),
            tags=_cost_tags(entry),
            metadata={
                "topic": entry.pattern,
                "format": settings.records.format,
                "route": settings.destination.route,
                "errors": settings.records.errors,
                "tombstones": settings.records.tombstones,
                "priority": settings.extraction.priority_name,
            },
        )

    def _owners(self, entry: SourceEntry) -> list[str]:
        owner = dagster_owner(entry.settings.ownership.owner)
        return [owner] if owner else list(self.owners)

    def staged_spec(self, settings: Settings, topic: str, entry: SourceEntry) -> dg.AssetSpec:
        """The asset of a topic's staged files, downstream of the topic. ``entry`` is the line that selects it."""
        return dg.AssetSpec(
            self.staged_key(topic),
            deps=[self.topic_key(entry.pattern)],
            description=(
                f"Records of the Kafka topic `{topic}`, with `_kafka_*` columns, as committed Avro files per table.\n\n"
                "`extraction_sensor` materializes it automatically. If you materialize partitions by hand, that brings "
                "the topic up to date: each record is read once, and nothing happens if nothing is new. Partitions "
                "appear with the first extraction. The checks show what is stopped, why, and how to resume it."
            ),
            group_name="staging",
            kinds={"kafka", "spark", "avro"},
            owners=self._owners(entry),
            tags=_cost_tags(entry),
            metadata={
                "topic": topic,
                "materialized_by": "extraction_sensor",
                "staging": settings.staging_url,
                **staging_links(settings),
            },
            partitions_def=self.staged_partitions(topic),
            skippable=True,
        )

    def staged_files_spec(self, settings: Settings) -> dg.AssetSpec:
        return dg.AssetSpec(
            self.staged_files,
            description=_ALL_TOPICS + "A topic's own page is `staged/<topic>`.",
            group_name="staging",
            kinds={"kafka", "spark", "avro"},
            owners=list(self.owners),
            metadata={"staging": settings.staging_url, **staging_links(settings)},
        )

    def tables_spec(self, settings: Settings) -> dg.AssetSpec:
        return dg.AssetSpec(
            self.warehouse_tables,
            description=f"{_ALL_TABLES}A table's own page is `{'/'.join((*self._of_warehouse, '<dataset>/<table>'))}`.",
            group_name="warehouse",
            kinds={settings.warehouse_url.partition(":")[0]},
            owners=list(self.owners),
            metadata={"warehouse": settings.warehouse_url, **warehouse_links(settings)},
        )


def _cost_tags(entry: SourceEntry) -> dict[str, str]:
    cost_center = tag_value(entry.settings.ownership.cost_center)
    return {"kbq/cost_center": cost_center} if cost_center else {}


def dagster_owner(owner: str) -> str:
    """An owner in a form that Dagster accepts: unchanged if possible, otherwise as a team; "" for an empty one.

    Dagster rejects some valid addresses (`ops@example.solutions`, `o'brien@example.com`). One of them would fail the
    whole code location.
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
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:63].strip("_.-")


def column_schema(columns: Iterable[Column], levels: Mapping[str, str] | None = None) -> dg.TableSchema:
    """A table's columns for Dagster. Nested fields are named by their path. ``levels`` are levels of personal data."""
    return dg.TableSchema(columns=list(_flat(columns, "", levels or {})))


def _flat(columns: Iterable[Column], prefix: str, levels: Mapping[str, str]) -> Iterator[dg.TableColumn]:
    for column in columns:
        kind = f"ARRAY<{column.type}>" if column.mode == "REPEATED" else column.type
        nullable = dg.TableColumnConstraints(nullable=column.mode != "REQUIRED")
        path = prefix + column.name
        tags = {"kbq/pii": level} if (level := levels.get(path)) else {}
        yield dg.TableColumn(path, kind, column.description or None, nullable, tags)
        yield from _flat(column.fields, f"{path}.", levels)
