"""Reconciliation of one deployment, by records or only by counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Final

from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.observation import checks
from kbq_assets.core.observation.check_names import COUNTS_AGREE
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile import counts as counting
from kbq_assets.extras.reconcile import records
from kbq_assets.extras.reconcile.account import Expected
from kbq_assets.extras.reconcile.values import SAMPLE
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.ports.topics import TopicAdmin
from kbq_assets.worker.unit import WorkerPorts

#: Queries that BigQuery runs in parallel. A DuckDB file or a lake takes one.
QUERIES_AT_ONCE: Final = 8


@dataclass(frozen=True)
class Reconciler:
    """Compares the broker, the warehouse and, if there is one, the producers' log. Changes nothing."""

    deployment: Deployment
    open_source: Callable[[], RecordSource]
    open_expected: Callable[[], Callable[[TopicPartition], Expected | None]]
    open_worker: Callable[[], WorkerPorts]
    open_admin: Callable[[], TopicAdmin]

    def reconcile(self, only: frozenset[str] | None = None, values: str = SAMPLE) -> records.Reconciliation:
        """The account of every record. ``values`` of a sample of rows, of all, or of none are compared."""
        deployment = self.deployment
        ports = records.ReconcilePorts(
            deployment.load_store,
            deployment.offsets,
            self.open_source(),
            deployment.warehouse,
            self._count_ports(),
            self.open_worker,
            deployment.sources.read(),
            self.open_expected(),
            self._compacts,
        )
        return records.reconcile(ports, only=only, values=values)

    def _compacts(self, topic: str) -> bool:
        """Whether the broker compacts a topic; False if the credentials do not show it."""
        return "compact" in self._policies.get(topic, "")

    @cached_property
    def _policies(self) -> Mapping[str, str]:
        live = self.open_admin().topics()
        return {topic: found.setting("cleanup.policy") for topic, found in live.items()}

    def counts(
        self,
        selection: counting.CountSelection | None = None,
        *,
        on_table: Callable[[TableReference, int], None] = lambda table, tables: None,
    ) -> counting.CountReport:
        """Compare the warehouse's counts with those committed and loaded. Reads no record."""
        is_remote = isinstance(self.deployment.settings.warehouse, BigQueryProject)
        at_once = QUERIES_AT_ONCE if is_remote else 1
        return counting.reconcile_counts(self._count_ports(), selection, at_once=at_once, on_table=on_table)

    def _count_ports(self) -> counting.CountPorts:
        deployment = self.deployment
        options = deployment.sources.table_options()

        def first_kept(table: TableReference, topics: frozenset[str]) -> date | None:
            days = options(table, topics).expiry_days
            # The warehouse drops a day's rows `days` days after its beginning or its end, so one day less is safe.
            return self._today - timedelta(days - 1) if days else None

        return counting.CountPorts(
            deployment.load_store, deployment.offsets, deployment.warehouse, first_kept
        )

    def count_check(self) -> CheckResult:
        """A count of all rows, as one check."""
        report = self.counts()
        tables = len({count.table for count in report.tables})
        if report.accounted:
            return CheckResult(
                COUNTS_AGREE,
                "all tables",
                f"{counted(tables, 'table has', 'tables have')} what was loaded and committed",
            )
        return checks.failed(COUNTS_AGREE, "all tables", report.findings, ("kbq reconcile --counts",))

    @property
    def counted_since(self) -> date | None:
        """The first event date that Dagster's count reads; None for all. It uses the local clock, because an error of a
        day only costs some bytes."""
        days = self.deployment.settings.run.reconcile_days
        return self._today - timedelta(days) if days else None

    @property
    def _today(self) -> date:
        return datetime.fromtimestamp(self.deployment.clock.now_ms() / 1000, UTC).date()
