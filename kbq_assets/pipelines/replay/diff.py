"""Compares a replay with the live rows of its range: rows by partition and day, differing rows, completeness."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import Replay, ReplayProgress
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.replay.start import ReplayedTopic, rows_of
from kbq_assets.ports.replay import DayRows, PartitionDay, ReplayTables, RowDifference

_NONE = DayRows(0, 0)


@dataclass(frozen=True)
class DayDiff:
    """One partition and day of one table: the live rows and the replay's rows."""

    table: TableReference
    at: PartitionDay
    live: DayRows
    replay: DayRows

    @property
    def keys(self) -> tuple[int | None, int | None]:
        """Distinct keys in the live table and in the replay; None if the table stores no keys."""
        live, replay = self.live.keys, self.replay.keys
        return (
            0 if live is None and not self.live.rows and replay is not None else live,
            0 if replay is None and not self.replay.rows and live is not None else replay,
        )


@dataclass(frozen=True)
class ReplayDiff:
    """Every day with live or replayed rows, and the first differing rows of each table."""

    progress: ReplayProgress
    days: tuple[DayDiff, ...]
    rows: dict[TableReference, tuple[RowDifference, ...]]
    #: live rows of the range in tables that the replay does not fill
    left_out: int = 0
    #: tables with a row for each key
    keyed: frozenset[TableReference] = frozenset()
    #: live error rows of the range that were replayed: each is also a row of another table
    replayed_errors: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether a promotion would change no value."""
        counts = ((day.live, day.replay) for day in self.days)
        return not any(self.rows.values()) and all(
            (live.rows, live.distinct) == (replay.rows, replay.distinct) for live, replay in counts
        )

    @property
    def shadow_rows(self) -> int:
        return sum(day.replay.rows for day in self.days)

    @property
    def is_complete(self) -> bool:
        """Whether every position is read, and every row from it is in a shadow table."""
        return self.progress.is_done and self.shadow_rows >= self.progress.rows

    @property
    def table_lines(self) -> tuple[str, ...]:
        """A line per table about the rows that leave and the rows that come."""
        lines = []
        for table in sorted({day.table for day in self.days}):
            of_table = [day for day in self.days if day.table == table]
            former, new = sum(day.live.rows for day in of_table), sum(day.replay.rows for day in of_table)
            days = len({day.at.day for day in of_table})
            if table in self.keyed:
                lines.append(
                    f"{table}: its keys' rows come from {counted(new, 'record')}, and replace"
                    f" {counted(former, 'row')} of the range"
                )
                continue
            lines.append(
                f"{table}: {counted(new, 'row replaces', 'rows replace')} {former:,},"
                f" in {counted(days, 'day')} of partitions"
            )
        return tuple(lines)


def billed_lines(
    tables: ReplayTables, replay: Replay, changed: Collection[TableReference]
) -> tuple[str, ...]:
    """A line about the bytes that the warehouse bills for a promotion that changes these tables, if it bills any.
    Raises Unavailable."""
    billed = tables.bytes_billed({table: replay.shadow(table) for table in sorted(changed)}, rows_of(replay))
    return (f"a promotion is billed about {billed / 1e9:,.2f} GB, including its counts",) if billed else ()


def check_records(replay: Replay, found: ReplayDiff) -> None:
    """Raise Refused if a promotion would count rows that do not exist, or delete rows of lost records."""
    if found.replayed_errors:
        raise Refused(
            f"{counted(found.replayed_errors, 'replayed error row')} in the range: each counts as an error row and"
            " a row",
            next_step=f"kbq replay drop {replay.number}, and replay offsets before or after those of error rows with"
            " _kbq_replayed_at",
        )
    if found.shadow_rows < found.progress.rows:
        raise Refused(
            f"the shadows have {found.shadow_rows:,} of {counted(found.progress.rows, 'loaded row')}",
            next_step=f"kbq replay drop {replay.number}, and start the replay again",
        )
    live = sum(day.live.rows for day in found.days) + found.left_out
    if live > found.progress.records:
        raise Refused(
            f"the range has {counted(live, 'row')}, but Kafka has only {counted(found.progress.records, 'record')}"
            " of it now (compaction)",
            next_step=f"kbq replay drop {replay.number}, and replay a range without compaction",
        )


def _key_of(table: TableReference, state: TableState | None) -> tuple[str, ...]:
    """The columns with the keys of a table's rows, if it stores them."""
    if is_error_table(table):
        return ("key",)
    rule = state.definition.statements.rule if state else None
    return rule.key if rule and rule.key else ("_kafka_key",)


def compare(
    live: Deployment,
    tables: ReplayTables,
    replay: Replay,
    progress: ReplayProgress,
    replayed: Collection[TableReference],
    sample: int,
    *,
    with_keys: bool = False,
) -> ReplayDiff:
    """Compare the range in all tables that have rows of the topic, or would get some. ``with_keys`` also counts
    distinct keys; BigQuery bills that. Raises Unavailable."""
    topic = ReplayedTopic.read(live, replay.topic)
    known = sorted({*topic.tables(replay.topic), *replayed})
    found = [table for table in known if replay.covers(table)]
    rows = rows_of(replay)
    keys = {table: _key_of(table, topic.states.get(table)) for table in found if with_keys}
    keys |= {replay.shadow(table): key for table, key in keys.items()}
    counted = tables.days([*known, *map(replay.shadow, found)], rows, keys)
    left_out = sum(
        day.rows for table in known if table not in found for day in counted.get(table, {}).values()
    )
    days = []
    for table in found:
        here, there = counted.get(table, {}), counted.get(replay.shadow(table), {})
        for at in sorted({*here, *there}, key=lambda at: (at.partition, str(at.day or ""))):
            days.append(DayDiff(table, at, here.get(at, _NONE), there.get(at, _NONE)))
    samples = {table: tables.differences(table, replay.shadow(table), rows, sample) for table in found}
    keyed = frozenset(table for table, at in topic.states.items() if at.has_statements)
    errors = [table for table in known if is_error_table(table) and counted.get(table)]
    twice = (
        tables.shared(errors, [table for table in known if not is_error_table(table)], rows) if errors else 0
    )
    return ReplayDiff(progress, tuple(days), samples, left_out, keyed, twice)
