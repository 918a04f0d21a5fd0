"""Loading: committed files become rows under job ids that cannot run twice (PROTOCOL, Loading).

    view      read changed states, commits and backlogs once for all tables (view.py)
    create    create the states of new tables
    tables    each table runs its own loop (table_loader.py) and ends its turn when it must wait, so jobs of many tables
              run at once. A table whose state changed waits for the next view before it plans again
    clean     delete done files of loaded windows
    judge     find the hours that are complete now (completeness.py)

A crash at any point leaves states from which the next run continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Final

from kbq_assets.core.errors import Defect, KbqError, TransientError
from kbq_assets.core.extraction.pruning import superseded_done_files
from kbq_assets.core.extraction.restarts import PARKINGS, MayRestart, parking_restarts
from kbq_assets.core.loading import batches
from kbq_assets.core.loading.batches import LoadBatch, LoadLimits
from kbq_assets.core.loading.partitions import limits_by
from kbq_assets.core.ordering.batches import next_batch
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.switching import in_turn
from kbq_assets.pipelines.loading.completeness import Verdicts, advance_tables
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks, TopicOptions, default_options
from kbq_assets.pipelines.loading.ports import (
    END,
    NEXT_VIEW,
    LoadOptions,
    LoadPorts,
    TableReport,
    Turn,
    topics_of,
)
from kbq_assets.pipelines.loading.table_loader import TableLoader
from kbq_assets.pipelines.loading.view import UNUSABLE, FindBlocks, LoadView, read_view
from kbq_assets.pipelines.ordering.released_hours import release_for
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import list_done_files
from kbq_assets.pipelines.protocol.outages import guarded
from kbq_assets.pipelines.protocol.refusals import end_if_all
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import RunCache, StateCache
from kbq_assets.pipelines.threads import pool_of
from kbq_assets.ports.object_store import ObjectStore

__all__ = [
    "LoadOptions",
    "LoadPlan",
    "LoadPorts",
    "LoadReport",
    "TableReport",
    "load",
    "plan",
    "plan_of_view",
]

_LOGGER: Final = logging.getLogger("kbq.load")


@dataclass(frozen=True)
class LoadReport:
    """The result of a load run. ``verdicts`` say how far each table is complete."""

    tables: tuple[TableReport, ...]
    seconds: float = 0.0
    deleted_done_files: int = 0
    verdicts: Verdicts = field(default_factory=dict)
    #: the store's refusals by commit; the files of these topics wait
    refused: Mapping[str, str] = field(default_factory=dict)
    #: commits that the store did not give now, each with the error; the files of these topics wait for the next load
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(t.rows for t in self.tables)

    @property
    def unread(self) -> Mapping[str, str]:
        """All commits whose files wait because this load could not read them, each with the error."""
        return {**self.unavailable, **self.refused}


@dataclass(frozen=True)
class LoadPlan:
    """The next batch of every table. The files of ``refused`` and ``unavailable`` commits wait, as in `LoadReport`;
    ``failed`` tables have a state or backlog that cannot be read."""

    batches: tuple[LoadBatch, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[TableReference, KbqError] = field(default_factory=dict)

    def of(self, tables: Collection[TableReference] | None) -> LoadPlan:
        """The plan of only some tables; None for all."""
        if tables is None:
            return self
        batches = tuple(batch for batch in self.batches if batch.table in tables)
        failed = {table: error for table, error in self.failed.items() if table in tables}
        return replace(self, batches=batches, failed=failed)


def plan(
    store: ObjectStore,
    limits: LoadLimits | None = None,
    cache: StateCache | None = None,
    restarts: MayRestart = lambda topics: True,
    blocks: FindBlocks | None = None,
    topics: TopicOptions = default_options,
) -> LoadPlan:
    """The next batch of every table, as `load` would submit it now. Changes nothing.

    ``restarts`` decides whether parked tables with files of some topics are tried again. ``blocks`` finds the topics
    whose files wait for a check. ``topics`` returns the options of topics that are extracted now.
    """
    cache, limits = cache or StateCache(store), limits or LoadLimits()
    view = read_view(cache, blocks or LoadBlocks(), survives_silence=True)
    now_ms = store.now_ms() if limits.jobs_per_day or _any_may_restart(view) else 0
    return plan_of_view(view, limits, now_ms, restarts, topics)


def plan_of_view(
    view: LoadView, limits: LoadLimits, now_ms: int, restarts: MayRestart, topics: TopicOptions
) -> LoadPlan:
    """Like `plan`, for a view that was read already."""
    found: list[LoadBatch | None] = []
    failed: dict[TableReference, KbqError] = {}
    for table in view.tables:
        try:
            found.append(_next_batch(view, table, limits, now_ms, restarts, topics))
        except (*UNUSABLE, TransientError) as error:
            failed[table] = error
    return LoadPlan(tuple(filter(None, found)), view.refused, view.unavailable, failed)


def _any_may_restart(view: LoadView) -> bool:
    states = (found.value for found in view.states.values() if isinstance(found, Versioned))
    return any(current.parked is not None and current.parked.reason in PARKINGS for current in states)


def _next_batch(
    view: LoadView,
    table: TableReference,
    limits: LoadLimits,
    now_ms: int,
    restarts: MayRestart,
    topics: TopicOptions,
) -> LoadBatch | None:
    current = view.state_of(table)
    if current.in_flight is not None or current.definition.replacing is not None:
        return None
    if current.parked is not None and not (
        parking_restarts(current.parked, lambda: now_ms) and restarts(topics_of(view.files(table)))
    ):
        return None
    if current.parked is None and current.order.why_held:
        return None
    files = in_turn(current, view.files(table), view.given_up)
    if limits.jobs_per_day:
        of_topics = topics(topics_of(files)).values()
        limits = limits_by(limits, {each.destination.partition_unit for each in of_topics})
    release = release_for(view, current, files, topics)
    batch = next_batch(table, current, files, limits, view.given_up, view.blocks, release)
    if batch and batches.job_wait(current.jobs.submitted, batch.files, limits, now_ms, len(view.states)):
        return None
    return batch


def load(
    ports: LoadPorts,
    options: LoadOptions | None = None,
    *,
    only: frozenset[TableReference] | None = None,
    on_table: Callable[[TableReport], None] = lambda report: None,
    cache: StateCache | None = None,
) -> LoadReport:
    """Load every table's pending files. One table's failure does not stop the others. Raises ConfigurationError if the
    store refuses all of many tables or commits."""
    started, options = ports.clock.monotonic(), options or LoadOptions()
    cache = cache or StateCache(ports.store)
    ports = replace(ports, store=guarded(ports.store, ports.clock.monotonic))
    cycle = _Cycle(ports, options, RunCache(cache, ports.clock.monotonic), on_table)
    with pool_of(options.concurrency, "kbq-load") as pool:
        cycle.run(only, pool)
    reports = sorted(cycle.reports, key=lambda report: report.table)
    seconds = ports.clock.monotonic() - started
    return LoadReport(
        tuple(reports), seconds, cycle.deleted_done_files, cycle.verdicts, cycle.refused, cycle.unavailable
    )


class _Cycle:
    """One run over all tables. Everything except the tables' turns happens in the calling thread."""

    def __init__(
        self,
        ports: LoadPorts,
        options: LoadOptions,
        cache: StateCache,
        on_table: Callable[[TableReport], None],
    ) -> None:
        self._ports = ports
        self._options = options
        self._cache = cache
        self._on_table = on_table
        self._loaders: dict[TableReference, TableLoader] = {}
        self._due: dict[TableReference, float] = {}
        self._waiting: set[TableReference] = set()
        self._running: dict[Future[Turn], TableReference] = {}
        self.reports: list[TableReport] = []
        self.verdicts: Verdicts = {}
        self.deleted_done_files = 0
        self.refused: Mapping[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self._ended: list[object] = []

    def run(self, only: frozenset[TableReference] | None, pool: Executor) -> None:
        """Run every table's turns until all have ended."""
        self._view = self._read_view()
        self.refused = self._view.refused
        for path, why in self.refused.items():
            _LOGGER.error("%s is not loaded: %s", path, why)
        tables = [table for table in self._view.tables if only is None or table in only]
        deadline = self._ports.clock.monotonic() + self._options.wait_seconds
        self._loaders = {t: TableLoader(self._ports, self._options, t, deadline) for t in tables}
        self._due = dict.fromkeys(tables, 0.0)
        self._create_states()
        while self._due or self._waiting:
            with self._ports.warehouse.session():
                self._take_turns(pool)
            if self._due:
                self._ports.clock.sleep(self._seconds_to_next())
        for finish in (self._clean_up, self._judge):
            try:
                finish()
            except KbqError:
                pass  # the next run does it
            except Exception as error:  # the rows are loaded: the report must reach the caller
                _LOGGER.error("after the load: %s", Defect.of(error), exc_info=error)

    def _read_view(self) -> LoadView:
        view = read_view(self._cache, self._options.blocks, survives_silence=True)
        for path, why in view.unavailable.items():
            if path not in self.unavailable:
                _LOGGER.warning("%s is not loaded now: %s", path, why)
            self.unavailable[path] = why
        return view

    def _take_turns(self, pool: Executor) -> None:
        """Run turns until no table can continue without a pause."""
        self._start(pool)
        while self._running or self._waiting:
            if self._running:
                self._collect()
            else:
                self._renew_view()
            self._start(pool)

    def _judge(self) -> None:
        self.verdicts = advance_tables(self._ports.store, self._view, self._options.topics)

    def _create_states(self) -> None:
        """Create the states of new tables. The next view shows them."""
        view = self._view
        new = [
            table
            for table in self._loaders
            if str(table) not in view.registry.active and not isinstance(view.states.get(table), KbqError)
        ]
        for table in new:
            del self._due[table]
        self._create(new)

    def _create(self, new: list[TableReference]) -> None:
        """Create states in two swaps of the registry. If that fails for a table, create them one by one."""
        try:
            state.create_table_states(self._ports.store, {table: self._ports.new_uuid() for table in new})
        except Exception as error:
            if isinstance(error, TransientError) or len(new) == 1:
                self._fail(new, Defect.of(error))
                return
            for table in new:
                self._create([table])
        else:
            self._waiting.update(new)

    def _start(self, pool: Executor) -> None:
        """Start the turns of due tables, up to the limit of concurrency."""
        now = self._ports.clock.monotonic()
        for table in sorted(self._due, key=lambda t: (self._due[t], t)):
            if self._due[table] > now or len(self._running) >= self._options.concurrency:
                break
            del self._due[table]
            self._running[pool.submit(self._loaders[table].advance, self._view)] = table

    def _collect(self) -> None:
        """Wait until a turn ends, and schedule its table's next one."""
        is_full = len(self._running) >= self._options.concurrency
        timeout = self._options.poll_seconds if is_full else self._seconds_to_next()
        done, _ = wait(self._running, timeout, FIRST_COMPLETED)
        for future in done:
            table, turn = self._running.pop(future), future.result()
            if turn == END:
                self._end(table)
            elif turn == NEXT_VIEW:
                self._waiting.add(table)
            else:
                self._due[table] = self._ports.clock.monotonic() + turn.seconds
        if not done and self._waiting:
            self._renew_view()  # do not wait for running turns: a search for bad files may take long

    def _seconds_to_next(self) -> float:
        now = self._ports.clock.monotonic()
        return max(0.0, min((due - now for due in self._due.values()), default=self._options.poll_seconds))

    def _renew_view(self) -> None:
        """Read a new view for tables whose state changed."""
        waiting, self._waiting = sorted(self._waiting), set()
        try:
            self._view = self._read_view()
        except KbqError as error:
            self._fail(waiting, error)
        else:
            self._due.update(dict.fromkeys(waiting, 0.0))

    def _fail(self, tables: Iterable[TableReference], error: KbqError) -> None:
        for table in tables:
            self._loaders[table].fail(error)
            self._end(table)

    def _end(self, table: TableReference) -> None:
        self.reports.append(self._loaders[table].report())
        self._on_table(self.reports[-1])
        self._ended.append(self._loaders[table].error)
        end_if_all(self._ended)

    def _clean_up(self) -> None:
        """Delete the done files of loaded files if higher ones exist (L4, L7). The clean-up retries failures."""
        finished = (file for loader in self._loaders.values() for file in loader.finished)
        loaded = frozenset(file.done for file in finished)
        names = list(list_done_files(self._ports.store)) if loaded else []
        superseded = superseded_done_files(names, frozenset(names) - loaded)
        failed = self._ports.store.delete_many([name.format() for name in superseded])
        self.deleted_done_files = len(superseded) - len(failed)
