"""Statements in the fake warehouse: each appends the scratch table that its text names to its target.

So a batch that is applied twice shows as doubled rows. ``errors`` is asked when a statement runs: it may end it with an
error, before its transaction (`Failure.BEFORE`) or after its COMMIT (`Failure.AFTER`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import DUCKDB, Dialect
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX
from kbq_assets.ports.statements import LedgerRow, StatementJob
from kbq_assets.ports.warehouse import JobError

if TYPE_CHECKING:
    from kbq_assets_tests.fakes.warehouse import FakeWarehouse, Row, WarehouseView


class Failure(enum.Enum):
    """When a statement fails."""

    BEFORE = "before its transaction"
    AFTER = "after its COMMIT"


class FakeStatements:
    """The `Statements` port in memory."""

    dialect: Dialect = DUCKDB

    def __init__(self, warehouse: FakeWarehouse) -> None:
        self._warehouse = warehouse
        self.ledgers: dict[TableReference, LedgerRow] = {}
        self.errors: Callable[[StatementJob], tuple[JobError, Failure] | None] | None = None
        #: this many inserts are refused
        self.refuse = 0
        #: what a query returns
        self.bad_rows: Callable[[str], list[str]] = lambda sql: []
        #: the batches of the statements that took effect, per target
        self.applied: dict[TableReference, list[int]] = {}
        #: their rows: all others were appended
        self.rows: dict[TableReference, set[Row]] = {}
        #: ids of their jobs, with any status
        self.committed: set[str] = set()
        #: what a dry run says, and what each statement is billed
        self.price = 0

    def sql_name(self, table: TableReference) -> str:
        return f'"{table.dataset}"."{table.table}"'

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        self._warehouse.create_table(table, columns, TableOptions())

    def drop_scratch(self, table: TableReference) -> None:
        self._warehouse.stored.pop(table, None)

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:
        stored = sorted(self._warehouse.stored)
        return tuple(t for t in stored if t.dataset == dataset and t.table.startswith(SCRATCH_PREFIX))

    def open_ledger(self, target: TableReference) -> LedgerRow:
        return self.ledgers.setdefault(target, LedgerRow(0))

    def read_ledger(self, target: TableReference) -> LedgerRow | None:
        return self.ledgers.get(target)

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        if (found := self.ledgers.get(target)) is not None and found.batch == batch - 1:
            self.ledgers[target] = LedgerRow(batch, True, digest)
        return self.ledgers.get(target)

    def rows_of(self, sql: str, limit: int) -> list[str]:
        return self.bad_rows(sql)[:limit]

    def insert(self, job: StatementJob) -> None:
        if self.refuse:
            self.refuse -= 1
            raise JobFailed("the text is refused", next_step="correct it")
        self._warehouse.insert_statement(job)

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        return self.price

    def empty(self, columns: Iterable[Column]) -> str:
        return f"({', '.join(column.name for column in columns)})"

    def run(self, job: StatementJob) -> JobError | None:
        """Run a statement that was inserted, all or nothing; the error that its status shows."""
        error, when = (self.errors and self.errors(job)) or (None, Failure.BEFORE)
        if error is not None and when is Failure.BEFORE:
            return error
        stored, ledger = self._warehouse.stored, self.ledgers.get(job.target)
        if ledger is None or ledger.batch != job.batch - 1:
            return JobError("ledger", f"the ledger is {ledger}, not {job.batch - 1}", transient=False)
        scratch = [t for t in stored if t.table.startswith(SCRATCH_PREFIX) and self.sql_name(t) in job.sql]
        if len(scratch) != 1 or job.target not in stored:
            return JobError("notFound", f"no scratch table of {job.target}", transient=False)
        self._warehouse.append_rows(job.target, stored[scratch[0]])
        self.rows.setdefault(job.target, set()).update(stored[scratch[0]].rows)
        self.ledgers[job.target] = LedgerRow(job.batch, False, job.digest)
        self.applied.setdefault(job.target, []).append(job.batch)
        self.committed.add(job.job_id)
        return error


class StatementsView:
    """One process's `Statements`: every call is announced to the fault plan first."""

    dialect: Dialect = DUCKDB

    def __init__(self, statements: FakeStatements, view: WarehouseView) -> None:
        self._statements = statements
        self._view = view

    def sql_name(self, table: TableReference) -> str:
        return self._statements.sql_name(table)

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        wanted = tuple(columns)
        self._view.write("create_scratch", str(table), lambda: self._statements.create_scratch(table, wanted))

    def drop_scratch(self, table: TableReference) -> None:
        self._view.write("drop_scratch", str(table), lambda: self._statements.drop_scratch(table))

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:
        return self._view.read("scratch_tables", dataset, lambda: self._statements.scratch_tables(dataset))

    def open_ledger(self, target: TableReference) -> LedgerRow:
        self._view.write("open_ledger", str(target), lambda: self._statements.open_ledger(target))
        found = self.read_ledger(target)
        assert found is not None
        return found

    def read_ledger(self, target: TableReference) -> LedgerRow | None:
        return self._view.read("read_ledger", str(target), lambda: self._statements.read_ledger(target))

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        self._view.write("skip", f"{target} {batch}", lambda: self._statements.skip(target, batch, digest))
        return self.read_ledger(target)

    def rows_of(self, sql: str, limit: int) -> list[str]:
        return self._view.read("rows_of", sql, lambda: self._statements.rows_of(sql, limit))

    def insert(self, job: StatementJob) -> None:
        self._view.write("insert_statement", job.job_id, lambda: self._statements.insert(job))

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        return self._view.read("bytes_billed", sql, lambda: self._statements.price)

    def empty(self, columns: Iterable[Column]) -> str:
        return self._statements.empty(columns)
