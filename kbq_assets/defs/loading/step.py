"""The load step. It reports tables, their pages and their checks as Dagster events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import dagster as dg
from dagster_pyspark import PySparkResource

from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference, commit_topic
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.defs import metadata
from kbq_assets.defs.events import in_batches
from kbq_assets.defs.loading.datasets import loaded_metadata
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import StepContext, StepEvents, or_else, parsed, register, state_checks
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.catalog.datasets import Datasets
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import TableStatus
from kbq_assets.ports.asset_checks import CheckEvaluation
from kbq_assets.worker.engines import open_writer


@dataclass(frozen=True)
class LoadStep:
    """Loads committed files, and yields the events. ``warehouse`` is the name of a warehouse without notices, "" for
    the first."""

    loader: Loader
    observer: Observer
    pages: Pages
    warehouse: str = ""

    @property
    def translator(self) -> AssetTranslator:
        return self.pages.translator

    def run(
        self, context: StepContext, pyspark: PySparkResource, chosen: Collection[str] | None = None
    ) -> StepEvents:
        """Load committed files. ``chosen`` are tables; None means everything. ``pyspark`` starts with the first large
        load job of a lake.

        Raises dagster.Failure if a table was not loaded because of a transient error, if the store refuses a commit, or
        if nothing chosen is a table. A parked table fails a check, not the run, except in a warehouse without notices.
        """
        keys = None if chosen is None else parsed(context, chosen, TableReference.parse)
        only = None if keys is None else frozenset(keys.values())
        settings = self.loader.deployment.settings
        tasks = partial(open_writer, settings, lambda: pyspark.spark_context)
        loader = replace(self.loader, open_tasks=tasks)
        report = loader.load(
            only=only,
            on_table=TableLog(context.log.info),
            checks=DagsterChecks(context.instance, self.translator),
        )
        unread = self._unread(context, report, only)
        yield from self._load_events(context, report, (only or frozenset()).difference(*unread.values()))
        lines = [f"{path} is not loaded: {report.unread[path]}" for path in unread]
        if lines := [*lines, *self._failures(report)]:
            raise dg.Failure("\n".join(lines), allow_retries=False)

    def _unread(
        self, context: StepContext, report: LoadReport, only: frozenset[TableReference] | None
    ) -> Mapping[str, frozenset[TableReference]]:
        """Commits that could not be read, each with the tables that its topic feeds. If tables are chosen, only commits
        that feed one of them."""
        if not report.unread:
            return {}
        nothing: Mapping[TableReference, frozenset[str]] = {}
        feeds = or_else(context, self.observer.feeds, nothing)
        found = {}
        for path in report.unread:
            topic = commit_topic(path)
            fed = frozenset(table for table, topics in feeds.items() if topic in topics)
            tables = fed.union(self.pages.fed_by(topic))
            if only is None or only & tables:
                found[path] = tables
        return found

    def _failures(self, report: LoadReport) -> list[str]:
        """Lines about tables that were not loaded."""
        states = ("blocked", "parked", "failed") if self.warehouse else ("failed",)
        failed = [t for t in report.tables if t.state in states]
        if failed:
            where = (
                f" into {self.warehouse}; next: kbq --warehouse {self.warehouse} status"
                if self.warehouse
                else ""
            )
            lines = [f"{t.table}: {t.message}" for t in failed]
            return [f"{counted(len(failed), 'table was', 'tables were')} not loaded{where}", *lines]
        return []

    def _load_events(
        self, context: StepContext, report: LoadReport, chosen: frozenset[TableReference]
    ) -> StepEvents:
        key = self.translator.warehouse_tables
        register(context, self.translator.table_partitions, _data_tables(report))
        yield from in_batches(context, self._table_events(context, report, chosen))
        yield dg.AssetObservation(key, metadata=metadata.load_metadata(report))
        yield from state_checks(context, self.observer, self.pages, Role.LOAD)
        context.log.info(metadata.load_headline(report))

    def _table_events(
        self, context: StepContext, report: LoadReport, chosen: frozenset[TableReference]
    ) -> Iterator[dg.AssetMaterialization]:
        """An event for each table that changed, and for each chosen table that was already up to date."""
        found: tuple[TableStatus, ...] = or_else(context, self.observer.tables, ())
        statuses = {status.table: status for status in found}
        known = or_else(context, self.loader.deployment.sources.datasets, Datasets({})).tables
        now_ms, settings = self.loader.deployment.clock.now_ms(), self.loader.deployment.settings
        for done in report.tables:
            if done.rows or done.quarantined or (done.state == "idle" and done.table in chosen):
                entries = loaded_metadata(
                    settings, done, statuses.get(done.table), known.get(done.table), now_ms
                )
                held_back = _held_back(report, done.table)
                yield dg.AssetMaterialization(
                    self.translator.dataset_key(done.table), metadata={**entries, **held_back}
                )
        # Nothing was ever staged for these tables. Without an event, their backfill would never end.
        for table in sorted(chosen.difference(t.table for t in report.tables)):
            nothing: metadata.Metadata = {"rows": 0, "state": "nothing is staged for it"}
            yield dg.AssetMaterialization(self.translator.dataset_key(table), metadata=nothing)


def _data_tables(report: LoadReport) -> list[str]:
    """The tables of a load that have complete hours."""
    return [str(done.table) for done in report.tables if not is_error_table(done.table)]


def _held_back(report: LoadReport, table: TableReference) -> dict[str, str]:
    """The partition or other cause that delays the next complete hour."""
    verdict = report.verdicts.get(table)
    return {"held_back_by": verdict.why} if verdict and verdict.why else {}


@dataclass
class TableLog:
    """Writes a line to the run's log for each table with a problem, and for only the first loaded ones: each line is a
    row in Dagster's database."""

    write: Callable[[str], object]
    left: int = metadata.SHOWN_LINES

    def __call__(self, table: TableReport) -> None:
        if not table.rows and table.state == "idle":
            return
        if table.state == "idle":
            self.left -= 1
            if self.left < 0:
                return
        message = f": {table.message}" if table.message else ""
        # A table that was loaded and has nothing left is idle, but its line is about this run.
        outcome = "loaded" if table.state == "idle" else table.state
        self.write(
            f"{table.table}: {outcome}, {counted(table.rows, 'row')} of {counted(table.files, 'file')}{message}"
        )


@dataclass(frozen=True)
class DagsterChecks:
    """Results of checks of tables' assets, from an instance's history."""

    instance: dg.DagsterInstance
    translator: AssetTranslator

    def latest(self, table: TableReference, check: str) -> CheckEvaluation | None:
        key = dg.AssetCheckKey(self.translator.dataset_key(table), check)
        try:
            record = self.instance.get_latest_asset_check_evaluation_record(key)
        except Exception as error:  # depends on the instance's database
            raise Unavailable(
                f"the result of the check {check} of {table} cannot be read from Dagster: {error}",
                next_step="the next load asks again",
            ) from error
        if record is None:
            return None
        found = record.evaluation
        if found is None:  # the check is planned, or ended without a result
            return CheckEvaluation(record.id)
        return CheckEvaluation(record.id, found.passed, found.description or f"the check {check} failed")
