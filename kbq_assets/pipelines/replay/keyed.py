"""Upsert tables of a replay: preparations, checks and SQL of a replacement (R11)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.keyed import KeyedRange, with_all
from kbq_assets.core.replay.model import Replay
from kbq_assets.core.statements.keys import key_columns
from kbq_assets.core.statements.rules import DELETED, MARK, StatementRule
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.core.statements.upsert import Upsert, deleted_columns
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.statements import Statements


def check_replaceable(
    live: Deployment, topic: str, table: TableReference, found: TableState
) -> StatementRule:
    """The load rule of a table. Raises Refused if its readers rely on rows not changing (R8), or if none of its ranges
    can be replaced (R11)."""
    topics = frozenset(mark.partition("/")[0] for mark in found.marks) | {topic}
    options = live.sources.table_options()(table, topics)
    wanted = frozenset[StatementRule]() if is_error_table(table) else options.rules
    return promotion.check_replaceable(table, found, wanted)


@dataclass(frozen=True)
class KeyedTables:
    """The upsert tables among those of a replay, while they wait for it."""

    live: Deployment
    replay: Replay

    def among(self, tables: Iterable[TableReference]) -> dict[TableReference, StatementRule]:
        """The upsert tables among ``tables``, in order, with their rules."""
        found = {table: self._state(table) for table in sorted(tables)}
        return {t: s.definition.statements.rule for t, s in found.items() if s.has_statements}

    def prepare(self, table: TableReference, rule: StatementRule) -> None:
        """Create what the replacement needs besides the table's columns. Raises ConfigurationError."""
        warehouse, replay = self.live.warehouse, self.replay
        columns = warehouse.columns(table) or ()
        if rule.deletes == MARK:
            warehouse.update_columns(table, [Column(DELETED, "BOOL")])
            columns = warehouse.columns(table) or ()
        else:
            remembered = deleted_columns(key_columns(table, rule.key, columns))
            for each in (deleted_table(table), replay.former(deleted_table(table))):
                warehouse.create_table(each, remembered, TableOptions())
        for each in (replay.former(table), replay.shadow(table)):
            warehouse.create_table(each, columns, TableOptions())
            lacking = with_all(warehouse.columns(each) or (), columns)
            if lacking:
                warehouse.update_columns(each, lacking)

    def check(
        self,
        table: TableReference,
        rule: StatementRule,
        replayed: Iterable[TableReference],
        totals: Counts,
    ) -> None:
        """Raise Refused if a key of the range would not show its newest record: the key's record from before the range
        is unknown. ``replayed`` are the tables that the replay fills, ``totals`` its counts."""
        replay, found, statements = self.replay, self._range(table, rule), self._statements
        again = f"kbq replay drop {replay.number}, then kbq replay start {replay.topic}"
        shards = shards_of(self.live.store, replay.topic).values()
        starts = {p: at.start for commit in shards for p, at in commit.partitions.items()}
        is_whole = not totals.gaps and promotion.is_whole(replay, self._state(table), starts)
        if not is_whole and (keys := _count(statements, found.unknown_sql())):
            raise Refused(
                f"{table}: the range has the newest record of {counted(keys, 'key')}, but the replay has none of them:"
                " their earlier records are unknown",
                next_step=f"{again} --from earliest, to read all; docs/replay.md#tables-with-a-row-per-key",
            )
        if not totals.gaps:
            return
        shadows = [statements.sql_name(replay.shadow(each)) for each in replayed]
        if shadows and (keys := _count(statements, found.unread_sql(shadows))):
            raise Refused(
                f"{table}: the newest records of {counted(keys, 'key')} are not in the range any more (compaction)",
                next_step=f"{again} --source backup",
            )

    def promotion_sql(self, table: TableReference, rule: StatementRule) -> str:
        """The SQL that replaces the table's range."""
        return self._range(table, rule).promotion_sql()

    def rollback_sql(self, table: TableReference, rule: StatementRule) -> str:
        """The SQL that restores the previous rows of the range."""
        return self._range(table, rule).rollback_sql()

    def _range(self, table: TableReference, rule: StatementRule) -> KeyedRange:
        name, deleted, replay = self._statements.sql_name, deleted_table(table), self.replay
        columns = self.live.warehouse.columns(table) or ()
        upsert = Upsert(self._statements.dialect, rule, name(table), name(deleted), columns)
        own = (replay.shadow(table), replay.former(table), replay.former(deleted))
        shadow, former, former_deleted = map(name, own)
        return KeyedRange(replay, upsert, shadow, former, former_deleted, replay.tombstones)

    @property
    def _statements(self) -> Statements:
        assert self.live.warehouse.statements is not None
        return self.live.warehouse.statements

    def _state(self, table: TableReference) -> TableState:
        found = state.find(self.live.load_store, TableState, table_state_path(table))
        return found.value if found else TableState("")


def _count(statements: Statements, sql: str) -> int:
    found = statements.rows_of(sql, 1)
    return int(found[0].partition("=")[2]) if found else 0
