"""How a replacement changes the row counts of a table that waits for it (PROTOCOL R3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.replacing import Replacing, change_of
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.model import Phase, Replay
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
    """The change of a table with a row for each record. ``source`` has the new rows. Raises Refused if the table was
    dropped, and the replay has not all of its rows."""
    by_day = tables.days([table, *([source] if source else [])], rows_of(replay))
    present = live.warehouse.kafka_ranges(table)
    changes, lost = {}, 0
    for range_ in replay.ranges:
        tp = range_.topic_partition
        key = f"{tp.topic}/{tp.partition}/{replay.epoch}"
        former, new = (
            sum(n.rows for at, n in by_day.get(t, {}).items() if at.partition == tp.partition)
            for t in (table, source or table)
        )
        now = present.get(KafkaRange(tp.topic, tp.partition, replay.epoch), 0)
        changes[key], restored = change_of(current.rows.get(key, 0), now, former, new if source else 0)
        lost += restored
    _check_whole(replay, table, current, sum(present.values()) + lost)
    return Replacing(replay.number, replay.job_id, changes, lost)


def _check_whole(replay: Replay, table: TableReference, current: TableState, rows: int) -> None:
    """Raise Refused if a table that was dropped would have fewer ``rows`` than before: its loads would then continue as
    if it was whole."""
    if current.parked is None or current.parked.reason != ParkReason.TABLE_GONE:
        return
    loaded = sum(current.rows.values()) - current.accepted.rows
    if rows < loaded:
        again = "rollback" if replay.phase == Phase.ROLLING_BACK else "promote"
        raise Refused(
            f"{table} was dropped with {counted(loaded, 'row')}, and replay {replay.number} has {rows:,} of them",
            next_step=f"replay all offsets of {replay.topic} (with --source backup if Kafka no longer has them); or "
            f"give up the other rows: kbq adopt --table {table}, then kbq replay {again} {replay.number}",
        )


def check_order(
    live: Deployment,
    tables: ReplayTables,
    replay: Replay,
    table: TableReference,
    source: TableReference | None,
) -> None:
    """Raise Refused if a table is in offset order, and its new rows in ``source`` have other offsets than its rows of
    the range (R8). Upsert tables are not checked: they do not have a row for each offset."""
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
    """The change of an upsert table. Its state counts records, and it has no rows to count: it gains the records that
    the tables with a row for each record lose, and loses those that they gain."""
    rows: Counter[str] = Counter()
    for found in others.values():
        rows.subtract(found.rows)
    return Replacing(replay.number, replay.job_id, {key: count for key, count in rows.items() if count})
