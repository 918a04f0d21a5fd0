"""The platform as commands and Dagster see it: settings, and ports that open when they are first needed.

The composition root (`definitions.py`) says how each port is opened; nothing below it knows an adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Final

from kbq_assets.core.cost import load_cost_function
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.google_permissions import Side
from kbq_assets.core.loading import Batch
from kbq_assets.core.names import TableReference
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.core.places import DuckDbFile
from kbq_assets.core.planning import ExtractionPlan
from kbq_assets.core.settings import Settings
from kbq_assets.core.table_options import table_options
from kbq_assets.core.tables import TableOptions
from kbq_assets.core.throttle import Limits
from kbq_assets.core.topics import SourceEntry, TopicSettings, parse_source_list, select_topics
from kbq_assets.core.units import WindowLimits
from kbq_assets.pipelines import clean as cleaning
from kbq_assets.pipelines import extract as extraction
from kbq_assets.pipelines import load as loading
from kbq_assets.pipelines import reconcile as reconciliation
from kbq_assets.pipelines import reconcile_counts as counting
from kbq_assets.pipelines import status as standing
from kbq_assets.pipelines.state_cache import StateCache
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine
from kbq_assets.ports.kafka import OffsetReader, Source
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.orchestrator import Orchestrator
from kbq_assets.ports.warehouse import Warehouse

#: Queries of a reconciliation that a warehouse of many machines answers at a time; a file takes one.
QUERIES_AT_ONCE: Final = 8
#: Tables whose jobs are submitted and polled side by side; DuckDB has one writer.
LOADS_AT_ONCE: Final = 16

LOGGER: Final = logging.getLogger("kbq.staging")


def _no_orchestrator(settings: Settings) -> Orchestrator:
    raise ConfigurationError("no queue of jobs is set up", next_step="use `kbq extract` and `kbq load`")


@dataclass(frozen=True)
class Openers:
    """How ports are opened. ``engine`` is entered for one run and left after it.

    Extraction and the operator's commands for topics use ``store``; loading, cleaning and the commands for tables
    use ``load_store``, which has the loader's credentials (None: the same store). ``check_staging`` raises
    ConfigurationError where staged data would not be safe, and returns what else is worth a warning.
    """

    store: Callable[[Settings], ObjectStore]
    offsets: Callable[[Settings], OffsetReader]
    source: Callable[[Settings], Source]
    warehouse: Callable[[Settings], Warehouse]
    engine: Callable[[Settings], AbstractContextManager[ExtractionEngine]]
    clock: Clock
    expected: Callable[[Settings], Callable[[TopicPartition], reconciliation.Expected | None]]
    orchestrator: Callable[[Settings], Orchestrator] = _no_orchestrator
    load_store: Callable[[Settings], ObjectStore] | None = None
    check_staging: Callable[[Settings, Side], Iterable[str]] = lambda settings, side: ()


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
    def _checked(self) -> set[Side]:
        return set()

    def check_staging(self, side: Side) -> None:
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

    @cached_property
    def extraction_limits(self) -> extraction.ExtractionLimits:
        """When a run ends, and when a window does."""
        run = self.settings.run
        return extraction.ExtractionLimits(
            seconds=run.run_seconds,
            total=Limits(run.run_records, run.run_bytes),
            window=WindowLimits(run.window_bytes, run.window_records, run.window_seconds, run.file_bytes),
        )

    def sources(self) -> tuple[SourceEntry, ...]:
        """The source list as it is now. Raises ConfigurationError."""
        path = self.settings.source_topics
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigurationError(
                f"the source list {path} cannot be read: {error.strerror}", next_step="set KBQ_SOURCE_TOPICS"
            ) from error
        return parse_source_list(text, path.name, TopicSettings(dataset=self.settings.dataset))

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
        self.check_staging(Side.EXTRACT)
        ports = extraction.ExtractionPorts(
            self.store,
            self.offsets,
            engine,
            self.openers.clock,
            load_cost_function(self.settings.run.cost_function),
        )
        return extraction.extract(
            ports, self.sources(), only=only, limits=self.extraction_limits, on_progress=on_progress
        )

    def plan_load(self) -> list[Batch]:
        """What `load` would do next."""
        return loading.plan(self.load_store, self.warehouse.limits, self.load_cache)

    def tables(self) -> tuple[standing.TableStatus, ...]:
        """Every table that has, or will have, rows."""
        return standing.read_tables(self.load_cache)

    def load(
        self,
        *,
        only: frozenset[TableReference] | None = None,
        on_table: Callable[[loading.TableReport], None] = lambda report: None,
    ) -> loading.LoadReport:
        """Load committed files."""
        self.check_staging(Side.LOAD)
        ports = loading.LoadPorts(self.load_store, self.warehouse, self.openers.clock)
        run = self.settings.run
        options = loading.LoadOptions(
            options=self._table_options(),
            wait_seconds=run.load_wait_seconds,
            poll_seconds=run.poll_seconds,
            concurrency=1 if isinstance(self.settings.warehouse, DuckDbFile) else LOADS_AT_ONCE,
        )
        return loading.load(ports, options, only=only, on_table=on_table, cache=self.load_cache)

    def _table_options(self) -> Callable[[TableReference, frozenset[str]], TableOptions]:
        """Options of new tables and labels of jobs, by the source list as it is now. Raises ConfigurationError."""
        sources = self.sources()
        return lambda table, topics: table_options(table, topics, select_topics(sources, topics))

    def clean(self) -> cleaning.CleaningReport:
        """Delete orphans and superseded done files."""
        return cleaning.clean(self.load_store)

    def status(self) -> standing.Status:
        """Where everything stands."""
        return standing.read_status(self.store, self.offsets, self.sources())

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
