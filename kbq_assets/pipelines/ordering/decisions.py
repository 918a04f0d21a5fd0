"""Decisions about a table's batches, in its state (PROTOCOL O6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kbq_assets.core.errors import NotFound
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.table_order import AuditChunk
from kbq_assets.core.protocol.names import TableReference, audit_path, table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.archives import write_archive
from kbq_assets.ports.object_store import ObjectStore


def decide(store: ObjectStore, table: TableReference, change: Callable[[TableState], TableState]) -> None:
    """Swap a decision into a table's state. Before that, old decisions move to an object of their own (O6)."""

    state.change(store, TableState, table_state_path(table), lambda now: change(with_room(store, table, now)))


def with_room(store: ObjectStore, table: TableReference, now: TableState) -> TableState:
    """The state with room for a decision. If it is full, old decisions move to an object of their own."""
    if not (chunk := now.order.full_chunk()):
        return now
    write_archive(store, audit_path(table, now.order.archived), AuditChunk(chunk))
    return dataclasses.replace(now, order=now.order.without_chunk())


def read_table(store: ObjectStore, table: TableReference) -> TableState:
    """The state of a table. Raises NotFound."""
    found = state.find(store, TableState, table_state_path(table))
    if found is None:
        raise NotFound(f"nothing was ever loaded into {table}", next_step="kbq status lists the tables")
    return found.value
