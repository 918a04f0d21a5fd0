"""Reconciliation: checks that every record of the broker is in the warehouse once, or accounted for.

It uses three independent sources: the broker (read again), the warehouse (rows by epoch, partition and offset), and the
producers' own log, if there is one. The commit only shows how far extraction got and how much it skipped; its counters
are compared, but never trusted. `counts` first compares numbers, for every table and epoch.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.replay.brought import lacking
from kbq_assets.core.replay.model import is_shadow
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.account import (
    Account,
    Expected,
    PartitionAccount,
    WarehouseRows,
    Witnesses,
)
from kbq_assets.extras.reconcile.again import Again
from kbq_assets.extras.reconcile.counts import (
    CountPorts,
    CountSelection,
    not_compared,
    reconcile_counts,
    with_statements,
)
from kbq_assets.extras.reconcile.findings import Finding, next_steps
from kbq_assets.extras.reconcile.newest import UpsertAccount
from kbq_assets.extras.reconcile.unloaded import Unloaded, epochs_of
from kbq_assets.extras.reconcile.upserts import UpsertComparison
from kbq_assets.extras.reconcile.values import NONE, ValueReport, compare_values
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.erasures import erased_of
from kbq_assets.pipelines.protocol.snapshot import Snapshot, read_snapshot
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.ports.kafka import OffsetReader, RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets.worker.unit import WorkerPorts

#: Reads the broker's offsets of commits' partitions.
_Broker: TypeAlias = Callable[[Iterable[Commit]], dict[TopicPartition, BrokerOffsets]]


@dataclass(frozen=True)
class ReconcilePorts:
    """The ports of a reconciliation. ``expected`` is the producers' log; None for partitions that are not in it.

    ``sources`` is the source list. ``compacts``: whether the broker compacts a topic. ``worker`` opens the ports that
    read records again like an extraction. ``count`` has the ports of `reconcile_counts`.
    """

    store: ObjectStore
    offsets: OffsetReader
    source: RecordSource
    warehouse: Warehouse
    count: CountPorts
    worker: Callable[[], WorkerPorts]
    sources: Iterable[SourceEntry] = ()
    expected: Callable[[TopicPartition], Expected | None] = lambda tp: None
    compacts: Callable[[str], bool] = lambda topic: False


@dataclass(frozen=True)
class Reconciliation:
    """The accounts of all partitions.

    ``problems`` are findings without a single partition. ``stops`` wait for an operator. ``unread_new`` are positions
    of partitions that were never extracted; they are not missing, but not in the warehouse yet.
    """

    partitions: tuple[PartitionAccount, ...]
    problems: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    stops: tuple[PartitionStop, ...] = ()
    unread_new: int = 0
    values: ValueReport = field(default_factory=ValueReport)
    #: tables with the newest record of each key
    upserts: tuple[UpsertAccount, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        of_partitions = (finding for account in self.partitions for finding in account.findings)
        of_upserts = (finding for account in self.upserts for finding in account.findings)
        return (*self.problems, *of_partitions, *of_upserts, *self.values.findings)

    @property
    def accounted(self) -> bool:
        """Whether every record below the positions is accounted for."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """`yes`, `no`, or `unknown` if no difference was found but something could not be compared."""
        if self.accounted:
            return "yes"
        return "unknown" if all(finding.is_unknown for finding in self.findings) else "no"

    @property
    def is_whole(self) -> bool:
        """Whether everything is accounted for and no partition waits for an operator."""
        return self.accounted and not self.stops

    @property
    def unread(self) -> int:
        """Positions that extraction has not read yet."""
        return self.unread_new + sum(account.unread for account in self.partitions)

    @property
    def next_steps(self) -> list[str]:
        of_stops = (command for stop in self.stops for command in stop.commands)
        return list(dict.fromkeys((*next_steps(self.findings), *of_stops)))

    def totals(self, topic: str | None = None) -> dict[str, int]:
        """Numbers of records produced, staged, loaded, in error and skipped, of one topic or of all.

        ``produced`` is the producers' count if there is one, otherwise the broker's.
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
        of_upserts = (topic for account in self.upserts for topic in account.topics)
        return sorted({*(a.topic_partition.topic for a in self.partitions), *of_upserts})


def reconcile(
    ports: ReconcilePorts, *, only: frozenset[str] | None = None, values: str = NONE
) -> Reconciliation:
    """Compare the broker, the warehouse and the producers' log for every committed partition. Also compare the
    ``values`` of a sample of rows, of all, or of none. Raises Unavailable."""
    registry = state.topic_registry(ports.store)
    counts = reconcile_counts(
        ports.count,
        CountSelection(topics=None if only is None else only & registry.topics.keys()),
        name_doubled=False,
    )
    snapshot = read_snapshot(ports.store, ports.offsets, ports.sources, only=only)
    planned = snapshot.plan()
    recreated = {s.topic_partition.topic for s in planned.stops if s.reason == StopReason.RECREATED}
    broker = partial(_broker, ports.offsets, recreated)
    commits = [c.value for c in state.read_commits(ports.store, registry)]
    commits = [c for c in commits if only is None or c.topic in only]
    partly, nothing = _given_in_part(commits, warehouse_of(ports.store))
    changed = _with_statements(ports.store)
    changed = {table: topics for table, topics in changed.items() if only is None or topics & only}
    comparable = {table: topics for table, topics in changed.items() if not topics & partly.keys()}
    upserts = _upserts(ports, commits, broker, snapshot.settings, comparable)
    commits = [c for c in commits if c.topic not in {*partly, *nothing}.union(*changed.values())]
    expired = counts.expired(epochs_of(commits))
    accounts, problems = _accounts(ports, commits, broker, snapshot.settings, expired)
    notes = [f"the warehouse was given no record of {counted(len(nothing), 'topic')}"] if nothing else []
    outdated = set(map(not_compared, changed))  # their upserts are compared here
    notes += [note for note in counts.notes if note not in outdated]
    notes += [note for count in counts.tables for note in count.notes]
    return Reconciliation(
        partitions=tuple(sorted(accounts, key=lambda account: account.topic_partition)),
        problems=(*map(Finding.of, counts.findings), *problems, *partly.values()),
        notes=tuple(notes),
        stops=planned.stops,
        unread_new=_never_read(planned, snapshot),
        values=ValueReport()
        if values == NONE
        else compare_values(
            Again(ports.worker, snapshot.settings), ports.warehouse, commits, broker(commits), values
        ),
        upserts=upserts,
    )


def _broker(
    reader: OffsetReader, recreated: Collection[str], commits: Iterable[Commit]
) -> dict[TopicPartition, BrokerOffsets]:
    """The broker's offsets of the commits' partitions, without topics that were ``recreated``: their records are others
    under the same offsets."""
    own = [c.topic_partition(p) for c in commits if c.topic not in recreated for p in c.partitions]
    return dict(reader.offsets(own))


def _with_statements(store: ObjectStore) -> dict[TableReference, set[str]]:
    """Tables with statements, and their topics. Their rows do not correspond to single records."""
    states = {t: found.value for t, found in state.read_table_states(store).items()}
    return {
        table: {mark.partition("/")[0] for mark in states[table].marks} for table in with_statements(states)
    }


def _upserts(
    ports: ReconcilePorts,
    commits: list[Commit],
    broker: _Broker,
    settings: Mapping[str, TopicSettings],
    changed: Mapping[TableReference, set[str]],
) -> tuple[UpsertAccount, ...]:
    """The accounts of tables with statements that the commits feed."""
    own = [c for c in commits if c.topic in set().union(*changed.values())]
    files = Unloaded.read(ports.store, own)

    def waiting(tp: TopicPartition) -> list[StagedFile]:
        found = files.waiting(tp)
        return [*found.pending, *found.quarantined]

    def states() -> dict[TableReference, TableState]:
        found = state.read_table_states(ports.store)
        return {table: each.value for table, each in found.items()}

    comparison = UpsertComparison(
        Again(ports.worker, settings),
        ports.warehouse,
        broker(own),
        settings,
        states,
        waiting,
        ports.compacts,
        partial(erased_of, ports.store),
    )
    return tuple(
        comparison.of(table, topics, [c for c in own if c.topic in topics])
        for table, topics in sorted(changed.items())
    )


def _given_in_part(commits: Iterable[Commit], warehouse: str) -> tuple[dict[str, Finding], frozenset[str]]:
    """Topics that gave the warehouse only a part of their records, and those that gave it none. It is unknown which
    records it got, so their rows are only counted."""
    given, every = Counter[str](), Counter[str]()
    partly = set()
    for commit in commits:
        for partition in commit.partitions.values():
            own, others = partition.totals_for(warehouse), lacking(partition, warehouse)
            given[commit.topic] += own.staged + own.errors
            every[commit.topic] += own.staged + own.errors + others
            if others:
                partly.add(commit.topic)
    nothing = frozenset(topic for topic in partly if not given[topic])
    text = "{}: the warehouse was given {:,} of {:,} rows; they were counted, but not compared one by one"
    return {
        topic: Finding(text.format(topic, given[topic], every[topic]), is_unknown=True)
        for topic in sorted(partly - nothing)
    }, nothing


def _accounts(
    ports: ReconcilePorts,
    commits: list[Commit],
    broker: _Broker,
    settings: Mapping[str, TopicSettings],
    expired: Mapping[TopicPartition, int],
) -> tuple[list[PartitionAccount], list[Finding]]:
    ends, rows = broker(commits), _warehouse_rows(ports.warehouse, commits)
    files = Unloaded.read(ports.store, commits)
    witnesses = Witnesses(
        ports.source,
        ports.expected,
        ports.compacts,
        lambda topic: topic in settings and settings[topic].records.tombstones == "skip",
        Again(ports.worker, settings).judge,
        partial(erased_of, ports.store),
        warehouse_of(ports.store),
    )
    accounts = []
    for commit in commits:
        for partition, position in sorted(commit.partitions.items()):
            tp = commit.topic_partition(partition)
            waiting = replace(files.waiting(tp), expired=expired.get(tp, 0))
            account = Account(commit, tp, position, ends.get(tp), rows[tp], waiting, witnesses)
            accounts.append(account.settle())
    return accounts, files.missing()


def _warehouse_rows(
    warehouse: Warehouse, commits: Iterable[Commit]
) -> defaultdict[TopicPartition, WarehouseRows]:
    epochs = epochs_of(commits)
    found: defaultdict[TopicPartition, WarehouseRows] = defaultdict(WarehouseRows)
    for table in itertools.filterfalse(is_shadow, warehouse.tables()):
        for range_ in warehouse.kafka_ranges(table):
            tp = range_.topic_partition
            if range_.epoch in epochs.get(tp, ()):
                earlier = Counter(found[tp].tables.get(table, {}))
                found[tp].tables[table] = earlier + Counter(warehouse.positions(table, range_))
    return found


def _never_read(planned: ExtractionPlan, snapshot: Snapshot) -> int:
    """The number of positions in partitions that no commit has."""
    starts = {a.topic_partition: a.start for a in planned.additions}
    for creation in planned.creations:
        starts |= {TopicPartition(creation.topic, p): start for p, start in creation.starts.items()}
    return sum(max(0, snapshot.offsets[tp].latest - start) for tp, start in starts.items())
