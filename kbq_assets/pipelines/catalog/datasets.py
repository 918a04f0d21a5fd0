"""Descriptions of all tables, from the catalog or the source list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kbq_assets.core.catalog import Catalog, CatalogEntry, CatalogFiles
from kbq_assets.core.catalog.datasets import (
    Dataset,
    by_table,
    dataset_of_entry,
    dataset_of_source,
    error_datasets,
    notes_of,
)
from kbq_assets.core.catalog.json_columns import rows_of_json
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.catalog.reader import CatalogReader, environment, schema_files


@dataclass(frozen=True)
class Datasets:
    """Datasets by table and by topic. ``policy_tags`` are BigQuery's policy tags by level of personal data."""

    tables: Mapping[TableReference, Dataset]
    policy_tags: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Dataset] = field(default_factory=dict)

    def notes(self, table: TableReference, topics: Iterable[str] = ()) -> TableNotes:
        """Descriptions and labels that loads keep up to date on a table. A table that records name, or that is for
        another schema version, gets the column descriptions and policy tags of the first of its ``topics``."""
        if (dataset := self.tables.get(table)) is not None:
            return notes_of(dataset, self.policy_tags)
        found = next((self.topics[topic] for topic in sorted(topics) if topic in self.topics), None)
        if found is None:
            return TableNotes(policy_tags=self.policy_tags)
        return replace(notes_of(found, self.policy_tags), description="", labels={})


class DatasetReader:
    """The datasets of the current catalog. They are rebuilt after a change."""

    def __init__(self, catalog: CatalogReader, env: str) -> None:
        self._catalog = catalog
        self._env = env
        self._last: tuple[Catalog, Datasets] | None = None

    def read(self) -> Datasets:
        """The datasets. Raises ConfigurationError for a missing folder or an ambiguous environment."""
        catalog = self._catalog.catalog()
        if self._last is None or self._last[0] is not catalog:
            entries = catalog.of_env(environment(catalog, self._env))
            sources = [entry.source for entry in entries if entry.archived]
            found = catalog_datasets(entries, self._catalog.files())
            tags = catalog.convention.policy_tags
            topics = {topic: dataset for dataset in found for topic in dataset.topics}
            self._last = (catalog, Datasets({**error_datasets(sources), **by_table(found)}, tags, topics))
        return self._last[1]


def source_datasets(sources: Sequence[SourceEntry]) -> Datasets:
    return Datasets({**error_datasets(sources), **by_table(map(dataset_of_source, sources))})


def catalog_datasets(entries: Iterable[CatalogEntry], files: CatalogFiles) -> list[Dataset]:
    """The dataset of each entry, with the columns of its Avro schema if it has one."""
    return [dataset_of_entry(entry, value_schema(entry, files)) for entry in entries]


def value_schema(entry: CatalogEntry, files: CatalogFiles) -> str:
    """The Avro schema of an entry's rows; "" if the catalog has none, or if it is Protobuf, which needs a compiler."""
    if entry.settings.records.format in ("json_columns", "json_schema"):
        folders = (f"{entry.place.folder}/{entry.place.env}", entry.place.folder)
        texts = (files.schemas.get(f"{folder}/schemas/value.json") for folder in folders)
        decisions, style = entry.settings.privacy.decisions, entry.settings.destination.column_names
        return next((rows_of_json(text, decisions, style) for text in texts if text), "")
    found = (s.text for s in schema_files(entry, files) if s.part == "value" and s.schema_type == "AVRO")
    return next(found, "")
