"""Compaction of the tables of one warehouse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbq_assets.core.compaction.model import CompactionPlan
from kbq_assets.core.errors import ConfigurationError, NotFound
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.ports.compaction import Compacts, OpenRewriter


@dataclass(frozen=True)
class Compactor:
    """Plans and compacts the tables of one warehouse."""

    deployment: Deployment
    open_rewriter: OpenRewriter

    @property
    def is_lake(self) -> bool:
        """Whether the warehouse has files to compact."""
        return isinstance(self.deployment.warehouse, Compacts)

    def chosen(self, names: Iterable[str]) -> tuple[TableReference, ...]:
        """The tables of these names, all tables for none. Raises ConfigurationError for a warehouse that is no lake,
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

    def compact(self, table: TableReference) -> CompactionReport:
        """Compact a table. An error of it is in the report."""
        return self._of(table).run()

    def _of(self, table: TableReference) -> TableCompaction:
        now_ms = self.deployment.clock.now_ms
        return TableCompaction(self._compacts().compaction, table, now_ms, self.open_rewriter)

    def _compacts(self) -> Compacts:
        warehouse = self.deployment.warehouse
        if isinstance(warehouse, Compacts):
            return warehouse
        raise ConfigurationError(
            "this warehouse has no files to compact: BigQuery and DuckDB keep their own storage in order",
            next_step="compact an iceberg: warehouse; kbq --warehouse NAME chooses one of several",
        )
