"""Prepares a table for replayed rows, and renders the statement that applies them (PROTOCOL ER4 to ER6, ER8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import KbqError, PreconditionFailed, Refused, WrongOptions
from kbq_assets.core.errors_replay.tables import check_let_in, give_up_id, rule_for, shows_order
from kbq_assets.core.loading.origins import doubt, with_label
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableOptions, clusterable, columns_of, plan_table_change
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.ordering.transitions import let_in
from kbq_assets.core.protocol.names import TABLES, TableReference, table_state_path
from kbq_assets.core.replay.model import Phase
from kbq_assets.core.statements.change_data import are_changes
from kbq_assets.core.statements.keys import check_variants
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.upsert import effective_sql, upsert_sql
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.pipelines.replay.start import read_replays
from kbq_assets.pipelines.statements.prepare import upsert_of
from kbq_assets.ports.errors_replay import REPLAYED_AT, ReplayStatement
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse

_MARK: Final = Column(
    REPLAYED_AT, "TIMESTAMP", description="When the bad record was replayed (kbq errors replay)."
)


@dataclass(frozen=True)
class TargetPorts:
    """The ports that a table's preparation needs. ``options`` returns the options of a table that some topics feed."""

    store: ObjectStore
    warehouse: Warehouse
    options: Callable[[TableReference, frozenset[str]], TableOptions]


def prepare(
    ports: TargetPorts,
    table: TableReference,
    schema: str,
    topic: str,
    *,
    is_ordered: bool,
    entry: AuditEntry | None = None,
) -> ReplayStatement | None:
    """Create or alter the table for rows of a staged schema; return the statement that applies them, or None if they
    are appended.

    ``is_ordered``: whether the topic has an order. ``entry``: the decision to add rows out of order; it is stored in
    the table's state first (ER8). Raises Refused if the table belongs to another staging area, is gone, or cannot have
    replayed rows; IncompatibleColumn.
    """
    store, warehouse = ports.store, ports.warehouse
    current = _table_state(store, table)
    known = current.value if current else TableState("")
    options = ports.options(table, frozenset({topic}) | {mark.partition("/")[0] for mark in known.marks})
    changes, lets_in = are_changes(columns_of(schema)), entry is not None
    rule = rule_for(table, known, options.rules, is_ordered=is_ordered, are_changes=changes, lets_in=lets_in)
    staging_id = state.table_registry(store).staging_id
    stored = warehouse.find_table(table)
    if (found := doubt(known, stored, staging_id, store.uri(TABLES))) is not None:
        raise Refused(f"{table}: {found.reason}: {found.text}", next_step="kbq load parks the table")
    _check_records(table, rule, schema)
    _check_accepted(store, table)
    change = plan_table_change(schema, stored.columns if stored else None)
    columns = with_mark(change.columns)
    if stored is None:
        warehouse.create_table(table, columns, clusterable(with_label(options, staging_id), columns))
    elif change or columns != change.columns:
        warehouse.update_columns(table, columns)
    if rule.appends and entry is not None and shows_order(known, is_ordered=is_ordered):
        _let_in(store, table, entry, is_ordered=is_ordered)
    if rule.appends or current is None:
        return None
    _fence(store, table, current)
    return _statement(warehouse, table, rule, columns, schema, known.definition.statements.applied)


def _let_in(store: ObjectStore, table: TableReference, entry: AuditEntry, *, is_ordered: bool) -> None:
    def change(now: TableState) -> TableState:
        check_let_in(table, now, is_ordered=is_ordered, lets_in=True)
        return let_in(now, entry)

    decide(store, table, change)


def _check_records(table: TableReference, rule: StatementRule, schema: str) -> None:
    """Raise Refused if the records lack a column that the table's statement needs."""
    try:
        check_variants(table, rule, columns_of(schema))
    except WrongOptions as error:
        raise Refused(error.message, next_step=error.next_step) from error


def _check_accepted(store: ObjectStore, table: TableReference) -> None:
    """Raise Refused while a promotion of the table can be rolled back.

    In an upsert table, the rollback would not restore a row that a promoted one had kept out (R11). In other tables, it
    would remove the replayed row, and count it as a row of a load.
    """
    own = (each for each in read_replays(store) if each.warehouse == warehouse_of(store))
    for each in own:
        if each.phase == Phase.PROMOTED and str(table) in each.tables:
            raise Refused(
                f"{table}: replay {each.number} can still be rolled back",
                next_step=f"kbq replay accept {each.number}, then kbq errors replay",
            )


def with_mark(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns, with the column for the time of the replay."""
    return columns if any(c.name == REPLAYED_AT for c in columns) else (*columns, _MARK)


def _fence(store: ObjectStore, table: TableReference, current: Versioned[TableState]) -> None:
    """Swap the state, so a loader that read the columns before our change loses its swap and reads them again. Raises
    Refused if the state changed meanwhile."""
    try:
        state.swap(store, current, give_up_id(current.value))
    except PreconditionFailed as error:
        raise Refused(f"{table} was loaded meanwhile", next_step="run it again") from error


def _statement(
    warehouse: Warehouse,
    table: TableReference,
    rule: StatementRule,
    columns: tuple[Column, ...],
    schema: str,
    batch: int,
) -> ReplayStatement:
    assert warehouse.statements is not None
    upsert = upsert_of(warehouse.statements, table, rule, columns, [schema])
    upsert = dataclasses.replace(upsert, one_partition=True)  # all rows are of one partition
    return ReplayStatement(batch, upsert_sql(upsert), effective_sql(upsert))


def _table_state(store: ObjectStore, table: TableReference) -> Versioned[TableState] | None:
    try:
        return state.find(store, TableState, table_state_path(table))
    except KbqError as error:
        raise Refused(f"the state of {table} cannot be read: {error.message}") from error
