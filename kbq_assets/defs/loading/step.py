"""The step that loads: tables, their pages and their checks as Dagster's events."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from kbq_assets.core.catalog.datasets import Dataset
from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs import metadata
from kbq_assets.defs.events import in_batches
from kbq_assets.defs.links import table_links
from kbq_assets.defs.loading import datasets
from kbq_assets.defs.runs import StepContext, StepEvents, or_else, parsed, register, state_checks
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import TableStatus


@dataclass(frozen=True)
class LoadStep:
    """Loads what is committed."""

    loader: Loader
    observer: Observer
    translator: AssetTranslator

    def run(
        self,
        context: StepContext,
        chosen: Collection[str] | None = None,
        asset: dg.AssetKey | None = None,
    ) -> StepEvents:
        """Load what is committed. ``chosen`` are tables, partition keys of ``asset``; None means everything.

        Raises dagster.Failure if a table was not loaded because of a transient error, or no chosen key is a table. A
        parked table is a failed check, not a failed run.
        """
        keys = None if chosen is None else parsed(context, chosen, TableReference.parse)
        only = None if keys is None else frozenset(keys.values())
        report = self.loader.load(only=only, on_table=lambda table: _log_table(context, table))
        yield from self._load_events(context, report, keys or ())
        if asset is not None:
            yield from self._unknown_tables(report, keys or (), asset)
        failed = [t for t in report.tables if t.state == "failed"]
        if failed:
            lines = "\n".join(f"{t.table}: {t.message}" for t in failed)
            raise dg.Failure(f"{len(failed)} tables were not loaded\n{lines}", allow_retries=False)

    def _load_events(self, context: StepContext, report: LoadReport, chosen: Iterable[str]) -> StepEvents:
        key = self.translator.warehouse_tables
        tables: tuple[TableStatus, ...] = or_else(context, self.observer.tables, ())
        pages = or_else(context, self.loader.deployment.sources.datasets, Datasets({})).tables
        self._register_tables(context, (t.table for t in report.tables))
        table_events = self._table_events(report, tables, frozenset(chosen))
        dataset_events = self._dataset_events(report, tables, pages)
        yield from in_batches(context, itertools.chain(table_events, dataset_events))
        yield dg.AssetObservation(key, metadata=metadata.load_metadata(report))
        yield from state_checks(context, self.observer, self.translator, Role.LOAD)
        context.log.info(metadata.load_headline(report))

    def _register_tables(self, context: StepContext, tables: Iterable[TableReference]) -> None:
        keys: dict[dg.AssetKey, list[str]] = defaultdict(list)
        for table in tables:
            keys[self.translator.asset_of(table)].append(str(table))
        for asset, names in keys.items():
            register(context, self.translator.partitions_of(asset), names)

    def _table_events(
        self, report: LoadReport, tables: Iterable[TableStatus], chosen: Collection[str]
    ) -> Iterator[dg.AssetMaterialization]:
        statuses, now_ms = {status.table: status for status in tables}, self.loader.deployment.clock.now_ms()
        for done in report.tables:
            is_up_to_date = done.state == "idle" and str(done.table) in chosen
            if done.rows or done.quarantined or is_up_to_date:
                entries = metadata.table_metadata(done, statuses.get(done.table), now_ms)
                yield dg.AssetMaterialization(
                    self.translator.asset_of(done.table),
                    partition=str(done.table),
                    metadata={
                        **entries,
                        **_held_back(report, done.table),
                        **table_links(self.loader.deployment.settings, done.table),
                    },
                )

    def _dataset_events(
        self, report: LoadReport, tables: Iterable[TableStatus], known: Mapping[TableReference, Dataset]
    ) -> Iterator[dg.AssetMaterialization]:
        """One event for each table's own page, if rows of it have landed; pages of tables that only records name
        appear so."""
        statuses, now_ms = {status.table: status for status in tables}, self.loader.deployment.clock.now_ms()
        settings = self.loader.deployment.settings
        for done in report.tables:
            if done.rows:
                entries = datasets.loaded_metadata(
                    settings, done, statuses.get(done.table), known.get(done.table), now_ms
                )
                yield dg.AssetMaterialization(self.translator.dataset_key(done.table), metadata=entries)

    def _unknown_tables(
        self, report: LoadReport, chosen: Iterable[str], asset: dg.AssetKey
    ) -> Iterator[dg.AssetMaterialization]:
        """Report partitions of forgotten tables as up to date; otherwise their backfill never completes."""
        known = {str(t.table) for t in report.tables}
        for key in chosen:
            if key not in known:
                entries: metadata.Metadata = {"rows": 0, "state": "nothing is staged for it"}
                yield dg.AssetMaterialization(asset, partition=key, metadata=entries)


def _held_back(report: LoadReport, table: TableReference) -> dict[str, str]:
    """The partition, or other reason, that keeps the next hour from being complete."""
    verdict = report.verdicts.get(table)
    return {"held_back_by": verdict.why} if verdict and verdict.why else {}


def _log_table(context: StepContext, table: TableReport) -> None:
    if table.rows or table.state != "idle":
        message = f": {table.message}" if table.message else ""
        context.log.info(f"{table.table}: {table.state}, {table.rows:,} rows of {table.files} files{message}")
