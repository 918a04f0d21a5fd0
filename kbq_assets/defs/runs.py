"""What a Dagster step does: one call of the platform, and what came of it as events.

Automated runs report only what changed: a materialisation per changed partition, no event that was only
planned. Partitions that a person chose are reported even when they were up to date already. Events are yielded, not
logged: what was yielded before a failure is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import dagster as dg

from kbq_assets.core.names import TableReference
from kbq_assets.defs import metadata
from kbq_assets.defs.links import table_links
from kbq_assets.defs.translator import StagedKey, Translator
from kbq_assets.pipelines.extract import ExtractionReport, Progress
from kbq_assets.pipelines.load import LoadReport, TableReport
from kbq_assets.pipelines.platform import Platform
from kbq_assets.pipelines.reconcile_counts import CountSelection
from kbq_assets.ports.engine import ExtractionEngine

#: Seconds between progress lines in a run's log: each is a row in Dagster's database.
PROGRESS_SECONDS = 5.0

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext
StepEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
StepEvents = Iterator[StepEvent]


@dataclass
class ProgressLog:
    """Log lines of a running extraction, at most one every few seconds."""

    write: Callable[[str], object]
    monotonic: Callable[[], float] = time.monotonic
    every_seconds: float = PROGRESS_SECONDS
    _next: float = field(default=0.0, init=False)

    def __call__(self, progress: Progress) -> None:
        """Show how far the run is."""
        now = self.monotonic()
        if now < self._next or not progress.positions:
            return
        self._next = now + self.every_seconds
        share = progress.published / progress.positions
        self.write(
            f"{progress.published:,} of {progress.positions:,} positions ({share:.0%}), "
            f"{progress.records:,} records"
        )


@dataclass(frozen=True)
class Steps:
    """The steps of every job and asset."""

    platform: Platform
    translator: Translator

    def extract(
        self, context: StepContext, engine: ExtractionEngine, chosen: Collection[str] | None = None
    ) -> StepEvents:
        """Bring topics up to date. ``chosen`` are partition keys of `staged_files`; None means everything.

        Raises dagster.Failure when nothing could be read for errors that pass.
        """
        topics = None if chosen is None else frozenset(_topic(key) for key in chosen)
        report = self.platform.extract(engine, only=topics, on_progress=ProgressLog(context.log.info))
        for tp, message in report.failures.items():
            context.log.warning(f"{tp}: {message}; the next run goes on there")
        yield from self._extraction_events(context, report, chosen or ())
        if report.failures and not report.partitions:
            raise dg.Failure(
                f"nothing was read: {len(report.failures)} partitions failed", allow_retries=False
            )

    def _extraction_events(
        self, context: StepContext, report: ExtractionReport, chosen: Iterable[str]
    ) -> StepEvents:
        key = self.translator.staged_files
        changed = {s.key.format(): metadata.staged_metadata(s) for s in metadata.staged_slices(report)}
        idle: dict[str, metadata.Metadata] = {k: {"rows": 0} for k in chosen if k not in changed}
        _register(context, self.translator.staged_partitions, changed)
        for partition, entries in {**changed, **idle}.items():
            yield dg.AssetMaterialization(key, partition=partition, metadata=entries)
        yield dg.AssetObservation(key, metadata=metadata.extraction_metadata(report))
        yield metadata.stops_check(key, report.stops)
        context.log.info(metadata.extraction_headline(report))

    def load(self, context: StepContext, chosen: Collection[str] | None = None) -> StepEvents:
        """Load what is committed. ``chosen`` are partition keys of `warehouse_tables`; None means everything.

        Raises dagster.Failure when a table could not be loaded for an error that passes. A parked table is a
        failed check, not a failed run.
        """
        only = None if chosen is None else frozenset(TableReference.parse(key) for key in chosen)
        report = self.platform.load(only=only, on_table=lambda table: _log_table(context, table))
        yield from self._load_events(context, report, chosen or ())
        failed = [t for t in report.tables if t.state == "failed"]
        if failed:
            lines = "\n".join(f"{t.table}: {t.message}" for t in failed)
            raise dg.Failure(f"{len(failed)} tables were not loaded\n{lines}", allow_retries=False)

    def _load_events(self, context: StepContext, report: LoadReport, chosen: Iterable[str]) -> StepEvents:
        key, tables = self.translator.warehouse_tables, self.platform.tables()
        statuses = {str(status.table): status for status in tables}
        done = {str(t.table): t for t in report.tables}
        changed = {name for name, table in done.items() if table.rows or table.quarantined}
        _register(context, self.translator.table_partitions, done)
        for name in sorted(changed | {n for n in chosen if n in done}):
            entries = metadata.table_metadata(done[name], statuses.get(name))
            entries |= table_links(self.platform.settings, done[name].table)
            yield dg.AssetMaterialization(key, partition=name, metadata=entries)
        yield dg.AssetObservation(key, metadata=metadata.load_metadata(report))
        yield metadata.parked_check(key, tables)
        yield metadata.rows_check(key, tables)
        context.log.info(metadata.load_headline(report))

    def reconcile(self, context: StepContext) -> StepEvents:
        """Count the warehouse and compare. What differs is a failed check, not a failed run."""
        check = self.counts_check()
        context.log.info(check.description or "")
        yield check

    def counts_check(self) -> dg.AssetCheckEvaluation:
        """Whether the warehouse counts what was loaded and committed."""
        report = self.platform.reconcile_counts(CountSelection(since=self.platform.counted_since))
        return metadata.counts_check(self.translator.warehouse_tables, report)

    def clean(self, context: StepContext) -> None:
        """Delete what no commit, backlog or flight needs."""
        report = self.platform.clean()
        context.log.info(
            f"deleted {report.orphans} orphans, {report.done_files} superseded done files, "
            f"{report.temporary} temporary files"
        )
        for failure in report.failures:
            context.log.warning(f"not deleted: {failure}")


def _topic(key: str) -> str:
    return StagedKey.parse(key).topic_partition.topic


def _register(context: StepContext, definition: dg.DynamicPartitionsDefinition, keys: Iterable[str]) -> None:
    """Make partition keys known to Dagster, in one call."""
    assert definition.name is not None
    if wanted := sorted(keys):
        context.instance.add_dynamic_partitions(definition.name, wanted)


def _log_table(context: StepContext, table: TableReport) -> None:
    if table.rows or table.state != "idle":
        message = f": {table.message}" if table.message else ""
        context.log.info(f"{table.table}: {table.state}, {table.rows:,} rows of {table.files} files{message}")
