"""A bench whose table A is changed by statements. In the fake warehouse each statement appends its batch."""

from __future__ import annotations

from typing import Any

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.pipelines.bench import A, Bench

UPSERT = StatementRule("upsert", ("x",))


class StatementBench(Bench):
    """``rule`` is that of every table but the error table's."""

    rule: StatementRule = UPSERT
    bytes_per_day = 0
    runs_statements = True

    def load(self, wait_seconds: float = 100.0, **options: Any) -> LoadReport:
        warehouse = self.warehouse.view("loader")
        if not self.runs_statements:
            warehouse.statements = None
        ports = LoadPorts(self.store.view("loader"), warehouse, self.clock)
        return load(ports, LoadOptions(self._options, wait_seconds, poll_seconds=10.0, **options))

    def _options(self, table: TableReference, topics: frozenset[str]) -> TableOptions:
        return TableOptions(rules=frozenset([self.rule]), bytes_per_day=self.bytes_per_day)

    def table(self) -> TableState:
        """The state of A."""
        return state.read(self.store, TableState, table_state_path(A)).value

    def land(self) -> None:
        """Every call that was late arrives, and no more call fails."""
        self.faults = lambda call: Outcome.OK
        for fake in (self.warehouse, self.store):
            while fake.late:
                fake.deliver_late()

    def scratch(self) -> list[str]:
        """Names of scratch tables."""
        return [table.table for table in self.warehouse.statements.scratch_tables(A.dataset)]


def staged(*schema_ids: int, **options: Any) -> StatementBench:
    """With a record of each schema, staged."""
    bench = StatementBench(**options)
    bench.produce(*schema_ids)
    bench.extract()
    return bench
