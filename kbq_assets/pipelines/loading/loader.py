"""Loading on one deployment, with the loader's credentials: each method is one bounded run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from kbq_assets.core.config.locations import BigQueryProject, LakeAddress
from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import KbqError, NotFound, Unavailable
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.merging import MERGE_FILES
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import SourceLines
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading import load as loading
from kbq_assets.pipelines.loading.completeness import advance_tables
from kbq_assets.pipelines.loading.completeness_table import publish_hours
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.observation.lake_readers import TICK_SECONDS, OpenReaders, follow_lake
from kbq_assets.pipelines.observation.pending import is_quick
from kbq_assets.pipelines.observation.pending_loads import PendingLoads, poll_loads
from kbq_assets.pipelines.observation.run_log import RunLog
from kbq_assets.pipelines.statements.plan import StatementPlan, statement_plan
from kbq_assets.pipelines.statements.switches import planned_switch
from kbq_assets.ports.asset_checks import AssetChecks
from kbq_assets.ports.load_tasks import LoadsByTasks, OnDemandTasks, OpenTasks
from kbq_assets.ports.warehouse import Warehouse

#: Tables whose jobs are submitted and polled in parallel on BigQuery; DuckDB has one writer.
LOADS_AT_ONCE: Final = 16

_LOGGER: Final = logging.getLogger("kbq.staging")


@dataclass(frozen=True)
class Loader:
    """Plans and runs loads.

    ``publishes_hours``: whether a load also writes the tables of complete hours. ``open_tasks`` opens the tasks that
    write the files of a lake's large load jobs; without it, this process writes them. ``open_readers`` opens the port
    that lets BigQuery's tables of a lake read new rows; without it, they keep reading the old ones.
    """

    deployment: Deployment
    publishes_hours: bool = True
    open_tasks: OpenTasks | None = None
    open_readers: OpenReaders | None = None

    def chosen(self, tables: Iterable[str]) -> frozenset[TableReference] | None:
        """The tables that a user named; None for no names. Raises NotFound if one never had staged files, and
        Unavailable if the store does not give a commit that may have some."""
        wanted = frozenset(map(TableReference.parse, tables))
        if not wanted:
            return None
        view = read_view(self.deployment.load_cache, survives_silence=True)
        unknown = ", ".join(sorted(map(str, wanted - set(view.tables))))
        if unknown and view.unavailable:
            why = next(iter(view.unavailable.values()))
            raise Unavailable(f"{unknown}: it is not known whether anything is staged: {why}")
        if unknown:
            raise NotFound(
                f"nothing was ever staged for {unknown}",
                next_step="kbq status lists the tables",
            )
        return wanted

    def plan(self) -> loading.LoadPlan:
        """The batches that `load` would load next."""
        deployment = self.deployment
        return loading.plan(
            deployment.load_store,
            deployment.warehouse.limits,
            deployment.load_cache,
            deployment.sources.restarts,
            deployment.blocks,
            deployment.sources.select,
        )

    def load(
        self,
        *,
        only: frozenset[TableReference] | None = None,
        on_table: Callable[[loading.TableReport], None] = lambda report: None,
        checks: AssetChecks | None = None,
    ) -> loading.LoadReport:
        """Load committed files. ``checks`` are the orchestrator's, if it runs the load."""
        deployment = self.deployment
        deployment.check_staging(Role.LOAD)
        deployment.register_warehouses()
        with self._warehouse() as warehouse:
            ports = replace(self._ports(), checks=checks, warehouse=warehouse)
            report = loading.load(
                ports, self._options(), only=only, on_table=on_table, cache=deployment.load_cache
            )
        RunLog(deployment.load_store, deployment.clock).end_loading(report)
        changed = {table.table for table in report.tables if table.rows}
        try:
            if self.publishes_hours:
                changed |= self._publish_hours()
        except KbqError as error:  # the rows are loaded, so the report must reach the caller
            _LOGGER.warning("the next load publishes the hours: %s", error.message)
        follow_lake(deployment, self.open_readers, changed)
        return report

    @contextmanager
    def _warehouse(self) -> Iterator[Warehouse]:
        """The warehouse. The large jobs of a lake run as tasks."""
        warehouse, settings = self.deployment.warehouse, self.deployment.settings
        place, from_mb = settings.warehouse, settings.spark.lake_mb
        is_shared = settings.spark.is_local or not (isinstance(place, LakeAddress) and place.folder)
        if self.open_tasks is None or not from_mb or not is_shared or not isinstance(warehouse, LoadsByTasks):
            yield warehouse
            return
        with OnDemandTasks(self.open_tasks) as tasks:
            yield warehouse.by_tasks(tasks, from_mb << 20)

    def poll(self, start: str = "") -> PendingLoads:
        """Whether a load would do anything. If very much is staged, it is polled page by page."""
        deployment = self.deployment
        return poll_loads(
            deployment.load_cache,
            deployment.warehouse.limits,
            deployment.clock.monotonic,
            start=start,
            restarts=deployment.sources.restarts,
            blocks=deployment.blocks,
            topics=deployment.sources.select,
        )

    def advance_hours(self) -> None:
        """Write the hours that are complete now to the states, as a load does at its end. Loads nothing.

        If very much is staged, this is left to the next load. Raises Unavailable, after it judged all other tables, if
        the store does not give a commit now.
        """
        deployment = self.deployment
        deployment.check_staging(Role.LOAD)
        if not is_quick(deployment.load_store):
            return
        view = read_view(deployment.load_cache, deployment.blocks, survives_silence=True)
        advance_tables(deployment.load_store, view, deployment.sources.known)
        follow_lake(deployment, self.open_readers, self._publish_hours(), TICK_SECONDS)
        for path, why in view.unavailable.items():
            raise Unavailable(f"the tables of {path} wait: {why}")

    def _publish_hours(self) -> set[TableReference]:
        pause_ms = self.deployment.settings.run.hours_seconds * 1000
        view = read_view(self.deployment.load_cache, survives_silence=True)
        return publish_hours(self._ports(), view, pause_ms)

    def plan_statements(
        self, planned: Iterable[LoadBatch], only: frozenset[TableReference] | None = None
    ) -> list[StatementPlan]:
        """The statements of the next batches, of all tables or of ``only`` some."""
        view = read_view(self.deployment.load_cache, survives_silence=True)
        ports, options = self._ports(), self._options()
        batches, found = {batch.table: batch for batch in planned}, list[StatementPlan | None]()
        for table in view.tables:
            if only is None or table in only:
                run = TableRun(ports, options, table, math.inf)
                try:
                    found.append(statement_plan(run, view, view.state_of(table), batches.get(table)))
                except KbqError as error:  # its load reports it too
                    found.append(StatementPlan(table, "", 0, "", None, error.message, 0, 0))
        return [each for each in found if each is not None]

    def plan_switches(self, only: frozenset[TableReference] | None = None) -> dict[TableReference, str]:
        """Changes of the `load` option that still wait after the next load, of all tables or of ``only`` some."""
        view = read_view(self.deployment.load_cache, survives_silence=True)
        ports, options = self._ports(), self._options()
        found = dict[TableReference, str]()
        for table in view.tables:
            if only is None or table in only:
                with suppress(KbqError):  # its load reports it
                    run = TableRun(ports, options, table, math.inf)
                    found[table] = planned_switch(run, view, view.state_of(table))
        return {table: words for table, words in found.items() if words}

    def _options(self) -> loading.LoadOptions:
        deployment, run = self.deployment, self.deployment.settings.run
        lines = SourceLines(deployment.sources.read())
        return loading.LoadOptions(
            options=deployment.sources.table_options(lines),
            wait_seconds=run.load_wait_seconds,
            poll_seconds=run.poll_seconds,
            # For DuckDB and Iceberg, this process does the work: one table at a time limits its memory.
            concurrency=LOADS_AT_ONCE if isinstance(deployment.settings.warehouse, BigQueryProject) else 1,
            restarts=deployment.sources.restarts,
            blocks=deployment.blocks.since(lines.unknown),
            topics=deployment.sources.known,
            merge_files=MERGE_FILES,
        )

    def _ports(self) -> loading.LoadPorts:
        deployment = self.deployment
        return loading.LoadPorts(deployment.load_store, deployment.warehouse, deployment.clock)
