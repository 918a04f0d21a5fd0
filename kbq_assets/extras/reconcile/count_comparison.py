"""Numbers that must agree, and what it means where they do not: the pure half of `reconcile_counts`.

Three links of one chain. The warehouse's rows against what the tables' states say was loaded; loaded, pending and
quarantined rows against what the commits say was staged; the commits' positions against the broker's. Loads and
extractions may run meanwhile: each log is read before and after, and a number must lie between the two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.options import ERROR_TABLE
from kbq_assets.ports.warehouse import KafkaRange, OffsetSummary


@dataclass(frozen=True)
class TableCount:
    """One topic, partition and epoch in one table.

    ``loaded`` are the rows of jobs recorded in the table's state; ``in_flight`` those of jobs that were not, or were
    recorded while the rows were counted. ``first`` and ``last`` offset are None where no row was counted. ``notes``
    say what may be right.
    """

    table: TableReference
    range: KafkaRange
    rows: int
    distinct: int
    first: int | None
    last: int | None
    loaded: int
    in_flight: int
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def duplicates(self) -> int:
        """Rows beyond the first of their offset."""
        return self.rows - self.distinct

    @property
    def suspicious(self) -> bool:
        """Whether there are more rows than there should be: one may stand twice, here or in another table."""
        return self.duplicates > 0 or self.rows > self.loaded + self.in_flight


@dataclass(frozen=True)
class PartitionCount:
    """One partition since it began anew: rows committed for all its tables, and where they are by the books.

    ``unread`` are positions on the broker above ``position``. ``notes`` say what could not be compared.
    """

    topic_partition: TopicPartition
    epoch: int
    position: int
    committed: int
    loaded: int
    pending: int
    quarantined: int
    skipped: int
    lost: int
    unread: int
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartitionHistory:
    """The commit of one partition, read before (None: it was not there) and after the rows were counted.

    ``given_up`` are tables whose files of this partition resets gave up: how many rows those held is not known.
    """

    topic_partition: TopicPartition
    before: Commit | None
    after: Commit
    given_up: frozenset[TableReference] = frozenset()

    @classmethod
    def of(cls, before: Commit | None, after: Commit) -> list[PartitionHistory]:
        """One for each partition of a commit."""
        given_up: dict[TopicPartition, set[TableReference]] = defaultdict(set)
        for name in map(StagedFileName.parse, after.given_up):
            found = after.partitions.get(name.topic_partition.partition)
            if found is not None and name.epoch >= found.since:
                given_up[name.topic_partition].add(name.table)
        partitions = map(after.topic_partition, after.partitions)
        return [cls(tp, before, after, frozenset(given_up[tp])) for tp in partitions]

    @property
    def ranges(self) -> list[KafkaRange]:
        """What the commit counts: a reset of other partitions bumps the epoch too (E9)."""
        epochs = range(self.state.since, self.after.epoch + 1)
        return [KafkaRange(*self.topic_partition, epoch) for epoch in epochs]

    @property
    def state(self) -> PartitionCommit:
        """As it was afterwards."""
        return self.after.partitions[self.topic_partition.partition]

    @property
    def earlier(self) -> PartitionCommit | None:
        """As it was before, None where it did not exist, or was of another epoch."""
        if self.before is None or self.before.epoch != self.after.epoch:
            return None
        return self.before.partitions.get(self.topic_partition.partition)


@dataclass
class Books:
    """Where staged rows are, by table and range; and the tables that have rows of a partition, of any epoch."""

    loaded: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    pending: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    quarantined: Counter[tuple[TableReference, KafkaRange]] = field(default_factory=Counter)
    tables: defaultdict[TopicPartition, set[TableReference]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, states: Mapping[TableReference, TableState], files: Iterable[StagedFile]) -> Books:
        """``files`` are those of commits and backlogs, read before the states (PROTOCOL L1)."""
        books = cls()
        for table, state in states.items():
            for range_, rows in loaded_rows(state).items():
                books.loaded[table, range_] += rows
            for bad in state.quarantined:
                books.quarantined[table, range_of(bad.file)] += bad.file.rows
        for file in {file.path: file for file in files}.values():
            if file.table not in states or not states[file.table].is_loaded(file):
                books.pending[file.table, range_of(file)] += file.rows
        for table, range_ in (*books.loaded, *books.pending, *books.quarantined):
            books.tables[TopicPartition(range_.topic, range_.partition)].add(table)
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
    """Where a file's rows come from."""
    name = file.name
    return KafkaRange(*name.topic_partition, name.epoch)


def loaded_rows(state: TableState) -> dict[KafkaRange, int]:
    """Rows that a table's recorded jobs loaded (`core.loading.rows_key`)."""
    parts = ((key.rsplit("/", 2), rows) for key, rows in state.rows.items())
    return {KafkaRange(topic, int(partition), int(epoch)): rows for (topic, partition, epoch), rows in parts}


def count_table(
    table: TableReference,
    summary: Mapping[KafkaRange, OffsetSummary],
    states: tuple[TableState, TableState],
    *,
    whole: bool,
    expires: bool = False,
) -> list[TableCount]:
    """A table's rows beside its state, read before and after. ``whole``: all rows were counted. ``expires``: the
    warehouse drops old rows."""
    before, after = map(loaded_rows, states)
    flying: Counter[KafkaRange] = Counter()
    for file in states[1].in_flight.files if states[1].in_flight else ():
        flying[range_of(file)] += file.rows
    counts = []
    for range_ in sorted({*summary, *((*after, *flying) if whole else ())}, key=_order):
        loaded = before.get(range_, 0)
        in_flight = after.get(range_, 0) - loaded + flying[range_]
        count = _count(table, range_, summary.get(range_), loaded, in_flight)
        counts.append(_judged(count, states[1], whole, expires))
    return counts


def _count(
    table: TableReference, range_: KafkaRange, found: OffsetSummary | None, loaded: int, in_flight: int
) -> TableCount:
    if found is None:
        return TableCount(table, range_, 0, 0, None, None, loaded, in_flight)
    return TableCount(table, range_, found.rows, found.distinct, found.first, found.last, loaded, in_flight)


def _judged(count: TableCount, state: TableState, whole: bool, expires: bool) -> TableCount:
    findings: list[str] = []
    notes: list[str] = []
    where = f"{count.table}: {range_name(count.range)}"
    if count.duplicates:
        findings.append(f"{where}: {count.rows} rows of {count.distinct} offsets")
    most = count.loaded + count.in_flight
    differing = sum(m.actual - m.expected for m in state.mismatches)
    jobs = f"; rows of its jobs that differ from their files: {differing:+}" if state.mismatches else ""
    if count.rows > most:
        findings.append(f"{where}: {count.rows} rows, {most} were loaded{jobs}")
    if whole and count.rows < count.loaded:
        why = "the table's partitions expire" if expires else "deleted or lost"
        fewer = f"{where}: {count.rows} rows, {count.loaded} were loaded ({why}){jobs}"
        (notes if expires else findings).append(fewer)
    return replace(count, findings=tuple(findings), notes=tuple(notes))


def unknown_offsets(count: TableCount, ledgers: Mapping[TopicPartition, PartitionHistory]) -> Iterable[str]:
    """What a table holds that no commit can have staged."""
    tp = TopicPartition(count.range.topic, count.range.partition)
    where = f"{count.table}: {range_name(count.range)}"
    if count.first is None or count.last is None:
        return
    if tp not in ledgers:
        yield f"{where}: {count.rows} rows of a partition that was never extracted here"
        return
    ledger = ledgers[tp]
    if count.range.epoch > ledger.after.epoch:
        yield f"{where}: {count.rows} rows, but the topic's epoch is {ledger.after.epoch}"
    elif count.range.epoch >= ledger.state.since:
        if count.last >= ledger.state.next:
            yield f"{where}: offset {count.last}, but extraction stands at {ledger.state.next}"
        if count.first < ledger.state.start:
            yield f"{where}: offset {count.first}, but extraction began at {ledger.state.start}"


def count_partition(ledger: PartitionHistory, books: Books, broker: BrokerOffsets | None) -> PartitionCount:
    """A partition's commit beside the tables' books and the broker's offsets."""
    tp, state = ledger.topic_partition, ledger.state
    loaded, pending, quarantined = books.sums(books.tables[tp], ledger.ranges)
    findings, notes = _compared_with_books(ledger, books)
    if state.totals.positions != state.next - state.start:
        findings.append(
            f"{tp}: counts of {state.totals.positions} positions in [{state.start}, {state.next})"
        )
    return PartitionCount(
        tp,
        ledger.after.epoch,
        state.next,
        state.totals.staged + state.totals.errors,
        loaded,
        pending,
        quarantined,
        state.totals.skipped,
        state.totals.lost,
        max(0, broker.latest - state.next) if broker else 0,
        (*findings, *_compared_with_broker(tp, state, broker)),
        (*notes, *([] if broker else [f"{tp}: not on the broker"])),
    )


def _compared_with_books(ledger: PartitionHistory, books: Books) -> tuple[list[str], list[str]]:
    tp = ledger.topic_partition
    if ledger.before is not None and ledger.before.epoch != ledger.after.epoch:
        return [], [f"{tp}: reset while the rows were counted: not compared with its commit"]
    findings = [f"{tp}: {label}: {why}" for label, _, why in out_of_balance(ledger, books)]
    notes = [
        f"{tp}: {label}: a reset gave rows up: not compared with its commit"
        for label, tables in _labels(ledger, books)
        if ledger.given_up & tables
    ]
    return findings, notes


def out_of_balance(
    ledger: PartitionHistory, books: Books
) -> Iterable[tuple[str, Collection[TableReference], str]]:
    """Tables, or error tables, whose rows of a partition are not those committed: label, tables, how they differ.

    Those of which resets gave rows up are left out.
    """
    for label, tables in _labels(ledger, books):
        if ledger.given_up & tables:
            continue
        least, most = _committed(ledger.earlier, label), _committed(ledger.state, label)
        loaded, pending, quarantined = books.sums(tables, ledger.ranges)
        if not least <= loaded + pending + quarantined <= most:
            where = f"{loaded} rows loaded, {pending} to load, {quarantined} quarantined"
            yield label, tables, f"{where}, but {most} were committed"


def _labels(ledger: PartitionHistory, books: Books) -> list[tuple[str, set[TableReference]]]:
    """A partition's tables, each alone but the error tables: which of them has how many rows is not counted."""
    named = {TableReference.parse(t) for t in ledger.state.totals.rows} | books.tables[ledger.topic_partition]
    errors = {table for table in named if table.table == ERROR_TABLE}
    return [*((str(t), {t}) for t in sorted(named - errors)), (ERROR_TABLE, errors)]


def _committed(state: PartitionCommit | None, label: str) -> int:
    if state is None:
        return 0
    return state.totals.errors if label == ERROR_TABLE else state.totals.rows.get(label, 0)


def _compared_with_broker(
    tp: TopicPartition, state: PartitionCommit, broker: BrokerOffsets | None
) -> list[str]:
    if broker is None:
        return []
    if state.next > broker.latest:
        return [f"{tp}: extraction stands at {state.next}, the broker ends at {broker.latest}"]
    if state.next < broker.earliest:
        return [f"{tp}: extraction stands at {state.next}, the broker begins at {broker.earliest}"]
    return []


def range_name(range_: KafkaRange) -> str:
    """Example: ``shop.orders[3] epoch 1``."""
    return f"{TopicPartition(range_.topic, range_.partition)} epoch {range_.epoch}"


def _order(range_: KafkaRange) -> tuple[str, int, int]:
    return (range_.topic, range_.partition, range_.epoch)
