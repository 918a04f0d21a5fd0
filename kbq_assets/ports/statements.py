"""Statements of a warehouse: one transaction that applies a batch and raises the ledger of its target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import Dialect


@dataclass(frozen=True)
class StatementJob:
    """A transaction under a job id: it raises the target's ledger from the batch before ``batch``, which must change
    one row (S1), then runs ``sql`` in the warehouse's dialect. ``digest`` identifies the text."""

    job_id: str
    project: str
    location: str
    target: TableReference
    batch: int
    sql: str
    digest: str


class LedgerRow(NamedTuple):
    """The last batch that the ledger of a target counts, whether an operator skipped it, and the digest of the
    statement that applied it, or that was skipped."""

    batch: int
    skipped: bool = False
    digest: str = ""


class Statements(Protocol):
    """Guarantees, besides those of job ids (`ports.warehouse.Warehouse`):

    1. Ledger and target change in one transaction, or neither does.
    2. A statement whose ledger is not at the batch before changes nothing.
    3. Of a statement and a skip of the same batch, one takes effect.

    A job's status may be an error although its transaction took effect: only the ledger says (S2).
    """

    dialect: Dialect

    def sql_name(self, table: TableReference) -> str:
        """A table's name in SQL."""

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        """Create an empty scratch table that no listing of tables shows; an existing one stays. Raises Unavailable."""

    def drop_scratch(self, table: TableReference) -> None:
        """Drop a scratch table. Does nothing if it does not exist. Raises Unavailable."""

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:
        """All scratch tables in a dataset. Raises Unavailable."""

    def open_ledger(self, target: TableReference) -> LedgerRow:
        """The ledger of a target; a new one starts at batch 0. Raises Unavailable."""

    def read_ledger(self, target: TableReference) -> LedgerRow | None:
        """The ledger of a target, None if it has none. Raises Unavailable."""

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        """Raise the ledger to ``batch`` without its statement of this digest, unless it is there (S5). Returns the
        ledger as it is then. Raises Unavailable, UnknownOutcome."""

    def rows_of(self, sql: str, limit: int) -> list[str]:
        """The first rows of a query, each as text. Changes nothing: any other statement is refused. Raises JobFailed if
        the warehouse refuses the text or the query fails, Unavailable."""

    def insert(self, job: StatementJob) -> None:
        """Submit a statement. Raises as `Warehouse.insert_job`."""

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        """The bytes that a text would be billed for; 0 if nothing is billed. Runs nothing. Raises JobFailed if the
        warehouse refuses the text, Unavailable."""

    def empty(self, columns: Iterable[Column]) -> str:
        """A query in parentheses that reads nothing, and has rows of these columns: in place of a scratch table that
        does not exist yet."""
