"""Status: positions, lag, backlogs, errors, stopped partitions and parked tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.errors_replay.intents import intent_words
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.restarts import MayRestart, next_parking_try_ms, retry_in_words
from kbq_assets.core.extraction.stops import PartitionStop, entry_stops
from kbq_assets.core.loading.batches import blocked_files, pending_files
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.mismatches import jobs_of
from kbq_assets.core.loading.replacing import replacing_words
from kbq_assets.core.loading.schema_changes import SchemaChange
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.arrivals import Arrivals
from kbq_assets.core.observation.run_totals import RunFailure
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import TableOrder
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.protocol.waits import park_commands, stop_commands
from kbq_assets.core.statements.switching import waiting_words
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.backup.plan import OpenArea
from kbq_assets.pipelines.backup.status import BackupsStatus, read_backups
from kbq_assets.pipelines.extraction.ports import no_backups
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.ports import blocked_by, topics_of
from kbq_assets.pipelines.loading.view import UNUSABLE, FindBlocks, LoadView, read_view
from kbq_assets.pipelines.observation.replays import unfinished_replays
from kbq_assets.pipelines.observation.run_failures import interruptions, load_failures
from kbq_assets.pipelines.protocol.evolutions import read_evolutions
from kbq_assets.pipelines.protocol.snapshot import read_snapshot
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class PartitionStatus:
    """One partition. ``lag`` is the number of positions up to the last stable offset; ``pending_rows`` wait to be
    loaded."""

    topic_partition: TopicPartition
    epoch: int
    position: int
    lag: int
    totals: Counts
    pending_windows: int
    pending_rows: int


@dataclass(frozen=True)
class BatchStatus:
    """The order of a table's batches, and the state of its statements."""

    order: TableOrder = field(default_factory=TableOrder)
    statements: TableStatements = field(default_factory=TableStatements)
    #: the change of `load` that waits
    switch: str = ""
    #: the failed batch that an operator may retry or skip
    failed: int = 0


@dataclass(frozen=True)
class TableStatus:
    """One table: its loaded and waiting rows and files, and any problem."""

    table: TableReference
    #: ready, in flight, blocked (``blocked_rows`` wait for a check), parked, failing (its last load failed), failed
    #: (its state object is unreadable), unknown (the store does not give its state or backlog now)
    state: str
    loaded_rows: int
    pending_rows: int
    pending_files: int
    quarantined_files: int
    #: jobs that loaded another number of rows than their files have
    mismatches: int
    #: the problem, and the commands that fix it
    message: str = ""
    #: failed attempts since the table was parked
    tries: int = 0
    #: when a load tries the parked table again (0: never)
    next_try_ms: int = 0
    blocked_rows: int = 0
    #: recent changes of its columns
    changes: tuple[SchemaChange, ...] = ()
    hours: TableHours = field(default_factory=TableHours)
    #: when a job last loaded something (0: never)
    loaded_ms: int = 0
    batches: BatchStatus = field(default_factory=BatchStatus)

    @property
    def complete_until(self) -> int:
        """Hours (since 1970) below this one are complete; 0 if none is known to be complete."""
        return self.hours.until

    @property
    def late_rows(self) -> int:
        """Rows that arrived after their hours were complete."""
        return self.hours.late_rows


@dataclass(frozen=True)
class Status:
    """The status of everything. ``stops`` include the commands that resume them. ``evolved``: new columns and tables
    for schemas that contradict their tables."""

    partitions: tuple[PartitionStatus, ...]
    tables: tuple[TableStatus, ...]
    stops: tuple[PartitionStop, ...]
    new_partitions: int
    evolved: tuple[Evolution, ...] = ()
    #: backups of topics; a stopped backup stops no table
    backups: BackupsStatus = field(default_factory=BackupsStatus)
    #: unfinished replays, each with its next steps
    replays: tuple[str, ...] = ()
    #: batches of files
    arrivals: Arrivals = field(default_factory=Arrivals)
    #: partitions where the last extraction was interrupted; the next one continues there
    interrupted: tuple[PartitionStop, ...] = ()
    #: objects that the store does not give now, by path, each with the error
    unavailable: Mapping[str, str] = field(default_factory=dict)


def read_stored_status(
    cache: StateCache,
    sources: Iterable[SourceEntry],
    restarts: MayRestart = lambda topics: True,
    blocks: FindBlocks | None = None,
) -> Status:
    """Positions, tables and stops from the source list and the staging area. Needs no broker, so lags are unknown, and
    so are stops that only the broker shows. An object that the store does not give now is ``unavailable``."""
    view = read_view(cache, blocks or LoadBlocks(), survives_silence=True)
    planned = ExtractionPlan(stops=stored_stops(view, sources))
    found = status_of(view, {}, planned, restarts, survives_silence=True)
    known = (p.topic_partition for p in found.partitions)
    return dataclasses.replace(found, interrupted=tuple(interruptions(cache, known)))


def stored_stops(view: LoadView, sources: Iterable[SourceEntry]) -> tuple[PartitionStop, ...]:
    """Stops that the source list and the state show."""
    stopped = (
        (commit.topic_partition(p), found.stop)
        for commit in view.commits
        for p, found in commit.partitions.items()
    )
    recorded = (
        PartitionStop(tp, stop.reason, stop.message, stop_commands(stop.reason, tp))
        for tp, stop in stopped
        if stop is not None
    )
    return (*recorded, *entry_stops(sources, view.topics.topics))


def read_status(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    restarts: MayRestart = lambda topics: True,
    blocks: FindBlocks | None = None,
    open_backup: OpenArea = no_backups,
    *,
    survives_silence: bool = False,
) -> Status:
    """Read the status of everything. Raises Unavailable if the broker or the store does not answer; with
    ``survives_silence``, not for a commit, state or backlog: it is ``unavailable``."""
    cache = StateCache(store)
    view = read_view(cache, blocks or LoadBlocks(), survives_silence=survives_silence)
    sources = tuple(sources)
    seen = read_snapshot(store, reader, sources, known=(view.topics, view.commit_objects))
    found = status_of(view, seen.offsets, seen.plan(), restarts, survives_silence=survives_silence)
    lags = {tp: offsets.latest - offsets.earliest for tp, offsets in seen.offsets.items()}
    lags |= {p.topic_partition: p.lag for p in found.partitions}
    return dataclasses.replace(
        found,
        evolved=read_evolutions(store, seen.settings.values()),
        backups=read_backups(sources, reader, open_backup),
        replays=tuple(each.line for each in unfinished_replays(cache)),
        interrupted=tuple(interruptions(cache, (tp for tp, lag in lags.items() if lag))),
    )


def status_of(
    view: LoadView,
    broker: Mapping[TopicPartition, BrokerOffsets],
    planned: ExtractionPlan,
    restarts: MayRestart = lambda topics: True,
    *,
    survives_silence: bool = False,
) -> Status:
    """The status, computed from a view, broker offsets and a plan. Lag is 0 for partitions without broker offsets. For
    ``survives_silence``, see `read_status`."""
    partitions = tuple(
        _partition(commit, partition, broker, view)
        for commit in view.commits
        for partition in sorted(commit.partitions)
    )
    tables = _tables(view, restarts, view.silent_tables if survives_silence else ())
    unavailable = view.silent if survives_silence else {}
    return Status(partitions, tables, planned.stops, _new(planned), unavailable=unavailable)


def read_tables(
    cache: StateCache,
    restarts: MayRestart = lambda topics: True,
    blocks: FindBlocks | None = None,
    *,
    survives_silence: bool = False,
) -> tuple[TableStatus, ...]:
    """Every table that has rows or will have some. Needs no broker. For ``survives_silence``, see `read_status`."""
    view = read_view(cache, blocks or LoadBlocks(), survives_silence=survives_silence)
    return _tables(view, restarts, view.silent_tables if survives_silence else ())


def feeds_of(view: LoadView) -> dict[TableReference, frozenset[str]]:
    """The topics of each table's loaded rows and waiting files; empty for a table whose state is unreadable."""
    return {table: _topics(view, table) for table in view.tables}


def _topics(view: LoadView, table: TableReference) -> frozenset[str]:
    try:
        loaded = {key.partition("/")[0] for key in view.state_of(table).rows}
        return topics_of(view.files(table)) | loaded
    except UNUSABLE:
        return frozenset()


def _tables(
    view: LoadView, restarts: MayRestart, silent: Collection[TableReference]
) -> tuple[TableStatus, ...]:
    failures = load_failures(view.cache)
    return tuple(
        TableStatus(t, "unknown", 0, 0, 0, 0, 0)
        if t in silent
        else _with_failure(_table(view, t, restarts), failures)
        for t in view.tables
    )


def _with_failure(found: TableStatus, failures: Mapping[str, RunFailure]) -> TableStatus:
    """The status, with the failure of the table's last load if its state shows no other problem."""
    failure = failures.get(str(found.table))
    if failure is None or found.message:
        return found
    return dataclasses.replace(found, state="failing", message=f"the last load failed: {failure.message}")


def _partition(
    commit: Commit, partition: int, broker: Mapping[TopicPartition, BrokerOffsets], view: LoadView
) -> PartitionStatus:
    tp, found = commit.topic_partition(partition), commit.partitions[partition]
    lag = max(0, broker[tp].latest - found.next) if tp in broker else 0
    listed = (f for w in found.windows for f in w.files if view.warehouse in f.wanted_by)
    pending = [file for file in listed if not _is_loaded(file, view)]
    windows = len({f.window for f in pending})
    return PartitionStatus(
        tp, commit.epoch, found.next, lag, found.totals, windows, sum(f.rows for f in pending)
    )


def _is_loaded(file: StagedFile, view: LoadView) -> bool:
    """Whether a file is loaded: loaded windows stay in the commit until the next extraction drops them (E7)."""
    found = view.states.get(file.table)
    return isinstance(found, Versioned) and found.value.is_loaded(file)


def _table(view: LoadView, table: TableReference, restarts: MayRestart) -> TableStatus:
    try:
        current, files = view.state_of(table), view.files(table)
    except UNUSABLE as error:
        return TableStatus(table, "failed", 0, 0, 0, 0, 0, message=str(error))
    pending = pending_files(current, files)
    parked = current.parked
    next_ms = next_parking_try_ms(parked) if parked and restarts(topics_of(files)) else 0
    blocked = blocked_files(current, files, view.given_up, view.blocks)
    return TableStatus(
        table,
        _state_of(current, blocked),
        loaded_rows=sum(current.rows.values()),
        pending_rows=sum(f.rows for f in pending),
        pending_files=len(pending),
        quarantined_files=len(current.quarantined),
        mismatches=jobs_of(current.mismatches),
        message=_why(table, current, next_ms) or (blocked_by(blocked, view.blocks) if blocked else ""),
        tries=parked.tries if parked else 0,
        next_try_ms=next_ms,
        blocked_rows=sum(f.rows for f in blocked),
        changes=current.definition.changes,
        hours=current.hours,
        loaded_ms=current.jobs.ended.last_ms,
        batches=BatchStatus(
            order=current.order,
            statements=current.definition.statements,
            switch=waiting_words(current, pending),
            failed=transitions.failed_batch(current),
        ),
    )


def _state_of(current: TableState, blocked: Collection[StagedFile]) -> str:
    if current.parked:
        return "parked"
    if current.in_flight or current.definition.replacing:
        return "in flight"
    return "blocked" if blocked else "ready"


def _why(table: TableReference, current: TableState, next_ms: int) -> str:
    """The reason why a table is parked and how to resume it, or what it waits for or retries; "" if none applies."""
    if (replacing := current.definition.replacing) is not None:
        return replacing_words(replacing)
    if current.definition.replaying is not None:
        return intent_words(current.definition.replaying)
    if current.restarting is not None:
        return f"KBQ tries again after {current.restarting.reason}: {current.restarting.error}"
    if current.parked is None:
        return ""
    following = " or ".join(park_commands(table, current.parked.reason, transitions.failed_batch(current)))
    why = f"{current.parked.reason}: {current.parked.error}; next: {following}"
    return f"{why} ({retry_in_words(current.parked.tries, next_ms)})" if next_ms else why


def _new(planned: ExtractionPlan) -> int:
    return len(planned.additions) + sum(len(c.starts) for c in planned.creations)
