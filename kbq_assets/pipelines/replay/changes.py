"""By how much a replacement changes the rows of a table, which waits for it (PROTOCOL R3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbq_assets.core.loading.replacing import Replacing, change_of
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.model import Replay
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.start import rows_of
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import KafkaRange


def change_of_table(
    live: Deployment,
    tables: ReplayTables,
    replay: Replay,
    table: TableReference,
    source: TableReference | None,
    current: TableState,
) -> Replacing:
    """The change of a table with a row for each record; its new rows are in ``source``."""
    counted = tables.days([table, *([source] if source else [])], rows_of(replay))
    present = live.warehouse.kafka_ranges(table)
    changes, lost = {}, 0
    for range_ in replay.ranges:
        tp = range_.topic_partition
        key = f"{tp.topic}/{tp.partition}/{replay.epoch}"
        former, new = (
            sum(n.rows for at, n in counted.get(t, {}).items() if at.partition == tp.partition)
            for t in (table, source or table)
        )
        now = present.get(KafkaRange(tp.topic, tp.partition, replay.epoch), 0)
        changes[key], restored = change_of(current.rows.get(key, 0), now, former, new if source else 0)
        lost += restored
    return Replacing(replay.number, replay.job_id, changes, lost)


def check_order(
    live: Deployment,
    tables: ReplayTables,
    replay: Replay,
    table: TableReference,
    source: TableReference | None,
) -> None:
    """Raise Refused if the new rows of a table in offset order, which are in ``source``, lie at other offsets than its
    rows of the range (R8). An upsert table has no row for each offset."""
    current = state.find(live.load_store, TableState, table_state_path(table))
    if current is None or current.value.has_statements or not current.value.order.rule.by:
        return
    rows, new = rows_of(replay), [source] if source else []
    counted = tables.days([table, *new], rows)
    here, there = (
        sum(each.distinct for t in side for each in counted.get(t, {}).values()) for side in ([table], new)
    )
    promotion.check_positions(table, here, there, tables.shared([table], new, rows))


def balance_of(replay: Replay, others: Mapping[TableReference, Replacing]) -> Replacing:
    """The change of an upsert table, whose state counts records: what the tables with a row for each record lose or
    gain, it gains or loses. It has no rows to count."""
    rows: Counter[str] = Counter()
    for found in others.values():
        rows.subtract(found.rows)
    return Replacing(replay.number, replay.job_id, {key: count for key, count in rows.items() if count})
