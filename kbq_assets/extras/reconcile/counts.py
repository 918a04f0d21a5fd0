"""The quick reconciliation: counts instead of records, for tables of any size.

One query per table reads only metadata columns, the broker reports its offsets, and no record is read. `BLIND` lists
what counts cannot show. `reconcile` reads every offset, so it finds that too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from typing import Final, TypeAlias

from kbq_assets.core.errors import CorruptState, NotFound, UnsupportedFormat
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.extras.reconcile import count_comparison as counting
from kbq_assets.extras.reconcile.count_comparison import PartitionCount, TableCount
from kbq_assets.extras.reconcile.findings import DELETE_ROWS, Finding, next_steps
from kbq_assets.pipelines.observation.accounting import Books, PartitionHistory, loaded_rows
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import KafkaRange, Warehouse

#: Commits by topic and shard.
_Commits: TypeAlias = Mapping[tuple[str, int], Commit]
#: Maximum number of offsets named per topic, partition and epoch.
SHOWN: Final = 10
#: Differences that counts cannot show.
BLIND: Final = (
    "equal numbers of missing and extra rows in one table and partition, if no offset is duplicated there; rows with a "
    "wrong offset below the position; rows changed in place"
)
#: Further differences that a count of only some rows cannot show.
BLIND_SINCE: Final = (
    "missing rows, offsets in two tables, and rows with an older event_date, such as late records"
)


@dataclass(frozen=True)
class CountPorts:
    """The ports of a quick reconciliation. ``first_kept`` returns the first event date that a table with rows of some
    topics keeps; None if the warehouse never drops the table's old rows."""

    store: ObjectStore
    offsets: OffsetReader
    warehouse: Warehouse
    first_kept: Callable[[TableReference, frozenset[str]], date | None] = lambda table, topics: None


@dataclass(frozen=True)
class CountSelection:
    """The scope of a count. ``since`` is the first event date to count; None counts all rows."""

    since: date | None = None
    topics: frozenset[str] | None = None
    tables: frozenset[TableReference] | None = None

    def has_partition(self, tp: TopicPartition, books: Books) -> bool:
        """Whether to compare a partition's commit: it is of a chosen topic, and has rows in a chosen table."""
        if self.topics is not None and tp.topic not in self.topics:
            return False
        return self.tables is None or bool(self.tables & books.tables[tp])

    def has_table(self, table: TableReference, found: TableState) -> bool:
        """Whether to include a table: it is chosen, and has rows of a chosen topic."""
        if self.tables is not None and table not in self.tables:
            return False
        return self.topics is None or any(key.partition("/")[0] in self.topics for key in found.marks)


@dataclass(frozen=True)
class CountReport:
    """All counts. ``problems`` are findings without a single table or partition; ``notes`` say what was not
    compared."""

    since: date | None
    tables: tuple[TableCount, ...]
    partitions: tuple[PartitionCount, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """All findings, in order."""
        of_tables = (finding for count in self.tables for finding in count.findings)
        of_partitions = (finding for count in self.partitions for finding in count.findings)
        return (*self.problems, *of_tables, *of_partitions)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """All notes, in order."""
        of_tables = (note for count in self.tables for note in count.notes)
        of_partitions = (note for count in self.partitions for note in count.notes)
        return (*self.notes, *of_tables, *of_partitions)

    @property
    def accounted(self) -> bool:
        return not self.findings

    def expired(self, epochs: Mapping[TopicPartition, Collection[int]]) -> Counter[TopicPartition]:
        """The number of rows of these epochs that are gone because of their age, by partition."""
        found = Counter[TopicPartition]()
        for count in self.tables:
            tp = count.range.topic_partition
            found[tp] += count.expired if count.range.epoch in epochs.get(tp, ()) else 0
        return found

    @property
    def next_steps(self) -> list[str]:
        return next_steps(self.findings)


def reconcile_counts(
    ports: CountPorts,
    selection: CountSelection | None = None,
    *,
    at_once: int = 1,
    on_table: Callable[[TableReference, int], None] = lambda table, tables: None,
    name_doubled: bool = True,
) -> CountReport:
    """Compare the warehouse's counts with tables' states, commits and the broker's offsets. Changes nothing.

    ``at_once`` queries run in parallel. ``on_table`` is called with each counted table and the number of tables.
    ``name_doubled`` also queries the duplicated offsets. Raises Unavailable; NotFound for a topic or table that was
    never extracted or loaded.
    """
    selection = selection or CountSelection()
    topics = state.topic_registry(ports.store)
    _check_known(selection.topics, topics.topics)
    earlier = _commits(ports.store, topics)
    # Read in the order of E6 and L1, to find a file that moves meanwhile.
    tables = state.table_registry(ports.store)
    _check_known(selection.tables, tables.tables)
    backlog = [f for t in tables.tables for c in state.read_backlog(ports.store, t) for f in c.value.files]
    counted = _count_tables(ports, selection, tables.tables, at_once, on_table)
    states = {t: versioned.value for t, versioned in state.read_table_states(ports.store, tables).items()}
    commits = _commits(ports.store, topics)
    ledgers = {
        ledger.topic_partition: ledger
        for key, commit in commits.items()
        for ledger in PartitionHistory.of(earlier.get(key), commit, warehouse_of(ports.store))
    }
    counts = [
        replace(count, findings=(*count.findings, *counting.unknown_offsets(count, ledgers)))
        for count in counted
    ]
    committed = (file for file in _files(earlier) if warehouse_of(ports.store) in file.wanted_by)
    books = Books.of(states, _not_given_up([*committed, *backlog], commits))
    chosen = [ledger for tp, ledger in sorted(ledgers.items()) if selection.has_partition(tp, books)]
    damaged = [each for each in map(TableReference.parse, tables.active) if each not in states]
    problems = [
        *_unreadable(selection, _unread(topics, commits), damaged),
        *(_doubled(ports.warehouse, counts, selection.since) if name_doubled else ()),
    ]
    partitions = _count_partitions(ports.offsets, chosen, books)
    return CountReport(selection.since, tuple(counts), partitions, tuple(problems), _notes(selection, states))


def _notes(selection: CountSelection, states: Mapping[TableReference, TableState]) -> tuple[str, ...]:
    """Notes about the chosen tables that are parked, and those that are not compared."""
    named = {table: found for table, found in states.items() if selection.has_table(table, found)}
    return (*_parked(named), *map(not_compared, with_statements(named)))


def _unreadable(
    selection: CountSelection, unread: Iterable[tuple[str, int]], tables: Iterable[TableReference]
) -> Iterator[Finding]:
    for topic, shard in unread:
        if selection.topics is None or topic in selection.topics:
            found = f"the commit of {topic} (shard {shard}) cannot be read"
            yield Finding(found, f"restore {commit_path(topic, shard)}")
    for table in tables:
        yield Finding(f"the state of table {table} cannot be read", f"restore {table_state_path(table)}")


def with_statements(states: Mapping[TableReference, TableState]) -> list[TableReference]:
    """The tables with statements, in order: their rows do not correspond to single records."""
    return sorted(table for table, found in states.items() if found.has_statements)


def not_compared(table: TableReference) -> str:
    return f"{table}: not compared: its statement decides which records are rows"


def _check_known(chosen: Collection[object] | None, known: Collection[object]) -> None:
    if unknown := set(chosen or ()) - set(known):
        names = ", ".join(sorted(map(str, unknown)))
        raise NotFound(f"nothing is known about {names}", next_step="kbq status lists topics and tables")


def _commits(store: ObjectStore, registry: TopicRegistry) -> _Commits:
    return {(c.value.topic, c.value.shard): c.value for c in state.read_commits(store, registry)}


def _unread(registry: TopicRegistry, commits: _Commits) -> list[tuple[str, int]]:
    active = ((topic, shard) for topic, entry in registry.topics.items() for shard in entry.active)
    return [key for key in active if key not in commits]


def _files(commits: _Commits) -> Iterable[StagedFile]:
    return (file for commit in commits.values() for file in commit.files)


def _not_given_up(files: Iterable[StagedFile], commits: _Commits) -> list[StagedFile]:
    """Files that no reset gave up. Late backlog chunks may still name given-up files (E9)."""
    given_up = {path for commit in commits.values() for path in commit.given_up}
    return [file for file in files if file.path not in given_up]


def _count_tables(
    ports: CountPorts,
    selection: CountSelection,
    tables: Iterable[TableReference],
    at_once: int,
    on_table: Callable[[TableReference, int], None],
) -> list[TableCount]:
    chosen = [t for t in tables if selection.tables is None or t in selection.tables]
    counts: list[TableCount] = []
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda table: _count_table(ports, table, selection.since), chosen)
        for table, counted in zip(chosen, found, strict=True):
            counts.extend(c for c in counted if selection.topics is None or c.range.topic in selection.topics)
            on_table(table, len(chosen))
    return counts


def _count_table(ports: CountPorts, table: TableReference, since: date | None) -> list[TableCount]:
    """Count one table between two reads of its state. Empty if the state cannot be read, or if it has statements."""
    before = _table_state(ports.store, table)
    if before is None or before.has_statements:
        return []
    summary = ports.warehouse.kafka_summary(table, since)
    after = _table_state(ports.store, table)
    states = (before, after or before)
    expired = 0 if since else _expired(ports, table, before)
    return counting.count_table(table, summary, states, whole=since is None, expired=expired)


def _expired(ports: CountPorts, table: TableReference, state: TableState) -> int:
    topics = frozenset(range_.topic for range_ in loaded_rows(state))
    first_kept = ports.first_kept(table, topics) if topics else None
    if first_kept is None:
        return 0
    return counting.may_have_expired(
        state, first_kept, ports.warehouse.kafka_summary(table, first_kept).values()
    )


def _table_state(store: ObjectStore, table: TableReference) -> TableState | None:
    try:
        found = state.find(store, TableState, table_state_path(table))
    except (CorruptState, UnsupportedFormat):
        return None
    return found.value if found else None


def _count_partitions(
    reader: OffsetReader, ledgers: Sequence[PartitionHistory], books: Books
) -> tuple[PartitionCount, ...]:
    broker = reader.offsets([ledger.topic_partition for ledger in ledgers])
    return tuple(
        counting.count_partition(ledger, books, broker.get(ledger.topic_partition)) for ledger in ledgers
    )


def _doubled(warehouse: Warehouse, counts: Iterable[TableCount], since: date | None) -> list[str]:
    """Findings about duplicated offsets in partitions with too many rows. All tables with the partition are
    searched."""
    holders: dict[KafkaRange, set[TableReference]] = defaultdict(set)
    suspicious = set()
    for count in counts:
        holders[count.range].add(count.table)
        if count.suspicious:
            suspicious.add(count.range)
    named: dict[KafkaRange, list[str]] = {}
    for tables in {tuple(sorted(holders[range_])) for range_ in suspicious}:
        offsets: dict[KafkaRange, list[str]] = defaultdict(list)
        for doubled in warehouse.doubled_offsets(tables, since, SHOWN):
            offsets[doubled.range].append(f"{doubled.offset} ({' and '.join(map(str, doubled.tables))})")
        named.update({range_: offsets[range_] for range_ in suspicious if range_ in offsets})
    lines = ((counting.range_name(range_), offsets) for range_, offsets in named.items())
    named_lines = (f"{where}: doubled: offset {', '.join(offsets)}" for where, offsets in lines)
    return sorted(Finding(line, DELETE_ROWS) for line in named_lines)


def _parked(states: Mapping[TableReference, TableState]) -> list[str]:
    return [f"{table} is parked: {s.parked.reason}" for table, s in sorted(states.items()) if s.parked]
