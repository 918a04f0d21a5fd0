"""The topics and tables that have a page in Dagster when the code location loads.

Named topics and tables come from the catalog or the source list. Topics that match patterns, and tables that only
records name, come from the registries in the staging area. So a reload of the code location shows new ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import dagster as dg

from kbq_assets.core.catalog.datasets import Dataset
from kbq_assets.core.config.locations import Folder
from kbq_assets.core.errors import ConfigurationError, KbqError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.source_list import SourceEntry, select_entries
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state

Read = TypeVar("Read")
_LOGGER: Final = logging.getLogger("kbq.dagster")
#: Time limit for the staging area: the code location must load even if the store does not answer.
_STORE_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Pages:
    """Topics with their lines of the source list, and tables with their descriptions."""

    translator: AssetTranslator
    sources: tuple[SourceEntry, ...]
    topics: Mapping[str, SourceEntry]
    tables: Mapping[TableReference, Dataset]

    @cached_property
    def staged(self) -> Mapping[dg.AssetKey, str]:
        """Topics by the key of their staged files."""
        return {self.translator.staged_key(topic): topic for topic in self.topics}

    @cached_property
    def loaded(self) -> Mapping[dg.AssetKey, TableReference]:
        return {self.translator.dataset_key(table): table for table in self.tables}

    def feeding(self, table: TableReference) -> list[str]:
        """The topics that feed a table, judging by names."""
        dataset = self.tables[table]
        if dataset.topics:
            return sorted(topic for pattern in dataset.topics for topic in self._by_line.get(pattern, ()))
        return [topic for topic, entry in self.topics.items() if _may_feed(entry, topic, table)]

    def fed_by(self, topic: str) -> Sequence[TableReference]:
        """The tables that are named for a topic."""
        entry = self.topics.get(topic)
        return self._named.get(entry.pattern, ()) if entry is not None else ()

    @cached_property
    def _named(self) -> dict[str, list[TableReference]]:
        found: dict[str, list[TableReference]] = {}
        for table, dataset in self.tables.items():
            for pattern in dataset.topics:
                found.setdefault(pattern, []).append(table)
        return found

    @cached_property
    def _by_line(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for topic, entry in self.topics.items():
            found.setdefault(entry.pattern, []).append(topic)
        return found


def read_pages(deployment: Deployment, translator: AssetTranslator) -> Pages:
    """The pages known now. If a part cannot be read, it is left out with a warning: Dagster still loads the code
    location, and every run reports the error."""
    listed: tuple[SourceEntry, ...] = _or_else(deployment.sources.read, ())
    # A mistake may hide an entry's topic. Then the check of all staged files shows the mistake.
    sources = tuple(each for each in listed if each.mistake is None or not each.mistake.hides_name)
    described = _or_else(deployment.sources.datasets, Datasets({})).tables
    topics, tables = _stored_names(deployment)
    named = (entry.pattern for entry in sources if not entry.is_pattern)
    found = {
        table: Dataset((), table, str(table), _RECORDS_NAME_IT) for table in tables if table not in described
    }
    return Pages(translator, sources, select_entries(sources, {*named, *topics}), {**described, **found})


_RECORDS_NAME_IT: Final = "Only records name this table."


def _may_feed(entry: SourceEntry, topic: str, table: TableReference) -> bool:
    destination = entry.settings_of(topic).destination
    if is_error_table(table):
        return entry.settings_of(topic).error_table == table
    if destination.route == "topic" and not destination.by_record:
        return destination.table_for(topic) == table
    return destination.dataset.is_template or destination.dataset.text == table.dataset


def _or_else(read: Callable[[], Read], otherwise: Read) -> Read:
    try:
        return read()
    except ConfigurationError as error:
        _LOGGER.warning("the assets of topics and tables are missing: %s", error)
        return otherwise


def _stored_names(deployment: Deployment) -> tuple[Iterable[str], Iterable[TableReference]]:
    """Registered topics and tables; none if the staging area does not answer in time."""
    place = deployment.settings.staging
    if isinstance(place, Folder) and not place.path.exists():
        return (), ()  # nothing was ever extracted, and opening the store would create the folder
    found: list[tuple[Iterable[str], Iterable[TableReference]]] = []

    def read() -> None:
        try:
            store = deployment.load_store
            tables = state.table_registry(store).tables
            found.append((sorted(state.topic_registry(store).topics), sorted(tables)))
        except Exception as error:  # whatever a client raises: do not fail because of pages
            message = error.message if isinstance(error, KbqError) else type(error).__name__
            _LOGGER.warning("tables that only records name have no pages yet: %s", message)

    reader = threading.Thread(target=read, name="kbq-pages", daemon=True)
    reader.start()
    reader.join(_STORE_SECONDS)
    return found[0] if found else ((), ())
