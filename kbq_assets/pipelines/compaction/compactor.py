"""Compaction and expiry of the tables of one warehouse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from kbq_assets.core.compaction.expiry import ExpiryPlan, plan_expiry
from kbq_assets.core.compaction.model import ChosenFiles, CompactionPlan
from kbq_assets.core.errors import ConfigurationError, NotFound
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.compaction.expiry import ExpiryReport, expire_table
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction, existing_view
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.observation.accounting import loaded_rows
from kbq_assets.pipelines.observation.lake_readers import OpenReaders, follow_lake
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.compaction import Compacts, OpenRewriter


@dataclass(frozen=True)
class Compactor:
    """Compacts the tables of one warehouse, and drops what they need not keep. ``open_readers`` opens the port that
    lets BigQuery's tables of a lake read new files; without it, they keep reading the old ones."""

    deployment: Deployment
    open_rewriter: OpenRewriter
    open_readers: OpenReaders | None = None

    @property
    def is_lake(self) -> bool:
        return isinstance(self.deployment.warehouse, Compacts)

    def chosen(self, names: Iterable[str]) -> tuple[TableReference, ...]:
        """The named tables; all tables for no names. Raises ConfigurationError if the warehouse is not a lake,
        NotFound."""
        wanted = tuple(TableReference.parse(name) for name in names)
        self._compacts()
        known = self.deployment.warehouse.tables()
        if unknown := sorted(str(table) for table in wanted if table not in known):
            raise NotFound(
                f"the lake has no table {', '.join(unknown)}", next_step="kbq status lists the tables"
            )
        return wanted or known

    def plan(self, table: TableReference) -> CompactionPlan:
        """What `compact` would do. Raises NotFound, Unavailable, ConfigurationError."""
        return self._of(table).plan()

    def compact(self, table: TableReference, chosen: ChosenFiles | None = None) -> CompactionReport:
        """Compact a table, or its ``chosen`` files regardless of its policy. An error is in the report."""
        report = self._of(table, chosen).run()
        follow_lake(self.deployment, self.open_readers, (table,) if report.commits else ())
        return report

    def plan_expiry(self, table: TableReference) -> ExpiryPlan:
        """The rows that `expire` would drop. Raises NotFound, Unavailable, ConfigurationError."""
        view = existing_view(self._compacts().compaction, table)
        return plan_expiry(view, self._days(table), self._now_ms())

    def expire(self, table: TableReference) -> ExpiryReport:
        """Drop a table's old rows, snapshots and orphans. An error is in the report."""
        report = expire_table(self._compacts().compaction, table, self._days(table), self._now_ms())
        is_changed = report.rows or report.tidied.snapshots
        follow_lake(self.deployment, self.open_readers, (table,) if is_changed else ())
        return report

    def _days(self, table: TableReference) -> int:
        """Days for which a table keeps rows, by its topics' `partition_expiry_days`; 0 for all rows."""
        return self._options_of(table).expiry_days

    def _options_of(self, table: TableReference) -> TableOptions:
        """The options that the topics of a table set; the defaults for a table that KBQ did not load."""
        found = state.find(self.deployment.load_store, TableState, table_state_path(table))
        topics = frozenset(range_.topic for range_ in loaded_rows(found.value)) if found else frozenset()
        return self._options(table, topics) if topics else TableOptions()

    @cached_property
    def _options(self) -> Callable[[TableReference, frozenset[str]], TableOptions]:
        return self.deployment.sources.table_options()

    def _now_ms(self) -> int:
        return self.deployment.clock.now_ms()

    def _of(self, table: TableReference, chosen: ChosenFiles | None = None) -> TableCompaction:
        compaction = self._compacts().compaction
        return TableCompaction(
            compaction,
            table,
            self._now_ms,
            self.open_rewriter,
            chosen,
            lambda: self._options_of(table).compaction,
        )

    def _compacts(self) -> Compacts:
        warehouse = self.deployment.warehouse
        if isinstance(warehouse, Compacts):
            return warehouse
        raise ConfigurationError(
            "this warehouse has no files to compact or expire: BigQuery and DuckDB maintain their own storage",
            next_step="choose an iceberg: warehouse; kbq --warehouse NAME chooses one of several",
        )
