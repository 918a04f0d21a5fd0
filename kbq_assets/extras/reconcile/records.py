"""Reconciliation: every record of the broker is in the warehouse once, or accounted for by name.

It uses three independent witnesses: the broker (read again, offsets only), the warehouse (rows by epoch,
partition and offset), and, if there is one, the producers' own log. The commit only shows how far extraction got
and what it skipped; its counters are compared, never trusted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.topics.options import ERROR_TABLE
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import OffsetReader, RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse

#: Maximum offsets named per finding; the rest is counted.
SHOWN = 10
#: A producers' log by offset: `row:<dataset>.<table>`, `error` or `skip`.
Expected = Mapping[int, str]


@dataclass(frozen=True)
class ReconcilePorts:
    """The ports of a reconciliation. ``expected`` is the producers' log, None for partitions that it does not have."""

    store: ObjectStore
    offsets: OffsetReader
    source: RecordSource
    warehouse: Warehouse
    expected: Callable[[TopicPartition], Expected | None] = lambda tp: None


@dataclass(frozen=True)
class PartitionAccount:
    """The account of one partition since its topic's start or its last reset.

    ``read`` are records that the broker delivers again below ``position``; ``gaps`` are positions without one.
    ``unread`` are positions above it. ``retired`` are records that the broker no longer has: only counted.
    """

    topic_partition: TopicPartition
    epoch: int
    position: int
    produced: int | None
    read: int
    gaps: int
    retired: int
    pending: int
    rows: int
    errors: int
    skipped: int
    quarantined: int
    lost: int
    unread: int
    findings: tuple[str, ...] = ()

    @property
    def accounted(self) -> bool:
        """Whether nothing is missing, doubled or unknown."""
        return not self.findings


@dataclass(frozen=True)
class Reconciliation:
    """The accounts of all partitions."""

    partitions: tuple[PartitionAccount, ...]

    @property
    def accounted(self) -> bool:
        """Whether every record of every partition is accounted for."""
        return all(account.accounted for account in self.partitions)

    def totals(self, topic: str | None = None) -> dict[str, int]:
        """Records produced, staged, loaded, in error, skipped: of one topic or of all.

        ``produced`` is the producers' count if they keep one, else the broker's.
        """
        chosen = [a for a in self.partitions if topic in (None, a.topic_partition.topic)]
        return {
            "produced": sum(a.read + a.retired if a.produced is None else a.produced for a in chosen),
            "staged": sum(a.pending + a.rows + a.quarantined for a in chosen),
            "loaded": sum(a.rows for a in chosen),
            "errors": sum(a.errors for a in chosen),
            "skipped": sum(a.skipped for a in chosen),
        }

    @property
    def topics(self) -> list[str]:
        """Topics in order."""
        return sorted({a.topic_partition.topic for a in self.partitions})


@dataclass
class _Rows:
    """Rows of one partition and epoch in the warehouse: the number of rows per offset and table."""

    tables: dict[TableReference, Mapping[int, int]] = field(default_factory=dict)

    def count(self, *, errors: bool) -> int:
        chosen = (rows for table, rows in self.tables.items() if (table.table == ERROR_TABLE) == errors)
        return sum(sum(rows.values()) for rows in chosen)

    def offsets(self) -> Counter[int]:
        counter: Counter[int] = Counter()
        for rows in self.tables.values():
            counter.update(rows)
        return counter


def reconcile(ports: ReconcilePorts, *, only: frozenset[str] | None = None) -> Reconciliation:
    """Compare broker, warehouse and producers' log for every committed partition. Raises Unavailable."""
    commits = [c.value for c in state.read_commits(ports.store, state.topic_registry(ports.store))]
    commits = [c for c in commits if only is None or c.topic in only]
    partitions = [c.topic_partition(p) for c in commits for p in c.partitions]
    broker = ports.offsets.offsets(partitions)
    rows = _warehouse_rows(ports.warehouse, commits)
    quarantined = _quarantined_rows(ports.store, commits)
    pending = _pending_rows(ports.store, commits)
    accounts = []
    for commit in commits:
        for partition, position in sorted(commit.partitions.items()):
            tp = commit.topic_partition(partition)
            account = _Account(commit, tp, position, broker.get(tp), rows[tp], pending[tp], quarantined[tp])
            accounts.append(account.settle(ports))
    return Reconciliation(tuple(sorted(accounts, key=lambda a: a.topic_partition)))


def _warehouse_rows(warehouse: Warehouse, commits: Iterable[Commit]) -> defaultdict[TopicPartition, _Rows]:
    epochs = _epochs(commits)
    found: defaultdict[TopicPartition, _Rows] = defaultdict(_Rows)
    for table in warehouse.tables():
        for range_ in warehouse.kafka_ranges(table):
            tp = TopicPartition(range_.topic, range_.partition)
            if range_.epoch in epochs.get(tp, ()):
                earlier = Counter(found[tp].tables.get(table, {}))
                found[tp].tables[table] = earlier + Counter(warehouse.positions(table, range_))
    return found


def _epochs(commits: Iterable[Commit]) -> dict[TopicPartition, range]:
    """Epochs whose rows count: a reset of other partitions raises the epoch too (E9)."""
    return {
        c.topic_partition(p): range(found.since, c.epoch + 1)
        for c in commits
        for p, found in c.partitions.items()
    }


def _quarantined_rows(store: ObjectStore, commits: Iterable[Commit]) -> Counter[TopicPartition]:
    epochs = _epochs(commits)
    rows: Counter[TopicPartition] = Counter()
    for table in state.read_table_states(store, state.table_registry(store)).values():
        for bad in table.value.quarantined:
            name = bad.file.name
            if name.epoch in epochs.get(name.topic_partition, ()):
                rows[name.topic_partition] += bad.file.rows
    return rows


def _pending_rows(store: ObjectStore, commits: Iterable[Commit]) -> Counter[TopicPartition]:
    """Rows in committed files and backlogs beyond the tables' marks."""
    registry = state.table_registry(store)
    states = state.read_table_states(store, registry)
    files = [f for c in commits for f in c.files]
    for table in registry.tables:
        files.extend(f for chunk in state.read_backlog(store, table) for f in chunk.value.files)
    rows: Counter[TopicPartition] = Counter()
    for file in {f.path: f for f in files}.values():
        if file.table not in states or not states[file.table].value.is_loaded(file):
            rows[file.name.topic_partition] += file.rows
    return rows


@dataclass
class _Account:
    commit: Commit
    tp: TopicPartition
    state: PartitionCommit
    broker: BrokerOffsets | None
    rows: _Rows
    pending: int
    quarantined: int
    findings: list[str] = field(default_factory=list)

    def settle(self, ports: ReconcilePorts) -> PartitionAccount:
        position, totals = self.state.next, self.state.totals
        earliest = min(max(self.state.start, self.broker.earliest), position) if self.broker else position
        delivered = self._delivered(ports.source, earliest) if self.broker else []
        expected = ports.expected(self.tp)
        stored = self.rows.offsets()
        self._find_doubled()
        self._find_unknown(stored, delivered, earliest)
        if expected is None:
            self._find_missing(stored, delivered, earliest)
        else:
            self._compare_with_log({o: e for o, e in expected.items() if o < position})
        retired = sum(1 for offset in stored if offset < earliest)
        return PartitionAccount(
            self.tp,
            self.commit.epoch,
            position,
            None if expected is None else sum(1 for o in expected if o < position),
            len(delivered),
            position - earliest - len(delivered),
            retired,
            self.pending,
            self.rows.count(errors=False),
            self.rows.count(errors=True),
            totals.skipped,
            self.quarantined,
            totals.lost,
            max(0, self.broker.latest - position) if self.broker else 0,
            tuple(self.findings),
        )

    def _delivered(self, source: RecordSource, earliest: int) -> list[int]:
        """Offsets that the broker delivers in [earliest, position)."""
        range_ = OffsetRange(self.tp, earliest, self.state.next)
        if not range_:
            return []
        return [offset for batch in source.read(range_) for offset in batch.chunk.offsets.tolist()]

    def _find_doubled(self) -> None:
        """Report offsets with several rows, in one table or in two."""
        where: dict[int, list[str]] = defaultdict(list)
        for table, rows in self.rows.tables.items():
            for offset, count in rows.items():
                where[offset].extend([str(table)] * count)
        doubled = {offset: tables for offset, tables in where.items() if len(tables) > 1}
        if doubled:
            self._name("doubled", [f"{o} ({' and '.join(t)})" for o, t in sorted(doubled.items())])

    def _find_unknown(self, stored: Counter[int], delivered: list[int], earliest: int) -> None:
        """Report rows of an offset that holds no record, or that is not committed."""
        known = set(delivered)
        unknown = [o for o in sorted(stored) if o >= self.state.next or (o >= earliest and o not in known)]
        if unknown:
            self._name("in the warehouse but not on the broker", [self._where(o) for o in unknown])

    def _find_missing(self, stored: Counter[int], delivered: list[int], earliest: int) -> None:
        missing = [o for o in delivered if o not in stored]
        excused = self.pending + self.state.totals.skipped + self.quarantined
        # Records that the broker no longer has are only compared by number.
        retired = self.state.totals.records - len(delivered)
        missing_retired = retired - sum(1 for o in stored if o < earliest)
        if len(missing) + missing_retired != excused:
            message = f"not in the warehouse; {excused} of them are explained (pending, skipped, quarantined)"
            self._name(message, [str(o) for o in missing] or [f"{missing_retired} records below {earliest}"])

    def _compare_with_log(self, expected: Expected) -> None:
        wrong: dict[str, list[str]] = defaultdict(list)
        pending = self.pending + self.quarantined
        for offset, outcome in sorted(expected.items()):
            tables = [str(t) for t, rows in self.rows.tables.items() if offset in rows]
            wanted = self._wanted(outcome)
            if tables != wanted:
                kind = "missing" if not tables else "in another table than the producers' log says"
                wrong[kind].append(f"{offset} (expected {' '.join(wanted) or 'nowhere'})")
        if len(wrong["missing"]) == pending:
            del wrong["missing"]
        for kind, rows in wrong.items():
            self._name(kind, rows)
        unlogged = [o for o in self.rows.offsets() if o not in expected]
        if unlogged:
            self._name("not in the producers' log", [self._where(o) for o in sorted(unlogged)])

    def _wanted(self, outcome: str) -> list[str]:
        if outcome.startswith("row:"):
            return [outcome.removeprefix("row:")]
        if outcome == "skip":
            return []
        return [str(t) for t in self.rows.tables if t.table == ERROR_TABLE] or [ERROR_TABLE]

    def _where(self, offset: int) -> str:
        tables = [str(t) for t, rows in self.rows.tables.items() if offset in rows]
        return f"{offset} ({' and '.join(tables)})"

    def _name(self, what: str, offsets: list[str]) -> None:
        shown = ", ".join(offsets[:SHOWN])
        more = f" and {len(offsets) - SHOWN} more" if len(offsets) > SHOWN else ""
        self.findings.append(f"{self.tp} epoch {self.commit.epoch}: {what}: offset {shown}{more}")
