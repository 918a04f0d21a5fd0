"""Accounts for committed rows by KBQ's own state: loaded, pending, or in quarantine. Pure functions over read state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.error_tables import ERROR_TABLE, is_error_table
from kbq_assets.ports.warehouse import KafkaRange


@dataclass(frozen=True)
class PartitionHistory:
    """The commit of one partition, read before (None: it did not exist) and after the rows were counted.

    ``given_up`` are tables with files of this partition that a reset gave up. Their number of rows is unknown.
    """

    topic_partition: TopicPartition
    before: Commit | None
    after: Commit
    given_up: frozenset[TableReference] = frozenset()
    #: the warehouse whose rows are counted
    warehouse: str = FIRST_WAREHOUSE

    @classmethod
    def of(
        cls, before: Commit | None, after: Commit, warehouse: str = FIRST_WAREHOUSE
    ) -> list[PartitionHistory]:
        given_up: dict[TopicPartition, set[TableReference]] = defaultdict(set)
        for name in map(StagedFileName.parse, after.given_up):
            found = after.partitions.get(name.topic_partition.partition)
            if found is not None and name.epoch >= found.since:
                given_up[name.topic_partition].add(name.table)
        partitions = map(after.topic_partition, after.partitions)
        return [cls(tp, before, after, frozenset(given_up[tp]), warehouse) for tp in partitions]

    @property
    def ranges(self) -> list[KafkaRange]:
        """The epochs that the commit counts. A reset of other partitions also begins a new epoch (E9)."""
        epochs = range(self.state.since, self.after.epoch + 1)
        return [KafkaRange(*self.topic_partition, epoch) for epoch in epochs]

    @property
    def state(self) -> PartitionCommit:
        """The partition after the count."""
        return self.after.partitions[self.topic_partition.partition]

    @property
    def given(self) -> Counts:
        """The rows given to the warehouse since the partition began."""
        return self.state.totals_for(self.warehouse)

    @property
    def given_before(self) -> Counts:
        """`given` before the count."""
        return self.earlier.totals_for(self.warehouse) if self.earlier else Counts()

    @property
    def earlier(self) -> PartitionCommit | None:
        """The partition before the count; None if it did not exist or had another epoch."""
        if self.before is None or self.before.epoch != self.after.epoch:
            return None
        return self.before.partitions.get(self.topic_partition.partition)


@dataclass
class Books:
    """Staged rows by table and range, and the tables with rows of each partition, in any epoch."""

    loaded: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    pending: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    quarantined: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    #: quarantined rows whose loss no operator has accepted
    refused: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    #: changes that replays are making; tables and commits show them at different times
    changing: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    tables: defaultdict[TopicPartition, set[TableReference]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, states: Mapping[TableReference, TableState], files: Iterable[StagedFile]) -> Books:
        """Count rows. ``files`` are those of commits and backlogs, read before the states (PROTOCOL L1)."""
        books = cls()
        for table, state in states.items():
            for range_, rows in loaded_rows(state).items():
                books.loaded[table, range_] += rows
            for range_, rows in replaced_rows(state).items():
                books.changing[table, range_] += abs(rows)
            for bad in state.quarantined:
                books.quarantined[table, range_of(bad.file)] += bad.file.rows
            for bad in state.new_quarantined:
                books.refused[table, range_of(bad.file)] += bad.file.rows
        for file in {file.path: file for file in files}.values():
            if file.table not in states or not states[file.table].is_loaded(file):
                books.pending[file.table, range_of(file)] += file.rows
        for table, range_ in (*books.loaded, *books.pending, *books.quarantined):
            books.tables[range_.topic_partition].add(table)
        return books

    def sums(
        self, tables: Collection[TableReference], ranges: Collection[KafkaRange]
    ) -> tuple[int, int, int]:
        """Rows of these tables and ranges: loaded, pending, quarantined."""

        keys = [(table, range_) for table in tables for range_ in ranges]

        def total(counter: Counter[tuple[TableReference, KafkaRange]]) -> int:
            return sum(counter[key] for key in keys) if counter else 0

        return total(self.loaded), total(self.pending), total(self.quarantined)


def range_of(file: StagedFile) -> KafkaRange:
    """The partition and epoch of a file's rows."""
    name = file.name
    return KafkaRange(*name.topic_partition, name.epoch)


def loaded_rows(state: TableState) -> dict[KafkaRange, int]:
    """Rows that a table's recorded jobs loaded, by range (`core.loading.rows_key`)."""
    return _by_range(state.rows)


def _by_range(rows_by_key: Mapping[str, int]) -> dict[KafkaRange, int]:
    parts = ((key.rsplit("/", 2), rows) for key, rows in rows_by_key.items())
    return {KafkaRange(topic, int(partition), int(epoch)): rows for (topic, partition, epoch), rows in parts}


def replaced_rows(state: TableState) -> dict[KafkaRange, int]:
    """The change of rows, by range, from the replacement that a table waits for."""
    found = state.definition.replacing
    if found is None:
        return {}
    both = {
        key: found.rows.get(key, 0) - found.waiting.get(key, 0) for key in {**found.rows, **found.waiting}
    }
    return _by_range(both)


def out_of_balance(
    ledger: PartitionHistory, books: Books
) -> Iterable[tuple[str, Collection[TableReference], str]]:
    """Tables, or all error tables, whose number of rows of a partition differs from the commit: label, tables, message.

    Tables whose rows a reset gave up are skipped.
    """
    for label, tables in labels(ledger, books):
        if ledger.given_up & tables:
            continue
        given = _committed(ledger.given_before, label), _committed(ledger.given, label)
        changing = sum(books.changing[table, range_] for table in tables for range_ in ledger.ranges)
        least, most = min(given) - changing, max(given) + changing
        loaded, pending, quarantined = books.sums(tables, ledger.ranges)
        if not least <= loaded + pending + quarantined <= most:
            where = f"{counted(loaded, 'row')} loaded, {pending} to load, {quarantined} quarantined"
            yield label, tables, f"{where}, but {counted(most, 'was', 'were')} committed"


def labels(ledger: PartitionHistory, books: Books) -> list[tuple[str, set[TableReference]]]:
    """A partition's tables one by one, and its error tables together: commits do not count these separately."""
    named = {TableReference.parse(t) for t in ledger.given.rows} | books.tables[ledger.topic_partition]
    errors = {table for table in named if is_error_table(table)}
    return [*((str(t), {t}) for t in sorted(named - errors)), (ERROR_TABLE, errors)]


def _committed(given: Counts, label: str) -> int:
    return given.errors if label == ERROR_TABLE else given.rows.get(label, 0)
