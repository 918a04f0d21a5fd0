"""Accounts of upsert tables: extracts the topics again, and checks that each key's newest record is the table's row.

The table must not be loaded meanwhile. Findings name what cannot be decided: records that Kafka no longer has, a topic
that the source list does not select, keys with several pseudonyms. For change events, the newest event of a key counts
too, and a truncation deletes every key of its topic's older events.

Memory only holds the positions of one partition's rows and one part of the keys (spill.py), however large the topics
are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, BinaryIO, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.debezium.change_columns import DELETED as ROW_DELETED
from kbq_assets.core.debezium.change_columns import OP, TRUNCATE
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import JobFailed, KbqError
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.statements.change_data import are_changes
from kbq_assets.core.statements.rules import DELETED, MARK, UPSERT, StatementRule
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.core.statements.tombstones import are_tombstones
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.again import Again, ScratchStore
from kbq_assets.extras.reconcile.findings import Finding
from kbq_assets.extras.reconcile.hidden_keys import has_several_pseudonyms
from kbq_assets.extras.reconcile.newest import (
    PER_PART,
    KeyedRecord,
    NewestAccount,
    OtherRows,
    RecordPlace,
    UpsertAccount,
)
from kbq_assets.extras.reconcile.spill import Spill
from kbq_assets.extras.reconcile.values import CHUNK, CHUNK_BYTES
from kbq_assets.ports.errors_replay import REPLAYED_AT
from kbq_assets.ports.warehouse import KafkaRange, Warehouse
from kbq_assets.wire.arrow.container import read_blocks, read_header
from kbq_assets.wire.files.read_container import Header

_MOST_DELETIONS: Final = 2**31 - 1
#: Returns the staged files of a partition that are not applied.
WaitingFiles = Callable[[TopicPartition], Iterable[StagedFile]]


class _NotCompared(KbqError):
    """A table cannot be compared, for the reason in the message."""


@dataclass(frozen=True)
class UpsertComparison:
    """Compares tables with their topics. ``read_states`` reads the tables' current states; ``waiting`` returns the
    files that no statement has applied."""

    again: Again
    warehouse: Warehouse
    broker: Mapping[TopicPartition, BrokerOffsets]
    settings: Mapping[str, TopicSettings]
    read_states: Callable[[], Mapping[TableReference, TableState]]
    waiting: WaitingFiles
    compacts: Callable[[str], bool]
    #: the erased offsets of a commit's partition
    erased: Callable[[Commit, int], Offsets]

    def of(
        self, table: TableReference, topics: Collection[str], commits: Collection[Commit]
    ) -> UpsertAccount:
        """The account of a table that some topics feed. ``commits`` are the topics'. Raises Unavailable."""
        return replace(self._of(table, topics, commits), topics=tuple(sorted(topics)))

    def _of(
        self, table: TableReference, topics: Collection[str], commits: Collection[Commit]
    ) -> UpsertAccount:
        state = self.read_states()[table]
        try:
            rule = self._rule(topics, commits, state)
            with Spill[KeyedRecord](_positions(commits), PER_PART) as spill:
                reading = _RecordsOfTable(self, table, rule, spill)
                reading.read(commits)
                now = self.read_states()[table]
                if now.in_flight is not None or now.jobs.ended != state.jobs.ended:
                    return UpsertAccount(table, findings=(_loaded_meanwhile(table),))
                reading.other.expire = all(
                    self.settings[topic].destination.partition_expiry_days for topic in topics
                )
                reading.other.has_several_pseudonyms = self._has_several_pseudonyms(table, rule, topics)
                found = reading.other, reading.truncations, self._erased(commits), reading.findings
                return NewestAccount(table, rule, spill, *found).settle()
        except _NotCompared as error:
            why = Finding(f"{table}: not compared: {error.message}", error.next_step, is_unknown=True)
            return UpsertAccount(table, findings=(why,))

    def _erased(self, commits: Iterable[Commit]) -> dict[TopicPartition, int]:
        """The end of each partition's last erased record."""
        found = {c.topic_partition(p): self.erased(c, p) for c in commits for p in c.partitions}
        return {tp: offsets[-1] for tp, offsets in found.items() if offsets}

    def _rule(self, topics: Collection[str], commits: Collection[Commit], state: TableState) -> StatementRule:
        """The rule that every record was applied with. Raises _NotCompared."""
        if not topics:
            raise _NotCompared("nothing was applied yet", next_step="kbq load")
        if state.in_flight is not None:
            raise _NotCompared("a batch is in flight", next_step="kbq load, then kbq reconcile")
        if missing := sorted(set(topics) - {commit.topic for commit in commits}):
            raise _NotCompared(
                f"{', '.join(missing)} also feed it", next_step="kbq reconcile without --topic"
            )
        rule = state.definition.statements.rule
        for topic in topics:
            settings = self.settings.get(topic)
            if settings is None:
                raise _NotCompared(f"the source list no longer selects {topic}")
            if rule.appends and not any(state.rows.values()):
                rule = settings.statement.rule  # its first batch was skipped
            for kind in (settings.statement.rule.kind, rule.kind):
                if kind != UPSERT:
                    raise _NotCompared(f"load={kind} does not keep only the newest record of each key")
        if state.definition.statements.appended:
            raise _NotCompared(
                "rows were appended since its last statement", next_step="the next batch converts them"
            )
        return rule

    def _has_several_pseudonyms(
        self, table: TableReference, rule: StatementRule, topics: Collection[str]
    ) -> bool:
        decisions = [each for topic in topics for each in self.settings[topic].privacy.decisions]
        known = self.again.open_ports().pseudonyms() if decisions else None
        try:
            return has_several_pseudonyms(self.warehouse, table, rule, decisions, known)
        except JobFailed as error:
            raise _NotCompared(f"its keys cannot be read: {error.message}") from error


def _positions(commits: Iterable[Commit]) -> int:
    return sum(p.next - p.start for commit in commits for p in commit.partitions.values())


def _loaded_meanwhile(table: TableReference) -> Finding:
    return Finding(
        f"{table}: it was loaded while it was compared", "kbq reconcile when no load runs", is_unknown=True
    )


@dataclass
class _Rows:
    """The table's rows of one partition by epoch and offset, and the offsets of the deletions that it stores; None if
    it stores none."""

    tp: TopicPartition
    epochs: dict[int, dict[int, int]]
    #: the epoch of the partition's last reset: rows of earlier ones may be of another log, under the same offsets
    since: int
    remembered: set[int] | None

    def take(self, offset: int) -> int:
        """Remove the rows at the position of an applied record; return their number. Rows of before the last reset
        count only if there are no others."""
        for is_current in (True, False):
            epochs = [each for epoch, each in self.epochs.items() if (epoch >= self.since) == is_current]
            if found := sum(positions.pop(offset, 0) for positions in epochs):
                return found
        return 0

    def knows_deletion(self, offset: int) -> bool:
        """Whether the table stores a deletion, or need not."""
        return self.remembered is None or offset in self.remembered


@dataclass
class _RecordsOfTable:
    """Reads one table and the records of its topics, partition by partition, into ``spill``."""

    owner: UpsertComparison
    table: TableReference
    rule: StatementRule
    spill: Spill[KeyedRecord]
    findings: list[Finding] = field(default_factory=list)
    other: OtherRows = field(default_factory=OtherRows)
    #: the offset of the last truncation in a partition (Debezium)
    truncations: dict[TopicPartition, int] = field(default_factory=dict)

    def read(self, commits: Collection[Commit]) -> None:
        """Read all partitions, and then the rest of the table's rows."""
        known = {c.topic_partition(p): c for c in commits for p in c.partitions}
        ranges = self.owner.warehouse.kafka_ranges(self.table)
        own: dict[TopicPartition, list[KafkaRange]] = {tp: [] for tp in sorted(known)}
        for range_, count in ranges.items():
            tp = range_.topic_partition
            if tp in known and range_.epoch <= known[tp].epoch:
                own[tp].append(range_)
            else:
                where = f"{tp} epoch {range_.epoch}" if range_.topic else "no position"
                self.other.strange.append(f"{counted(count, 'row')} of {where}")
                self.other.rows += count
        for tp, of_partition in own.items():
            self._read_partition(known[tp], tp, of_partition)

    def _read_partition(self, commit: Commit, tp: TopicPartition, ranges: Iterable[KafkaRange]) -> None:
        positions = self.owner.warehouse.positions
        epochs = {range_.epoch: dict(positions(self.table, range_)) for range_ in ranges}
        rows = _Rows(tp, epochs, commit.partitions[tp.partition].since, self._remembered(tp))
        for range_ in self._ranges(commit, tp):
            for record in self._of_range(commit, range_, rows):
                self.spill.add(record.key or record.place, record)
        self._add_others(commit, rows)

    def _remembered(self, tp: TopicPartition) -> set[int] | None:
        """The offsets of the partition's deletions; None if their rows stay, or if they cannot be read."""
        statements = self.owner.warehouse.statements
        if self.rule.deletes == MARK or statements is None:
            return None
        topic = tp.topic.replace("'", "''")
        sql = (
            f"SELECT kbq_offset AS place FROM {statements.sql_name(deleted_table(self.table))}"
            f" WHERE kbq_topic = '{topic}' AND kbq_partition = {tp.partition}"
        )
        try:
            return {int(text.partition("=")[2]) for text in statements.rows_of(sql, _MOST_DELETIONS)}
        except KbqError as error:
            self._unknown(f"its deleted keys cannot be read: {error.message}")
            return None

    def _add_others(self, commit: Commit, rows: _Rows) -> None:
        """Judge the rows without an applied record at their position."""
        state, first = commit.partitions[rows.tp.partition], self._first(commit, rows.tp.partition)
        compacts = self.owner.compacts(rows.tp.topic)
        replayed = self._replayed(rows.tp) if any(rows.epochs.values()) else frozenset()
        for epoch, positions in rows.epochs.items():
            for offset, count in positions.items():
                self.other.rows += count
                is_gone = offset < first or epoch < state.since
                may_wait = compacts or self._waits(rows.tp, offset)
                if is_gone or (may_wait and offset < state.next):
                    self.other.undecided += count
                elif offset in replayed:
                    self.other.repaired += count
                else:
                    self.other.unknown.add(RecordPlace(*rows.tp, offset))

    def _replayed(self, tp: TopicPartition) -> frozenset[int]:
        """The offsets of rows that `kbq errors replay` applied."""
        statements, columns = self.owner.warehouse.statements, self.owner.warehouse.columns(self.table) or ()
        if statements is None or not any(column.name == REPLAYED_AT for column in columns):
            return frozenset()
        topic = tp.topic.replace("'", "''")
        sql = (
            f"SELECT _kafka_offset AS place FROM {statements.sql_name(self.table)} WHERE _kafka_topic = '{topic}'"
            f" AND _kafka_partition = {tp.partition} AND {REPLAYED_AT} IS NOT NULL"
        )
        return frozenset(int(text.partition("=")[2]) for text in statements.rows_of(sql, _MOST_DELETIONS))

    def _waits(self, tp: TopicPartition, offset: int) -> bool:
        return any(file.name.first_offset <= offset < file.until for file in self.owner.waiting(tp))

    def _first(self, commit: Commit, partition: int) -> int:
        """The first position that can be read again."""
        state, broker = commit.partitions[partition], self.owner.broker.get(commit.topic_partition(partition))
        return min(max(state.start, broker.earliest), state.next) if broker else state.next

    def _ranges(self, commit: Commit, tp: TopicPartition) -> Iterator[OffsetRange]:
        """The extracted records of a partition that can be read again, in portions that fit into memory."""
        state, first = commit.partitions[tp.partition], self._first(commit, tp.partition)
        if first > state.start or (state.since > 1 and state.start > 0):
            self._unknown(
                f"{tp}: records below offset {first} cannot be read again, so they are not compared"
            )
        gaps = state.accepted_gaps
        edges = [first, *(edge for gap in gaps for edge in (gap.first, gap.until)), state.next]
        bounds = sorted({min(max(edge, first), state.next) for edge in edges})
        average = state.totals.bytes // max(1, state.totals.records)
        most = max(1, min(CHUNK, CHUNK_BYTES // max(1, average)))
        for start, until in itertools.pairwise(bounds):
            if any(gap.first <= start < gap.until for gap in gaps):
                continue
            for begin in range(start, until, most):
                yield OffsetRange(tp, begin, min(begin + most, until))

    def _of_range(self, commit: Commit, range_: OffsetRange, rows: _Rows) -> Iterator[KeyedRecord]:
        """The records of a range that were applied to the table."""
        scratch = ScratchStore(self.owner.again.open_ports().store, keeps_files=True)
        waiting = [file for file in self.owner.waiting(range_.topic_partition) if file.table == self.table]
        try:
            outcome = self.owner.again.extract(commit, range_, scratch, accepts=True)
            if problem := outcome.failure or (outcome.stop.message if outcome.stop else ""):
                raise _NotCompared(f"{range_}: {problem}", next_step="kbq plan")
            for file in (file for window in outcome.windows for file in window.files):
                if file.table == self.table:
                    yield from self._of_file(file, scratch, waiting, rows)
        finally:
            scratch.discard()

    def _of_file(
        self, file: StagedFile, scratch: ScratchStore, waiting: Iterable[StagedFile], rows: _Rows
    ) -> Iterator[KeyedRecord]:
        pending = [(f.name.first_offset, f.until) for f in waiting if f.name.schema_id == file.name.schema_id]
        with scratch.open_read(file.path) as stream:
            header = read_header(stream)
            columns = columns_of(header.schema)
            deletes, is_change = are_tombstones(header.schema), are_changes(columns)
            for row in _rows_of(stream, header):
                offset = row["_kafka_offset"]
                if any(first <= offset < until for first, until in pending):
                    continue
                if is_change and row[OP] == TRUNCATE:
                    self.truncations[rows.tp] = max(offset, self.truncations.get(rows.tp, 0))
                    continue
                is_deletion = row[ROW_DELETED] if is_change else row.get(DELETED)
                yield self._record(row, rows, deletes=deletes or is_deletion is True)

    def _record(self, row: Any, rows: _Rows, *, deletes: bool) -> KeyedRecord:
        offset, key = row["_kafka_offset"], tuple(_value(row, path) for path in self.rule.key)
        return KeyedRecord(
            RecordPlace(*rows.tp, offset),
            None if None in key else key,
            row.get("_kafka_timestamp"),
            deletes,
            rows.take(offset),
            rows.knows_deletion(offset),
        )

    def _unknown(self, text: str) -> None:
        self.findings.append(Finding(f"{self.table}: {text}", is_unknown=True))


def _rows_of(stream: BinaryIO, header: Header) -> Iterator[Any]:
    import fastavro  # most runs of a driver do not need it

    schema = fastavro.parse_schema(avro.load_schema(header.schema))
    for block in read_blocks(stream, header):
        data = BytesIO(block.data)
        for _ in range(block.count):
            yield fastavro.schemaless_reader(data, schema, None)


def _value(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = row.get(name) if row is not None else None
    return row
