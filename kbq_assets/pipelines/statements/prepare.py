"""Prepares the statement of a batch: its rule, the columns and tables that it needs, and its SQL (PROTOCOL S7, S8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from datetime import date
from typing import Final

from kbq_assets.core.debezium import change_columns
from kbq_assets.core.errors import ConfigurationError, WrongOptions
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableChange, TableOptions, columns_of
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements import change_data
from kbq_assets.core.statements.keys import check_variants, key_columns
from kbq_assets.core.statements.rules import (
    DELETED,
    MARK,
    SCD2,
    UPSERT,
    VALID_FROM,
    VALID_TO,
    StatementRule,
    rule_of,
)
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.core.statements.switching import expected, is_unruled, rule_of_batch
from kbq_assets.core.statements.table_statements import BatchStatement
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.statements.tombstones import are_tombstones
from kbq_assets.core.statements.upsert import Upsert, deleted_columns, upsert_sql
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.loading.ports import topics_of
from kbq_assets.pipelines.loading.restaging import Fit
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.statements.statement_job import statement_job
from kbq_assets.ports.statements import LedgerRow, StatementJob, Statements

_EPOCH: Final = date(1970, 1, 1).toordinal()


def asked_rule(
    run: TableRun, view: LoadView, state: TableState, files: Iterable[StagedFile]
) -> StatementRule:
    """The rule that the topics of a table's loaded and pending ``files`` require. Raises WrongOptions."""
    topics = topics_fed(state, files)
    wanted = run.options.options(run.table, topics).rules
    if not wanted and is_unruled(state) and not is_error_table(run.table):
        wanted = view.committed_rules(topics)
    return _possible(run, rule_of(run.table, wanted, state.definition.statements.rule, expected(state)))


def topics_fed(state: TableState, files: Iterable[StagedFile]) -> frozenset[str]:
    """The topics of a table's loaded and pending files."""
    return topics_of(files) | {mark.partition("/")[0] for mark in state.marks}


def rule_for(
    run: TableRun, view: LoadView, state: TableState, files: Iterable[StagedFile], batch: LoadBatch
) -> StatementRule:
    """The rule for a batch of the pending ``files``. Raises WrongOptions."""
    return _possible(run, rule_of_batch(state, asked_rule(run, view, state, files), batch.files))


def _possible(run: TableRun, rule: StatementRule) -> StatementRule:
    if not rule.appends and run.ports.warehouse.statements is None:
        raise WrongOptions(
            f"{run.table}: load={rule.kind} needs statements, but the warehouse runs no statements",
            next_step="set load=append, or another warehouse for the topic",
        )
    return rule


def with_own_columns(change: TableChange, rule: StatementRule) -> TableChange:
    """The change of the table, including the columns that its rule adds."""
    known, wanted = {column.name for column in change.columns}, list[Column]()
    if rule.kind == SCD2:
        wanted.append(Column(VALID_FROM, "TIMESTAMP", description="The time of the record."))
        wanted.append(
            Column(VALID_TO, "TIMESTAMP", description="The time of the key's next record; null for the last.")
        )
    if not rule.appends and rule.deletes == MARK:
        wanted.append(Column(DELETED, "BOOL", description="Whether the record's key was deleted."))
    own = [column for column in wanted if column.name not in known]
    if not own:
        return change
    names = (column.name for column in own)
    return dataclasses.replace(change, columns=(*change.columns, *own), added=(*change.added, *names))


def statement_for(
    run: TableRun, state: TableState, rule: StatementRule, fitted: Fit
) -> BatchStatement | None:
    """The statement of a batch; None if the rule appends. The table must already have its columns. Raises
    ConfigurationError, Unavailable."""
    statements, known = run.ports.warehouse.statements, state.definition.statements
    if rule.appends or statements is None:
        return None
    text = text_for(run, state, rule, fitted)
    if rule.kind == UPSERT and rule.deletes != MARK:
        key = key_columns(run.table, rule.key, run.columns)
        run.ports.warehouse.create_table(deleted_table(run.table), deleted_columns(key), TableOptions())
    # The first batch reads the ledger's number (S7). Later ones have it in the state.
    number = (known.applied or statements.open_ledger(run.table).batch) + 1
    if (failed := state.definition.failed) is not None and failed.statement is not None:
        _check_not_skipped(run, statements, statement_job(statements, run.table, failed))
    return BatchStatement(number, rule, text)


def text_for(run: TableRun, state: TableState, rule: StatementRule, fitted: Fit) -> str:
    """The SQL of a batch's statement, over the columns ``run.columns``. Raises WrongOptions, Unavailable."""
    statements, known = run.ports.warehouse.statements, state.definition.statements
    assert statements is not None
    key_columns(run.table, rule.key, run.columns)
    versions = key_columns(run.table, filter(None, [rule.version]), run.columns, "version")
    for schema in fitted.schemas:
        check_variants(run.table, rule, columns_of(schema))
    if rule.kind == SCD2:
        _check_history(run, versions, fitted)
    if rule.kind == UPSERT:
        return _upsert(
            run, statements, rule, fitted, converts=known.converts, has_rows=any(state.rows.values())
        )
    name, days = statements.sql_name(run.table), _days(fitted, rule.within_days)
    tombstones = set(map(are_tombstones, fitted.schemas)) == {True}
    return text_of(Target(statements.dialect, rule, name, run.columns, known.converts, days, tombstones))


def _check_history(run: TableRun, versions: Iterable[Column], fitted: Fit) -> None:
    """Raise WrongOptions if the table or its records do not allow the columns of a history."""
    if wrong := [column for column in versions if column.type != "TIMESTAMP"]:
        raise WrongOptions(
            f"{run.table}: {wrong[0].name} has the type {wrong[0].type}, but a row is valid from a TIMESTAMP",
            next_step="correct `version`, or omit it",
        )
    names = {column.name.lower() for schema in fitted.schemas for column in columns_of(schema)}
    if own := sorted({VALID_FROM, VALID_TO} & names):
        raise WrongOptions(
            f"{run.table}: its records have a column {own[0]}, but load=scd2 writes it itself",
            next_step="rename the field, or choose another `load`",
        )


def _days(fitted: Fit, within: int) -> tuple[str, str] | None:
    """The first and the last event date of a batch, widened by ``within`` days; None if a file lists none."""
    files = [file for file in fitted.batch.files if file.rows]
    if not files or not all(file.dates for file in files):
        return None
    found = [day for file in files for day in file.dates]
    last = date.max.toordinal() - _EPOCH
    first, until = max(min(found) - within, 1 - _EPOCH), min(max(found) + within, last)
    return _iso(first), _iso(until)


def _iso(day: int) -> str:
    return date.fromordinal(_EPOCH + day).isoformat()


def _check_not_skipped(run: TableRun, statements: Statements, failed: StatementJob) -> None:
    """Raise ConfigurationError if only the ledger has a skip of the failed batch: other files must not get its number
    (S5)."""
    ledger = statements.read_ledger(run.table)
    if ledger == LedgerRow(failed.batch, True, failed.digest):
        raise ConfigurationError(
            f"{run.table}: its ledger counts batch {failed.batch} as skipped, but its state does not",
            next_step=f"kbq order skip {run.table} --batch {failed.batch} --reason TEXT completes the skip",
        )


def _upsert(
    run: TableRun,
    statements: Statements,
    rule: StatementRule,
    fitted: Fit,
    *,
    converts: bool,
    has_rows: bool,
) -> str:
    if len(set(map(are_tombstones, fitted.schemas))) > 1:
        raise WrongOptions(
            f"{run.table}: a batch has tombstones and other records, and its statement cannot distinguish them",
            next_step="set order=none: an upsert needs no order",
        )
    upsert = upsert_of(statements, run.table, rule, run.columns, fitted.schemas)
    if upsert.changes and converts and has_rows:
        raise WrongOptions(
            f"{run.table}: its rows are appended changes, which cannot become last states in place",
            next_step="set load=append, or choose another table for the topic and kbq reset to read it again",
        )
    partitions = {file.name.topic_partition for file in fitted.batch.files}
    return upsert_sql(dataclasses.replace(upsert, one_partition=len(partitions) == 1, converts=converts))


def upsert_of(
    statements: Statements,
    table: TableReference,
    rule: StatementRule,
    own: tuple[Column, ...],
    schemas: Collection[str],
) -> Upsert:
    """The upsert of a table with its ``own`` columns. The new rows have the staged ``schemas``, of tombstones or of
    other records."""
    staged = [columns_of(schema) for schema in schemas]
    names = {column.name for each in staged for column in each}
    of_changes = any(map(change_data.are_changes, staged))
    return Upsert(
        statements.dialect,
        rule,
        statements.sql_name(table),
        statements.sql_name(deleted_table(table)),
        own,
        tombstones=any(map(are_tombstones, schemas)),
        flag=change_columns.DELETED if of_changes else DELETED if DELETED in names else "",
        changes=of_changes,
    )
