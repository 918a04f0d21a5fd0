"""Where everything stands: positions, lag, backlogs, errors, what is stopped or parked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbq_assets.core.commits import Commit, Counts, StagedFile
from kbq_assets.core.errors import StateError
from kbq_assets.core.loading import pending_files
from kbq_assets.core.names import TableReference
from kbq_assets.core.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.planning import ExtractionPlan, PartitionStop, plan_extraction
from kbq_assets.core.topics import SourceEntry
from kbq_assets.pipelines.extract import snapshot_topics
from kbq_assets.pipelines.load_view import LoadView, read_view
from kbq_assets.pipelines.state import Versioned
from kbq_assets.pipelines.state_cache import StateCache
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class PartitionStatus:
    """One partition. ``lag`` is in positions up to the last stable offset; ``pending_rows`` wait to be loaded."""

    topic_partition: TopicPartition
    epoch: int
    position: int
    lag: int
    totals: Counts
    pending_windows: int
    pending_rows: int


@dataclass(frozen=True)
class TableStatus:
    """One table. ``state`` is ready, flying, parked, or failed: its state object cannot be read. ``mismatches`` are
    jobs whose row counts differed."""

    table: TableReference
    state: str
    loaded_rows: int
    pending_rows: int
    pending_files: int
    quarantined_files: int
    mismatches: int
    message: str = ""


@dataclass(frozen=True)
class Status:
    """The whole picture. ``stops`` name the commands that go on."""

    partitions: tuple[PartitionStatus, ...]
    tables: tuple[TableStatus, ...]
    stops: tuple[PartitionStop, ...]
    new_partitions: int


def read_status(store: ObjectStore, reader: OffsetReader, sources: Iterable[SourceEntry]) -> Status:
    """Read the state of everything. Raises Unavailable when the broker does not answer."""
    snapshots = snapshot_topics(store, reader, sources)
    wanted = [
        TopicPartition(s.description.topic, p) for s in snapshots for p in range(s.description.partitions)
    ]
    broker = reader.offsets(wanted)
    planned = plan_extraction(snapshots, broker, reader.cluster_id())
    view = read_view(StateCache(store))
    partitions = tuple(
        _partition(commit, partition, broker, view)
        for commit in view.commits
        for partition in sorted(commit.partitions)
    )
    return Status(partitions, _tables(view), planned.stops, _new(planned))


def read_tables(cache: StateCache) -> tuple[TableStatus, ...]:
    """Every table that has, or will have, rows. Needs no broker."""
    return _tables(read_view(cache))


def _tables(view: LoadView) -> tuple[TableStatus, ...]:
    return tuple(_table(view, table) for table in view.tables)


def _partition(
    commit: Commit, partition: int, broker: Mapping[TopicPartition, BrokerOffsets], view: LoadView
) -> PartitionStatus:
    tp, found = commit.topic_partition(partition), commit.partitions[partition]
    lag = max(0, broker[tp].latest - found.next) if tp in broker else 0
    pending = [f for w in found.windows for f in w.files if not _is_loaded(f, view)]
    windows = len({f.window for f in pending})
    return PartitionStatus(
        tp, commit.epoch, found.next, lag, found.totals, windows, sum(f.rows for f in pending)
    )


def _is_loaded(file: StagedFile, view: LoadView) -> bool:
    """Loaded windows stay in the commit until the next extraction drops them (E7)."""
    found = view.states.get(file.table)
    return isinstance(found, Versioned) and found.value.is_loaded(file)


def _table(view: LoadView, table: TableReference) -> TableStatus:
    try:
        current, files = view.state_of(table), view.files(table)
    except StateError as error:
        return TableStatus(table, "failed", 0, 0, 0, 0, 0, error.message)
    pending = pending_files(current, files)
    parked = current.parked
    kind = "parked" if parked else "flying" if current.flight else "ready"
    return TableStatus(
        table,
        kind,
        sum(current.rows.values()),
        sum(f.rows for f in pending),
        len(pending),
        len(current.quarantined),
        len(current.mismatches),
        f"{parked.reason}: {parked.error}; next: kbq resume --table {table}" if parked else "",
    )


def _new(planned: ExtractionPlan) -> int:
    return len(planned.additions) + sum(len(c.starts) for c in planned.creations)
