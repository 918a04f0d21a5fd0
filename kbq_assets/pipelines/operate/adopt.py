"""`kbq adopt`: takes over a table with another staging area's rows, or gives up one that is gone (PROTOCOL L12)."""

from __future__ import annotations

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading import origins, table_state
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TABLES, TableReference, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements import steps
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.ordering.decisions import read_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse


def propose(store: ObjectStore, warehouse: Warehouse, table: TableReference) -> Proposal:
    """Feed a table from this staging area from now on, or continue without one that is gone (L12)."""
    path, staging_id = table_state_path(table), state.table_registry(store).staging_id
    current = read_table(store, table)
    if current.parked is not None and current.parked.reason == ParkReason.LEDGER_DIFFERS:
        return _follow_ledger(store, warehouse, table, current.parked.error)
    found = origins.doubt(current, warehouse.find_table(table), staging_id, store.uri(TABLES))
    if found is None:
        raise Refused(f"table {table} belongs to this staging area", next_step=f"kbq resume --table {table}")
    if found.reason == ParkReason.TABLE_GONE:
        _check_parked(current, table)
        topics = sorted({key.partition("/")[0] for key in current.rows})
        lines = (
            found.text,
            "later records go into a new table; the lost rows still count as loaded",
            *(f"to load again what Kafka still has: kbq reset --topic {topic}" for topic in topics),
        )

        def give_up() -> None:
            state.change(store, TableState, path, table_state.give_up_rows)

        return Proposal(f"continue without the lost rows of table {table}", lines, give_up)

    def adopt() -> None:
        warehouse.update_columns(table, (), origins.labelled(TableNotes(), staging_id))
        state.change(store, TableState, path, table_state.unpark)

    lines = (
        found.text,
        "records that the table already has become visible twice if this staging area staged them too",
        "the staging area that fed the table stops when it loads again",
    )
    return Proposal(f"feed table {table} from this staging area", lines, adopt)


def _check_parked(current: TableState, table: TableReference) -> None:
    """Raise Refused if no load has found the table gone, because then its rows cannot be given up yet."""
    why = current.parked.reason if current.parked is not None else None
    if why != ParkReason.TABLE_GONE:
        resume = f"kbq resume --table {table}, " if why else ""
        raise Refused(
            f"table {table} does not exist, but no load has parked it for that reason",
            next_step=f"{resume}kbq load --table {table}, then this command again",
        )


def _follow_ledger(store: ObjectStore, warehouse: Warehouse, table: TableReference, why: str) -> Proposal:
    """Continue the numbering of batches from the table's ledger (S7). If the ledger is gone, it begins again."""
    statements = warehouse.statements
    if statements is None:
        raise Refused(f"{table}: the warehouse does not run statements", next_step="correct KBQ_WAREHOUSE")

    def follow() -> None:
        batch = statements.open_ledger(table).batch
        state.change(store, TableState, table_state_path(table), lambda now: steps.follow_ledger(now, batch))

    lines = (why, "the batch in flight is applied again; an upsert that was applied before does not change")
    return Proposal(f"continue the batch numbers of table {table} from its ledger", lines, follow)
