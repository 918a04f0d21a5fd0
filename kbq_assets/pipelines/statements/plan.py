"""The statements of the next batches, as a load would generate them, and their billed bytes. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.table_state import TableState, next_job_id
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.keys import key_columns
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.side_tables import deleted_table, scratch_table
from kbq_assets.core.statements.sql_tokens import split
from kbq_assets.core.statements.table_statements import SCRATCH, BatchStatement, excess
from kbq_assets.core.statements.upsert import deleted_columns
from kbq_assets.pipelines.loading.restaging import fit
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.statements import prepare
from kbq_assets.pipelines.statements.limits import today
from kbq_assets.ports.statements import Statements


@dataclass(frozen=True)
class StatementPlan:
    """The statement of a table's next batch. ``bytes`` would be billed; if None, ``unknown`` is the reason. ``used``
    bytes were billed today, and ``limit`` is the maximum per day (0: none)."""

    table: TableReference
    kind: str
    batch: int
    sql: str
    bytes: int | None
    unknown: str
    used: int
    limit: int

    @property
    def excess(self) -> str:
        """The reason why a load would not run it today; "" if it would."""
        return excess(self.bytes or 0, self.used, self.limit)


def statement_plan(
    run: TableRun, view: LoadView, state: TableState, batch: LoadBatch | None
) -> StatementPlan | None:
    """The plan of the statement in flight, or of the statement of a possible next batch; None if there is none. Raises
    ConfigurationError for options that contradict the table, Unavailable."""
    statements, entry = run.ports.warehouse.statements, state.in_flight
    if statements is None:
        return None
    if entry is None and batch is None:
        entry = state.definition.failed
    if entry is not None and entry.statement is not None:
        own, files = entry.statement, entry.files
        scratch = own.scratch(run.table, entry.job_id)
        measured = own.sql(_rows_of(run, statements, scratch))
    elif entry is None and batch is not None:
        rule, files = prepare.rule_for(run, view, state, batch.files, batch), batch.files
        if rule.appends:
            return None
        text, measured = _texts(run, statements, state, batch, rule)
        own = BatchStatement(state.definition.statements.applied + 1, rule, text)
        scratch = scratch_table(run.table, next_job_id(state))
    else:
        return None
    cost, unknown = _billed(run, statements, measured)
    limit = run.table_options(files).bytes_per_day
    used = state.definition.statements.billed_on(today(run)) if limit else 0
    sql = own.sql(statements.sql_name(scratch))
    return StatementPlan(run.table, own.rule.kind, own.number, sql, cost, unknown, used, limit)


def _rows_of(run: TableRun, statements: Statements, scratch: TableReference) -> str:
    """SQL for the rows of a scratch table, or for no rows until it exists."""
    warehouse = run.ports.warehouse
    if warehouse.columns(scratch) is not None:
        return statements.sql_name(scratch)
    return statements.empty(warehouse.columns(run.table) or ())


def _texts(
    run: TableRun, statements: Statements, state: TableState, batch: LoadBatch, rule: StatementRule
) -> tuple[str, str]:
    """The SQL of a batch, and the SQL of a dry run over existing columns and tables; the latter is "" without a
    table."""
    warehouse = run.ports.warehouse
    stored = warehouse.columns(run.table)
    fitted = fit(run.ports.store, batch, stored, may_vary=lambda: False, attempt="")
    run.columns = prepare.with_own_columns(fitted.change, rule).columns
    text = prepare.text_for(run, state, rule, fitted)
    if stored is None:
        return text, ""
    columns, run.columns = run.columns, stored
    measured = prepare.text_for(run, state, rule, fitted).replace(SCRATCH, statements.empty(columns))
    return text, _without_missing(run, statements, rule, columns, measured)


def _without_missing(
    run: TableRun, statements: Statements, rule: StatementRule, columns: tuple[Column, ...], sql: str
) -> str:
    """The SQL, without the table of deleted keys if that does not exist yet."""
    table = deleted_table(run.table)
    name = statements.sql_name(table)
    if name not in sql or run.ports.warehouse.columns(table) is not None:
        return sql
    nothing = statements.empty(deleted_columns(key_columns(run.table, rule.key, columns)))
    kept = (each for each in split(sql, statements.dialect) if not each.startswith(f"MERGE INTO {name}"))
    return ";\n".join(kept).replace(name, nothing)


def _billed(run: TableRun, statements: Statements, sql: str) -> tuple[int | None, str]:
    if not sql:
        return 0, "the table does not exist yet"
    try:
        return statements.bytes_billed(sql, run.ports.warehouse.project, run.ports.warehouse.location), ""
    except JobFailed as error:
        return None, error.message
