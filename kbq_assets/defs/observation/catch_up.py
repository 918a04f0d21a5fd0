"""Events for work that commands did while no code location ran. Without them, pages would say "Never materialized".

The first tick of a sensor compares the staging area with Dagster's history, once per process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg

from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.metadata import Metadata
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.translator import StagedKey
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import Status

_BY: Final = {"reported": dg.MetadataValue.text("written by a command, not by a Dagster run")}


@dataclass
class CatchUp:
    """Makes events for work that Dagster has not seen: at most ``most`` partitions per tick (KBQ_PARTITION_EVENTS)."""

    observer: Observer
    pages: Pages
    most: int
    is_done: bool = False

    def events(self, instance: dg.DagsterInstance) -> list[dg.AssetMaterialization]:
        """The missing events, from the first call that reaches broker and store. Later calls return none."""
        if self.is_done:
            return []
        try:
            status = self.observer.status()
        except KbqError:  # a later tick tries again; loads do not wait for the broker
            return []
        found = [*self._tables(instance, status), *self._partitions(instance, status)]
        self.is_done = True
        return found

    def _tables(self, instance: dg.DagsterInstance, status: Status) -> Iterator[dg.AssetMaterialization]:
        keys = {
            self.pages.translator.dataset_key(table.table): table
            for table in status.tables
            if table.table in self.pages.tables and table.loaded_ms
        }
        for key, table in keys.items():
            last = instance.get_latest_materialization_event(key)
            if last is None or last.timestamp * 1000 < table.loaded_ms:
                entries: Metadata = {
                    "total_rows": table.loaded_rows,
                    "dagster/last_updated_timestamp": dg.MetadataValue.timestamp(table.loaded_ms / 1000),
                    **_BY,
                }
                yield dg.AssetMaterialization(key, metadata=entries)

    def _partitions(self, instance: dg.DagsterInstance, status: Status) -> Iterator[dg.AssetMaterialization]:
        rows: dict[str, dict[StagedKey, int]] = defaultdict(lambda: defaultdict(int))
        for partition in status.partitions:
            if (tp := partition.topic_partition).topic in self.pages.topics:
                for table, count in partition.totals.rows.items():
                    rows[tp.topic][StagedKey(tp, TableReference.parse(table))] += count
        left = self.most
        for topic, counts in sorted(rows.items()):
            name = self.pages.translator.staged_partitions(topic).name or ""
            known = instance.get_dynamic_partitions(name)
            new = {text: n for key, n in counts.items() if (text := key.format()) not in known}
            new = dict(sorted(new.items())[:left])
            left -= len(new)
            if new:
                instance.add_dynamic_partitions(name, list(new))
            asset = self.pages.translator.staged_key(topic)
            for text, count in new.items():
                yield dg.AssetMaterialization(asset, partition=text, metadata={"total_rows": count, **_BY})
