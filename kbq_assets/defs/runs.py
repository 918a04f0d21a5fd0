"""The steps of Dagster's jobs and assets: each calls the spine once and yields the result as events.

Automated runs report only changes: one materialization per changed partition, and no planned events. Partitions that
a person chose are reported even if they were up to date. Dagster keeps the events that a step yields before it fails.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import dagster as dg

from kbq_assets.core.catalog.datasets import Dataset
from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.errors import InvalidName, KbqError
from kbq_assets.core.observation.check_names import PARTITIONS_RUN
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs import metadata
from kbq_assets.defs.events import in_batches
from kbq_assets.defs.extraction import metadata as extraction_metadata
from kbq_assets.defs.links import table_links
from kbq_assets.defs.loading import datasets
from kbq_assets.defs.observation import check_events
from kbq_assets.defs.translator import AssetTranslator, StagedKey
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport, Progress
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.pipelines.spine import Spine
from kbq_assets.ports.engine import ExtractionEngine

#: Seconds between progress lines in a run's log: each is a row in Dagster's database.
PROGRESS_SECONDS = 5.0

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext
StepEvent = dg.DagsterEvent | dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
StepEvents = Iterator[StepEvent]
Parsed = TypeVar("Parsed")
Read = TypeVar("Read")


@dataclass
class ProgressLog:
    """Logs a running extraction's progress, at most once per ``every_seconds``."""

    write: Callable[[str], object]
    monotonic: Callable[[], float] = time.monotonic
    every_seconds: float = PROGRESS_SECONDS
    _next: float = field(default=0.0, init=False)

    def __call__(self, progress: Progress) -> None:
        """Log the run's progress."""
        now = self.monotonic()
        if now < self._next or not progress.positions:
            return
        self._next = now + self.every_seconds
        share = progress.published / progress.positions
        self.write(
            f"{progress.published:,} of {progress.positions:,} positions ({share:.0%}), "
            f"{progress.records:,} records{progress.message and f'; {progress.message}'}"
        )


@dataclass(frozen=True)
class Steps:
    """The steps of every job and asset."""

    deployment: Deployment
    extractor: Extractor
    loader: Loader
    observer: Observer
    operator: Operator
    translator: AssetTranslator

    @classmethod
    def of(cls, spine: Spine, translator: AssetTranslator) -> Steps:
        """The steps of a deployment."""
        return cls(
            spine.deployment, spine.extractor, spine.loader, spine.observer, spine.operator, translator
        )

    def extract(
        self, context: StepContext, engine: ExtractionEngine, chosen: Collection[str] | None = None
    ) -> StepEvents:
        """Bring topics up to date. ``chosen`` are partition keys of `staged_files`; None means everything.

        Raises dagster.Failure if nothing could be read because of transient errors, or no chosen key is a partition.
        """
        keys = None if chosen is None else _parsed(context, chosen, StagedKey.parse)
        topics = None if keys is None else frozenset(key.topic_partition.topic for key in keys.values())
        report = self.extractor.extract(engine, only=topics, on_progress=ProgressLog(context.log.info))
        for tp, message in report.failures.items():
            context.log.warning(f"{tp}: {message}; the next run continues there")
        yield from self._extraction_events(context, report, keys)
        if report.failures and not report.partitions:
            raise dg.Failure(
                f"nothing was read: {len(report.failures)} partitions failed", allow_retries=False
            )

    def _extraction_events(
        self, context: StepContext, report: ExtractionReport, chosen: Collection[str] | None
    ) -> StepEvents:
        key, now_ms = self.translator.staged_files, self.deployment.clock.now_ms()
        slices = extraction_metadata.staged_slices(report, coarse=self._has_coarse_keys)
        self._register_staged(context, slices)
        if chosen:  # a person may choose keys from before the setting was changed
            others = extraction_metadata.staged_slices(report, coarse=not self._has_coarse_keys)
            slices |= {k: others[k] for k in chosen if k in others}
        changed = {k: extraction_metadata.staged_metadata(s, now_ms) for k, s in slices.items()}
        idle = extraction_metadata.idle_partitions(report, (k for k in chosen or () if k not in changed))
        yield from in_batches(
            context,
            (
                dg.AssetMaterialization(key, partition=partition, metadata=entries)
                for partition, entries in itertools.chain(changed.items(), idle)
            ),
        )
        yield from self._topic_events(context, report, now_ms)
        yield dg.AssetObservation(key, metadata=extraction_metadata.extraction_metadata(report, now_ms))
        if chosen is None:
            yield check_events.stops_check(key, report.stops)
            yield from self._state_checks(context, Role.EXTRACT)
        else:  # the run did not check other topics for stops
            yield from self._state_checks(context, Role.EXTRACT, PARTITIONS_RUN)
        context.log.info(extraction_metadata.extraction_headline(report))

    @property
    def _has_coarse_keys(self) -> bool:
        return self.deployment.settings.run.partition_keys == "topic_table"

    def _register_staged(self, context: StepContext, keys: Iterable[str]) -> None:
        """Register keys, and forget keys of the other form: after KBQ_PARTITION_KEYS changes nothing updates them."""
        definition, coarse = self.translator.staged_partitions, self._has_coarse_keys
        _register(context, definition, keys)
        for key in context.instance.get_dynamic_partitions(definition.name or ""):
            if _is_of_topic(key) not in (None, coarse):
                context.instance.delete_dynamic_partition(definition.name or "", key)

    def _topic_events(
        self, context: StepContext, report: ExtractionReport, now_ms: int
    ) -> Iterator[dg.AssetObservation]:
        """An observation per line of the source list with topics that the run read or left behind."""
        reports = extraction_metadata.topic_reports(report)
        assets = self.translator.topic_assets(_or_else(context, self.deployment.sources.read, ()), reports)
        for key, topics in extraction_metadata.by_asset(reports, assets):
            yield dg.AssetObservation(key, metadata=extraction_metadata.topic_metadata(topics, now_ms))

    def load(
        self,
        context: StepContext,
        chosen: Collection[str] | None = None,
        asset: dg.AssetKey | None = None,
    ) -> StepEvents:
        """Load what is committed. ``chosen`` are tables, partition keys of ``asset``; None means everything.

        Raises dagster.Failure if a table was not loaded because of a transient error, or no chosen key is a table. A
        parked table is a failed check, not a failed run.
        """
        keys = None if chosen is None else _parsed(context, chosen, TableReference.parse)
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
        tables: tuple[TableStatus, ...] = _or_else(context, self.observer.tables, ())
        pages = _or_else(context, self.deployment.sources.datasets, Datasets({})).tables
        self._register_tables(context, (t.table for t in report.tables))
        table_events = self._table_events(report, tables, frozenset(chosen))
        dataset_events = self._dataset_events(report, tables, pages)
        yield from in_batches(context, itertools.chain(table_events, dataset_events))
        yield dg.AssetObservation(key, metadata=metadata.load_metadata(report))
        yield from self._state_checks(context, Role.LOAD)
        context.log.info(metadata.load_headline(report))

    def _state_checks(
        self, context: StepContext, side: Role, *of_broker: str
    ) -> list[dg.AssetCheckEvaluation]:
        """The checks that a run of this side can answer from state alone, and those for which the broker must be asked.
        The run is over: none of them fails it."""
        report = _or_else(context, lambda: self.observer.state_checks(side, broker=bool(of_broker)), None)
        names = (*of_broker, *check_events.OF_RUNS[side])
        return [] if report is None else check_events.evaluations(self.translator, report, names)

    def _register_tables(self, context: StepContext, tables: Iterable[TableReference]) -> None:
        keys: dict[dg.AssetKey, list[str]] = defaultdict(list)
        for table in tables:
            keys[self.translator.asset_of(table)].append(str(table))
        for asset, names in keys.items():
            _register(context, self.translator.partitions_of(asset), names)

    def _table_events(
        self, report: LoadReport, tables: Iterable[TableStatus], chosen: Collection[str]
    ) -> Iterator[dg.AssetMaterialization]:
        statuses, now_ms = {status.table: status for status in tables}, self.deployment.clock.now_ms()
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
                        **table_links(self.deployment.settings, done.table),
                    },
                )

    def _dataset_events(
        self, report: LoadReport, tables: Iterable[TableStatus], known: Mapping[TableReference, Dataset]
    ) -> Iterator[dg.AssetMaterialization]:
        """One event for each table's own page, if rows of it have landed; pages of tables that only records name
        appear so."""
        statuses, now_ms = {status.table: status for status in tables}, self.deployment.clock.now_ms()
        settings = self.deployment.settings
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

    def clean(self, context: StepContext) -> None:
        """Delete the files that no commit, backlog or load job in flight needs."""
        report = self.operator.clean()
        context.log.info(
            f"deleted {report.orphans} orphans, {report.done_files} superseded done files, "
            f"{report.temporary} temporary files"
        )
        for failure in report.failures:
            context.log.warning(f"not deleted: {failure}")


def _or_else(context: StepContext, read: Callable[[], Read], otherwise: Read) -> Read:
    """A value for reports. The work is committed: a failure is logged, as a failed run would lose its events."""
    try:
        return read()
    except KbqError as error:
        context.log.warning(f"not reported: {error.message}")
        return otherwise


def _held_back(report: LoadReport, table: TableReference) -> dict[str, str]:
    """The partition, or other reason, that keeps the next hour from being complete."""
    verdict = report.verdicts.get(table)
    return {"held_back_by": verdict.why} if verdict and verdict.why else {}


def _parsed(context: StepContext, chosen: Iterable[str], parse: Callable[[str], Parsed]) -> dict[str, Parsed]:
    """The chosen keys, parsed. People may add keys in the UI: a wrong one is skipped with a warning.

    Raises dagster.Failure if all are wrong.
    """
    found, wrong = {}, []
    for key in chosen:
        try:
            found[key] = parse(key)
        except InvalidName as error:
            wrong.append(str(error))
    if wrong and not found:
        raise dg.Failure("\n".join(wrong), allow_retries=False)
    for message in wrong:
        context.log.warning(message)
    return found


def _is_of_topic(key: str) -> bool | None:
    """Whether a known key stands for a whole topic; None for a key that somebody made up."""
    try:
        return StagedKey.parse(key).is_of_topic
    except InvalidName:
        return None


def _register(context: StepContext, definition: dg.DynamicPartitionsDefinition, keys: Iterable[str]) -> None:
    """Register partition keys with Dagster, in one call."""
    assert definition.name is not None
    if wanted := sorted(keys):
        context.instance.add_dynamic_partitions(definition.name, wanted)


def _log_table(context: StepContext, table: TableReport) -> None:
    if table.rows or table.state != "idle":
        message = f": {table.message}" if table.message else ""
        context.log.info(f"{table.table}: {table.state}, {table.rows:,} rows of {table.files} files{message}")
