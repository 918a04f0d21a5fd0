"""The platform as commands and Dagster see it: settings, and ports that open when they are first needed.

The composition root (`definitions.py`) says how each port is opened; nothing below it knows an adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Final

from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.config.locations import DuckDbFile
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError, KbqError
from kbq_assets.core.extraction.cost import load_cost_function
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import SourceEntry, parse_source_list, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.catalog import apply as catalog_apply
from kbq_assets.extras.notices import pipeline as telling
from kbq_assets.extras.notices.news import Contradictions
from kbq_assets.extras.reconcile import counts as counting
from kbq_assets.extras.reconcile import records as reconciliation
from kbq_assets.pipelines.catalog import datasets as describing
from kbq_assets.pipelines.catalog import reader as cataloguing
from kbq_assets.pipelines.extraction import extract as extraction
from kbq_assets.pipelines.extraction.publisher import mark_idle
from kbq_assets.pipelines.loading import load as loading
from kbq_assets.pipelines.loading.completeness import (
    TableCompleteness,
    advance_tables,
    known_hours,
    standings,
)
from kbq_assets.pipelines.loading.completeness_table import publish_hours
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.observation import checks as checking
from kbq_assets.pipelines.observation import pending
from kbq_assets.pipelines.observation import status as standing
from kbq_assets.pipelines.observation.run_log import RunLog
from kbq_assets.pipelines.openers import Openers
from kbq_assets.pipelines.operate import clean as cleaning
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.orchestrator import Orchestrator
from kbq_assets.ports.warehouse import Warehouse

#: Queries of a reconciliation that a warehouse of many machines answers at a time; a file takes one.
QUERIES_AT_ONCE: Final = 8
#: Tables whose jobs are submitted and polled side by side; DuckDB has one writer.
LOADS_AT_ONCE: Final = 16
#: How long a look marks what was read: with the look itself a sensor's tick stays under 10 seconds.
MARK_SECONDS: Final = 4.0

LOGGER: Final = logging.getLogger("kbq.staging")


@dataclass(frozen=True)
class Platform:
    """Everything KBQ does, on one configuration. Each method is one bounded run."""

    settings: Settings
    openers: Openers

    @cached_property
    def store(self) -> ObjectStore:
        """Staged files and state."""
        return self.openers.store(self.settings)

    @cached_property
    def load_store(self) -> ObjectStore:
        """The same staged files and state, with the loader's credentials."""
        opener = self.openers.load_store
        return self.store if opener is None else opener(self.settings)

    @cached_property
    def load_cache(self) -> StateCache:
        """State objects as parsed before: a sensor that looks every minute reads what has changed."""
        return StateCache(self.load_store)

    @cached_property
    def _checked(self) -> set[Role]:
        return set()

    def check_staging(self, side: Role) -> None:
        """Refuse a staging area in which data would not be safe (ConfigurationError), and log what else is not as it
        should be: once per process and side."""
        if side not in self._checked:
            for warning in self.openers.check_staging(self.settings, side):
                LOGGER.warning("%s", warning)
            self._checked.add(side)

    @cached_property
    def offsets(self) -> OffsetReader:
        """The broker's offsets."""
        return self.openers.offsets(self.settings)

    @cached_property
    def warehouse(self) -> Warehouse:
        """Tables and load jobs."""
        return self.openers.warehouse(self.settings)

    @cached_property
    def orchestrator(self) -> Orchestrator:
        """Dagster: the queue, the daemon and the UI."""
        return self.openers.orchestrator(self.settings)

    def serve(self, host: str, port: int, announce: Callable[[str], None]) -> None:
        """Serve health, status and metrics until a signal ends it. Raises ConfigurationError."""
        self.openers.service(self, host, port, announce)

    @cached_property
    def extraction_limits(self) -> extraction.ExtractionLimits:
        """When a run ends, and when a window does."""
        run = self.settings.run
        return extraction.ExtractionLimits(
            seconds=run.run_seconds,
            total=ReadLimits(run.run_records, run.run_bytes),
            window=WindowLimits(run.window_bytes, run.window_records, run.window_seconds, run.file_bytes),
        )

    @cached_property
    def catalog(self) -> cataloguing.CatalogReader:
        """The topic catalogue."""
        folder = self.settings.source_topics
        return cataloguing.CatalogReader(
            self.openers.catalog(folder), TopicSettings.of(dataset=self.settings.dataset)
        )

    @property
    def catalog_commands(self) -> catalog_apply.CatalogCommands:
        """The catalogue beside broker and registry."""
        return catalog_apply.CatalogCommands(
            self.catalog,
            self.settings.env,
            lambda: self.openers.topic_admin(self.settings),
            lambda: self.openers.subjects(self.settings),
            self.openers.protobuf_fields,
        )

    def sources(self) -> tuple[SourceEntry, ...]:
        """The topics to extract, by the catalogue or the source list as it is now. Raises ConfigurationError."""
        path = self.settings.source_topics
        if path.is_dir():
            return cataloguing.sources(self.catalog.catalog(), self.settings.env, str(path))
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigurationError(
                f"the source list {path} cannot be read: {error.strerror}", next_step="set KBQ_SOURCE_TOPICS"
            ) from error
        return parse_source_list(text, path.name, TopicSettings.of(dataset=self.settings.dataset))

    def datasets(self) -> describing.Datasets:
        """What is known of each table whose name does not depend on records. Raises ConfigurationError."""
        if self.settings.source_topics.is_dir():
            return self._dataset_reader.read()
        return describing.source_datasets(self.sources())

    @cached_property
    def _dataset_reader(self) -> describing.DatasetReader:
        return describing.DatasetReader(self.catalog, self.settings.env)

    def plan_extraction(self, only: frozenset[str] | None = None) -> ExtractionPlan:
        """What `extract` would do now."""
        return extraction.plan(
            self.store,
            self.offsets,
            self.sources(),
            now_ms=self.openers.clock.now_ms(),
            only=only,
            limits=self.extraction_limits,
        )

    def extract(
        self,
        engine: ExtractionEngine | None = None,
        *,
        only: frozenset[str] | None = None,
        on_progress: Callable[[extraction.Progress], None] = lambda progress: None,
    ) -> extraction.ExtractionReport:
        """Bring topics up to date, on the given engine or on one that opens when there is something to read."""
        if engine is None:
            with ExitStack() as stack:
                lazy = OnDemandEngine(lambda: stack.enter_context(self.openers.engine(self.settings)))
                return self.extract(lazy, only=only, on_progress=on_progress)
        self.check_staging(Role.EXTRACT)
        ports = extraction.ExtractionPorts(
            self.store,
            self.offsets,
            engine,
            self.openers.clock,
            load_cost_function(self.settings.run.cost_function),
        )
        with closing(RunLog(self.store, self.openers.clock)) as log:
            watching = log.watching(on_progress)
            report = extraction.extract(
                ports, self.sources(), only=only, limits=self.extraction_limits, on_progress=watching
            )
            log.end_extraction(report)
        return report

    def plan_load(self) -> list[LoadBatch]:
        """What `load` would do next."""
        return loading.plan(
            self.load_store, self.warehouse.limits, self.load_cache, self.restarts, self.blocks
        )

    def restarts(self, topics: frozenset[str]) -> bool:
        """Whether a parked table with files of these topics is tried again by itself. Raises ConfigurationError."""
        return all(s.extraction.restart == "auto" for s in select_topics(self.sources(), topics).values())

    def poll_records(self, start: str = "") -> pending.Poll[ExtractionPlan]:
        """Whether an extraction would do anything, in pages where very much is staged."""
        topics = select_topics(self.sources(), self.offsets.topics())
        clock = self.openers.clock
        return pending.poll_records(self.store, topics, self.plan_extraction, clock.monotonic, start=start)

    def mark_ends(self, plans: Iterable[ExtractionPlan], asked_ms: int) -> None:
        """Note which partitions were read to the ends that the broker told at ``asked_ms``: hours become complete where
        nothing is produced. Reads no record, and takes a few seconds: the next call does what is left."""
        ends = {tp: end for planned in plans for tp, end in planned.log_ends.items()}
        mark_idle(self.store, self.openers.clock, ends, asked_ms, seconds=MARK_SECONDS)

    def poll_loads(self, start: str = "") -> pending.PendingLoads:
        """Whether a load would do anything, in pages likewise."""
        return pending.poll_loads(
            self.load_cache,
            self.warehouse.limits,
            self.openers.clock.monotonic,
            start=start,
            restarts=self.restarts,
            blocks=self.blocks,
        )

    def tables(self) -> tuple[standing.TableStatus, ...]:
        """Every table that has, or will have, rows."""
        return standing.read_tables(self.load_cache, self.restarts, self.blocks)

    def load(
        self,
        *,
        only: frozenset[TableReference] | None = None,
        on_table: Callable[[loading.TableReport], None] = lambda report: None,
    ) -> loading.LoadReport:
        """Load committed files."""
        self.check_staging(Role.LOAD)
        ports = loading.LoadPorts(self.load_store, self.warehouse, self.openers.clock)
        run = self.settings.run
        options = loading.LoadOptions(
            options=self._table_options(),
            wait_seconds=run.load_wait_seconds,
            poll_seconds=run.poll_seconds,
            concurrency=1 if isinstance(self.settings.warehouse, DuckDbFile) else LOADS_AT_ONCE,
            restarts=self.restarts,
            blocks=self.blocks,
            topics=self._extracted,
        )
        report = loading.load(ports, options, only=only, on_table=on_table, cache=self.load_cache)
        RunLog(self.load_store, self.openers.clock).end_loading(report)
        try:
            publish_hours(ports, read_view(self.load_cache))
        except KbqError as error:  # what has landed is told, whatever comes after it
            LOGGER.warning("the hours are published by the next load: %s", error.message)
        return report

    def _table_options(self) -> Callable[[TableReference, frozenset[str]], TableOptions]:
        """Options of new tables and labels of jobs, by the source list as it is now. Raises ConfigurationError."""
        sources, datasets = self.sources(), self.datasets()
        return lambda table, topics: table_options(
            table, topics, select_topics(sources, topics), datasets.notes(table, topics)
        )

    def _extracted(self, topics: Collection[str]) -> Mapping[str, TopicSettings]:
        """Those of the topics that are extracted, and how. Raises ConfigurationError."""
        return select_topics(self.sources(), topics)

    def hours(self) -> tuple[TableCompleteness, ...]:
        """How far every table is complete by business time, and what holds it back."""
        return standings(read_view(self.load_cache, self.blocks), self._extracted)

    def advance_hours(self) -> None:
        """Note which hours are complete now, as a load does at its end. Loads nothing. Where very much is staged, it is
        left to the load."""
        self.check_staging(Role.LOAD)
        if not pending.is_quick(self.load_store):
            return
        advance_tables(self.load_store, read_view(self.load_cache, self.blocks), self._extracted)
        ports = loading.LoadPorts(self.load_store, self.warehouse, self.openers.clock)
        publish_hours(ports, read_view(self.load_cache))

    def known_hours(self) -> Mapping[TableReference, TableHours]:
        """The hours of every table, as loads found them."""
        return known_hours(self.load_cache)

    def clean(self) -> cleaning.CleaningReport:
        """Delete orphans and superseded done files."""
        started = self.openers.clock.monotonic()
        report = cleaning.clean(self.load_store)
        seconds = self.openers.clock.monotonic() - started
        RunLog(self.load_store, self.openers.clock).end_cleaning(report, seconds)
        return report

    def status(self) -> standing.Status:
        """Where everything stands."""
        return standing.read_status(self.store, self.offsets, self.sources(), self.restarts, self.blocks)

    @cached_property
    def blocks(self) -> LoadBlocks:
        """Which topics' files wait for a check, by the source list as it is then."""
        return LoadBlocks(lambda topics: select_topics(self.sources(), topics))

    def checks(self, *, counts: bool = False) -> checking.CheckReport:
        """Everything that is checked: what failed, and what waits because of it. ``counts``: by queries too."""
        report = checking.run_checks(self._check_ports(self.load_cache))
        return checking.with_counts(report, self.reconcile_counts()) if counts else report

    def state_checks(self, side: Role, *, broker: bool = False) -> checking.CheckReport:
        """What state alone tells, and where asked for the ``broker``, read with the credentials of one side."""
        is_loader = side is Role.LOAD or self.openers.load_store is None
        cache = self.load_cache if is_loader else self._extract_cache
        return checking.run_checks(self._check_ports(cache), broker=broker)

    @cached_property
    def _extract_cache(self) -> StateCache:
        return StateCache(self.store)

    def _check_ports(self, cache: StateCache) -> checking.CheckPorts:
        clock = self.openers.clock
        return checking.CheckPorts(cache, self.blocks, lambda: self.offsets, self.sources(), clock.now_ms)

    @cached_property
    def notices(self) -> telling.NoticePorts:
        """What notices are made from, and who gets them."""
        return telling.NoticePorts(
            self.load_store,
            self.openers.notifiers(self.settings),
            self.checks,
            self.tables,
            self.settings.notify.repeat_hours * 3_600_000,
            self._uncatalogued,
            lambda: Contradictions.read(self.load_cache, (entry.settings for entry in self.sources())),
        )

    def _uncatalogued(self, topics: Iterable[str]) -> Iterable[tuple[str, str]]:
        """Topics that the catalogue lacks, with the commands that add them; a list of topics lacks none."""
        folder, env = self.settings.source_topics, self.settings.env
        if not folder.is_dir():
            return ()
        return tuple(cataloguing.uncatalogued(self.catalog.catalog(), env, str(folder), topics))

    def reconcile(self, only: frozenset[str] | None = None) -> reconciliation.Reconciliation:
        """Compare broker, warehouse and producers' log."""
        source = self.openers.source(self.settings)
        expected = self.openers.expected(self.settings)
        ports = reconciliation.ReconcilePorts(self.load_store, self.offsets, source, self.warehouse, expected)
        return reconciliation.reconcile(ports, only=only)

    @property
    def counted_since(self) -> date | None:
        """The first event date that Dagster's count reads, None for all. By the local clock: an error of a day costs
        bytes, no more."""
        days = self.settings.run.reconcile_days
        today = datetime.fromtimestamp(self.openers.clock.now_ms() / 1000, UTC).date()
        return today - timedelta(days) if days else None

    def reconcile_counts(
        self,
        selection: counting.CountSelection | None = None,
        *,
        on_table: Callable[[TableReference, int], None] = lambda table, tables: None,
    ) -> counting.CountReport:
        """Compare counts of the warehouse with what was loaded and committed: no record is read."""
        options = self._table_options()
        ports = counting.CountPorts(
            self.load_store,
            self.offsets,
            self.warehouse,
            expires=lambda table, topics: options(table, topics).expiry_days > 0,
        )
        at_once = 1 if isinstance(self.settings.warehouse, DuckDbFile) else QUERIES_AT_ONCE
        return counting.reconcile_counts(ports, selection, at_once=at_once, on_table=on_table)
