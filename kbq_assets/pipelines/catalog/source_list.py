"""The topics to extract and their options. They are read at each use, because operators edit the list while KBQ
runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kbq_assets.core.backup.areas import check_backup
from kbq_assets.core.catalog import CatalogFiles
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.options import BAD, KEEP
from kbq_assets.core.topics.source_list import (
    EntryMistake,
    SourceEntry,
    SourceLines,
    parse_source_list,
    select_topics,
)
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.catalog import reader
from kbq_assets.pipelines.catalog.datasets import DatasetReader, Datasets, source_datasets


@dataclass(frozen=True)
class SourceList:
    """KBQ_SOURCE_TOPICS: a list of topics, or the folder of a catalog. Each method raises ConfigurationError."""

    settings: Settings
    open_catalog: Callable[[Path], Callable[[], CatalogFiles]]

    @cached_property
    def catalog(self) -> reader.CatalogReader:
        folder = self.settings.catalog.source_topics
        return reader.CatalogReader(self.open_catalog(folder), self._defaults)

    def read(self) -> tuple[SourceEntry, ...]:
        """The topics to extract, from the current list or catalog. Warehouses have their stored names (W2)."""
        return tuple(map(self._fitted, self._read()))

    def _fitted(self, entry: SourceEntry) -> SourceEntry:
        """The entry, with a mistake if this installation cannot do what it requires."""
        if entry.mistake is not None:
            return entry
        try:
            check_backup(entry.settings, self.settings.backup)
            return self._with_stored_warehouses(entry)
        except ConfigurationError as error:
            mistake = EntryMistake(f"{entry.pattern}: {error.message}", error.next_step)
            return dataclasses.replace(entry, mistake=mistake)

    def _with_stored_warehouses(self, entry: SourceEntry) -> SourceEntry:
        destination = entry.settings.destination
        if not destination.warehouses:
            return entry
        stored = self.settings.stored_warehouses(destination.warehouses)
        changed = dataclasses.replace(destination, warehouses=stored)
        return dataclasses.replace(entry, settings=dataclasses.replace(entry.settings, destination=changed))

    def _read(self) -> tuple[SourceEntry, ...]:
        path = self.settings.catalog.source_topics
        if path.is_dir():
            return reader.sources(self.catalog.catalog(), self.settings.catalog.env, str(path))
        try:
            text = path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            alone = ", to an empty file if there are no topics" if self.settings.extras.files.location else ""
            raise ConfigurationError(
                f"the source list {path} cannot be read: {error.strerror}",
                next_step=f"run in the folder of kbq.toml, set KBQ_SOURCE_TOPICS{alone}, or start with kbq init",
            ) from error
        return _parsed(text, path.name, *self._default_options)

    def select(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        return select_topics(self.read(), topics)

    def known(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        """Like `select`, for callers that treat the other topics as removed from the list. Raises ConfigurationError if
        the options of a topic are unknown."""
        lines = SourceLines(self.read())
        for topic, mistake in lines.unknown(topics).items():
            raise ConfigurationError(f"{topic} waits: {mistake.message}", next_step=mistake.next_step)
        return lines.settings_of(topics)

    def unknown(self, topics: Collection[str]) -> Mapping[str, EntryMistake]:
        """The topics with unknown options, each with the mistake."""
        return SourceLines(self.read()).unknown(topics)

    def has(self, topic: str) -> bool:
        """Whether the list names a topic, with known options or not."""
        lines = SourceLines(self.read())
        return bool(lines.settings_of((topic,)) or lines.unknown((topic,)))

    def restarts(self, topics: Collection[str]) -> bool:
        """Whether KBQ itself retries a parked table with files of these topics."""
        return all(settings.extraction.restart == "auto" for settings in self.select(topics).values())

    def datasets(self) -> Datasets:
        """Descriptions of tables whose names do not depend on records."""
        if self.settings.catalog.source_topics.is_dir():
            return self._dataset_reader.read()
        return source_datasets([entry for entry in self.read() if entry.mistake is None])

    def table_options(
        self, lines: SourceLines | None = None
    ) -> Callable[[TableReference, frozenset[str]], TableOptions]:
        """A function that returns options of new tables and labels of load jobs, from one read of the list."""
        selection, datasets = lines or SourceLines(self.read()), self.datasets()
        return lambda table, topics: table_options(
            table, topics, selection.settings_of(topics), datasets.notes(table, topics)
        )

    def uncatalogd(self, topics: Iterable[str]) -> Iterable[tuple[str, str]]:
        """Topics missing from the catalog, with the commands that add them; none if there is no catalog."""
        folder = self.settings.catalog.source_topics
        if not folder.is_dir():
            return ()
        return tuple(
            reader.uncatalogd(self.catalog.catalog(), self.settings.catalog.env, str(folder), topics)
        )

    @property
    def _defaults(self) -> TopicSettings:
        return _defaults(*self._default_options)

    @property
    def _default_options(self) -> tuple[str, int, str, bool]:
        catalog, backup = self.settings.catalog, self.settings.backup
        is_google = any(isinstance(each.place, BigQueryProject) for each in self.settings.warehouses)
        return catalog.dataset, catalog.quiet_seconds, backup.topics, is_google

    @cached_property
    def _dataset_reader(self) -> DatasetReader:
        return DatasetReader(self.catalog, self.settings.catalog.env)


@functools.lru_cache(maxsize=4)
def _parsed(text: str, origin: str, *defaults: *tuple[str, int, str, bool]) -> tuple[SourceEntry, ...]:
    """A list's entries, from its text. Cached, because a cycle reads the list many times and it seldom changes."""
    return parse_source_list(text, origin, _defaults(*defaults))


@functools.lru_cache(maxsize=4)
def _defaults(dataset: str, quiet_seconds: int, backup: str, is_google: bool) -> TopicSettings:
    return TopicSettings.of(
        dataset=dataset,
        quiet_seconds=quiet_seconds,
        backup=backup,
        null_items=BAD if is_google else KEEP,
    )
