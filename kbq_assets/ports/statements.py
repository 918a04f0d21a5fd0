"""Statements in a warehouse. A statement is one transaction that applies a batch and advances its target's ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import Dialect


@dataclass(frozen=True)
class StatementJob:
    """A transaction with a job id. It advances the target's ledger from the previous batch to ``batch``, which must
    change one row (S1), then runs ``sql`` in the warehouse's dialect. ``digest`` identifies the text."""

    job_id: str
    project: str
    location: str
    target: TableReference
    batch: int
    sql: str
    digest: str


class LedgerRow(NamedTuple):
    """The last batch in a target's ledger, whether an operator skipped it, and the digest of the applied or skipped
    statement."""

    batch: int
    skipped: bool = False
    digest: str = ""


class Statements(Protocol):
    """Guarantees, besides those of job ids (`ports.warehouse.Warehouse`):

    1. Ledger and target change in one transaction.
    2. A statement changes nothing unless the ledger is at the previous batch.
    3. Of a statement and a skip of the same batch, only one takes effect.

    A job's status may be an error although its transaction took effect. Only the ledger is reliable (S2).
    """

    dialect: Dialect

    def sql_name(self, table: TableReference) -> str:
        """A table's name in SQL."""

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        """Create an empty scratch table that listings of tables leave out; keep an existing one. Raises Unavailable."""

    def drop_scratch(self, table: TableReference) -> None:
        """Drop a scratch table. Does nothing if it does not exist. Raises Unavailable."""

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:
        """All scratch tables in a dataset. Raises Unavailable."""

    def open_ledger(self, target: TableReference) -> LedgerRow:
        """The ledger of a target; a new one starts at batch 0. Raises Unavailable."""

    def read_ledger(self, target: TableReference) -> LedgerRow | None:
        """The ledger of a target, None if it has none. Raises Unavailable."""

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        """Advance the ledger to ``batch`` without running its statement with this digest, unless the ledger is there
        already (S5). Returns the ledger after that. Raises Unavailable, UnknownOutcome."""

    def rows_of(self, sql: str, limit: int) -> list[str]:
        """The first rows of a query, each as text. Refuses statements that could change anything. Raises JobFailed if
        the warehouse refuses the text or the query fails, Unavailable."""

    def insert(self, job: StatementJob) -> None:
        """Submit a statement. Raises as `Warehouse.insert_job`."""

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        """The bytes that the warehouse would bill for a text; 0 if nothing is billed. Runs nothing. Raises JobFailed if
        the warehouse refuses the text, Unavailable."""

    def empty(self, columns: Iterable[Column]) -> str:
        """A query in parentheses with these columns and no rows, to stand in for a scratch table that does not exist
        yet."""
