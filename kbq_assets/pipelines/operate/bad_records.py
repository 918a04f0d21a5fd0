"""Bad records in the warehouse, and files that the warehouse rejected."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.errors import NotFound
from kbq_assets.core.loading.table_state import QuarantinedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow, Warehouse


@dataclass(frozen=True)
class Quarantined:
    """A file in quarantine, with its table, its number of rows, and the warehouse's error."""

    table: TableReference
    bad: QuarantinedFile


def list_error_rows(warehouse: Warehouse, query: ErrorQuery) -> list[ErrorRow]:
    """At most ``query.limit`` bad records of all error tables, newest first. Raises Unavailable."""
    tables = [table for table in warehouse.tables() if is_error_table(table)]
    rows = [row for table in tables for row in warehouse.error_rows(table, query)]
    return sorted(rows, key=lambda row: -row.timestamp_ms)[: query.limit]


def find_error_rows(warehouse: Warehouse, tp: TopicPartition, offset: int) -> list[ErrorRow]:
    """The bad record at a position, with its value, once per epoch in which it occurred. Raises NotFound."""
    rows = list_error_rows(warehouse, ErrorQuery(tp.topic, tp.partition, offset, replayed=True))
    if not rows:
        raise NotFound(
            f"no error table has offset {offset} of {tp}",
            next_step=f"kbq errors list --topic {tp.topic}; bad records appear there once they are loaded",
        )
    return sorted(rows, key=lambda row: -row.epoch)


def list_quarantined(store: ObjectStore, topic: str | None = None) -> list[Quarantined]:
    """Files that were set aside because the warehouse rejected them (PROTOCOL L5)."""
    states = state.read_table_states(store)
    return [
        Quarantined(table, bad)
        for table, current in sorted(states.items())
        for bad in current.value.quarantined
        if topic in (None, bad.file.name.topic_partition.topic)
    ]
