"""The operator's commands: accept-gap, reset, bootstrap, resume (PROTOCOL E1, E2, E9, E10, L5).

Each command first makes a *proposal* that lists what it gives up. The proposal is applied only after confirmation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbq_assets.core.errors import MissingState, NotFound, Refused, Unavailable
from kbq_assets.core.extraction.restarts import PARKINGS
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.mismatches import jobs_of
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import codec, commits, schema_pins
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.names import (
    TableReference,
    commit_path,
    commit_path_of,
    quarantine_path,
    shard_of,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import (
    BrokerOffsets,
    OffsetRange,
    TopicDescription,
    TopicPartition,
)
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.protocol.waits import (
    DECISIONS,
    NO_BAD_RECORD,
    UNREADABLE,
    ParkReason,
    park_commands,
    stop_commands,
)
from kbq_assets.pipelines.operate.described import check_same_log, describe, position_lines
from kbq_assets.pipelines.operate.pending import (
    Backlogs,
    Pending,
    backlog_lines,
    give_up_chunks,
    unread_lines,
)
from kbq_assets.pipelines.ordering.decisions import read_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import list_done_files
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class Proposal:
    """A command before its confirmation. ``lines`` name every range that it gives up or reads again."""

    title: str
    lines: tuple[str, ...]
    apply: Callable[[], None]


def propose_accept_gap(store: ObjectStore, reader: OffsetReader, tp: TopicPartition) -> Proposal:
    """Continue after a retention loss or an unreadable batch: give up the positions before the log start, or those of
    the batch, and count them as lost."""
    commit = _commit_of(store, tp)
    broker = reader.offsets([tp]).get(tp)
    if broker is None:
        raise NotFound(f"{tp} is not on the broker", next_step=f"kbq reset --topic {tp.topic}")
    position, until = (
        commit.partitions[tp.partition].next,
        _end_of_gap(commit.partitions[tp.partition], broker),
    )
    commits.accept_gap(commit, tp.partition, until, "operator")  # raises Refused before the user is asked
    lost = OffsetRange(tp, position, until)

    def apply() -> None:
        def change(now: Commit) -> Commit:
            if not _is_as_shown(now, commit, tp.partition):
                raise Refused(f"{tp} moved meanwhile", next_step="check again with kbq status")
            return commits.accept_gap(now, tp.partition, until, "operator", broker.leader_epoch)

        state.change(store, Commit, commit_path_of(tp), change)

    return Proposal(
        f"accept the gap of {tp}", (f"gives up {lost}: {counted(lost.positions, 'position')}",), apply
    )


def _is_as_shown(now: Commit, shown: Commit, partition: int) -> bool:
    """Whether a partition has the position that an operator saw, in the same epoch (E2)."""
    return now.epoch == shown.epoch and now.partitions[partition].next == shown.partitions[partition].next


def _end_of_gap(partition: PartitionCommit, broker: BrokerOffsets) -> int:
    stop = partition.stop
    if stop is None or stop.reason not in UNREADABLE:
        return broker.earliest
    return max(min(stop.until, broker.latest), broker.earliest)


@dataclass(frozen=True)
class StartAt:
    """Where partitions start. ``at`` is `earliest`, `latest`, `offset` or `timestamp`; ``value`` is the offset, or the
    time in milliseconds since 1970."""

    at: str = "earliest"
    value: int = 0

    def positions(self, reader: OffsetReader, partitions: Collection[TopicPartition]) -> dict[int, int]:
        """First positions of partitions. Raises Refused for one that the broker does not have, and Unavailable."""
        broker = reader.offsets(partitions)
        if silent := sorted(set(partitions) - broker.keys()):
            raise Unavailable(
                f"the broker reports no offsets for {silent[0]}",
                next_step="once it has a leader, run the command again",
            )
        if self.at == "timestamp":
            starts = {tp.partition: o for tp, o in reader.offsets_for_time(partitions, self.value).items()}
        elif self.at == "offset":
            starts = {tp.partition: self.value for tp in partitions}
        else:
            is_earliest = self.at == "earliest"
            starts = {tp.partition: o.earliest if is_earliest else o.latest for tp, o in broker.items()}
        for tp, offsets in broker.items():
            if not offsets.earliest <= starts[tp.partition] <= offsets.latest:
                raise Refused(
                    f"{tp}: offset {starts[tp.partition]} is outside [{offsets.earliest}, {offsets.latest}]",
                    next_step="choose an offset that the broker has",
                )
        return starts


EARLIEST: Final = StartAt()


@dataclass(frozen=True)
class _Reset:
    """New starts of partitions, with their leader epochs. ``shrinks``: whether partitions that the topic no longer has
    are dropped."""

    unloaded: Pending
    topic: TopicDescription
    cluster_id: str
    starts: Mapping[int, int]
    leader_epochs: Mapping[int, int]
    gives_up: bool
    shrinks: bool

    def of(self, shard: int, epoch: int, backlogs: Backlogs, now: Commit) -> Commit:
        """The commit of a shard after its reset. Raises Refused if it is no longer in ``epoch``, or of another log."""
        if now.epoch != epoch:
            raise Refused(f"{now.topic} was reset meanwhile", next_step="check again with kbq status")
        gone = [p for p in now.partitions if p >= self.topic.partitions] if self.shrinks else []
        check_same_log(now, {*self.starts, *gone}, self.topic, self.cluster_id, "kbq reset")
        return commits.reset(
            self.unloaded.pruned(now),
            {p: start for p, start in self.starts.items() if shard_of(p) == shard},
            cluster_id=self.cluster_id,
            topic_id=self.topic.topic_id,
            give_up_pending=self.gives_up,
            backlog=self.unloaded.backlog(now, backlogs) if self.gives_up else (),
            gone=gone,
            leader_epochs=self.leader_epochs,
        )


def propose_reset(
    store: ObjectStore,
    reader: OffsetReader,
    topic: str,
    partition: int | None = None,
    start: StartAt = EARLIEST,
    *,
    give_up_pending: bool = False,
) -> Proposal:
    """Begin a new epoch: one partition, or all of them, start again at positions that the broker has (E9)."""
    described = describe(reader, topic, partition)
    partitions = range(described.partitions) if partition is None else (partition,)
    starts = start.positions(reader, [TopicPartition(topic, p) for p in partitions])
    unloaded = Pending.read(store)
    affected = _affected(store, topic, partition)
    backlogs = Backlogs.read(store, affected)
    epochs, cluster_id = epochs_of(reader, topic, starts), reader.cluster_id()
    reset = _Reset(unloaded, described, cluster_id, starts, epochs, give_up_pending, partition is None)
    waiting = [file for commit in affected.values() for file in unloaded.backlog(commit, backlogs)]
    for shard, commit in affected.items():
        reset.of(shard, commit.epoch, backlogs, commit)  # raises Refused before the user is asked

    count = described.partitions if partition is None else None
    damaged = backlogs.damaged(topic, affected, give_up_pending)
    pruned = [unloaded.pruned(commit) for commit in affected.values()]
    lines = [*_epoch_lines(pruned, count)]
    lines += [*position_lines(reader, described, pruned, starts, "unread"), *map(str, damaged)]
    lines += backlog_lines(waiting, give_up_pending)
    if give_up_pending:
        lines += unread_lines([*waiting, *(file for commit in pruned for file in commit.files)], starts)

    def apply() -> None:
        now = _affected(store, topic, partition)
        later = Backlogs.read(store, now) if give_up_pending else backlogs
        for shard, commit in affected.items():
            change = partial(reset.of, shard, commit.epoch, later)
            state.change(store, Commit, commit_path(topic, shard), change)
        give_up_chunks(damaged)
        _delete_done_files(store, {TopicPartition(topic, p) for p in starts})

    return Proposal(f"reset {topic}", tuple(lines), apply)


def _affected(store: ObjectStore, topic: str, partition: int | None) -> dict[int, Commit]:
    """The commits by shard that a reset changes."""
    shards = shards_of(store, topic)
    return {shard: c for shard, c in shards.items() if partition is None or shard == shard_of(partition)}


def _epoch_lines(affected: Iterable[Commit], partitions: int | None) -> Iterable[str]:
    """New epochs, and what they drop. ``partitions`` is the broker's number of them; None if a single one is reset."""
    for commit in affected:
        gone = [p for p in sorted(commit.partitions) if partitions is not None and p >= partitions]
        yield from (f"{commit.topic_partition(p)} is gone from the broker: drops it" for p in gone)
        yield f"epoch {commit.epoch} -> {commit.epoch + 1}"
        pending = sum(f.rows for f in commit.files)
        if pending:
            yield f"gives up {counted(pending, 'staged row')} not loaded yet"


def epochs_of(reader: OffsetReader, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The broker's leader epochs by partition; -1 if unknown. They apply to positions that were just read."""
    found = reader.offsets([TopicPartition(topic, p) for p in partitions])
    return defaultdict(lambda: -1, {tp.partition: offsets.leader_epoch for tp, offsets in found.items()})


def propose_resume(
    store: ObjectStore, topic: str, partition: int | None = None, *, as_errors: bool = False
) -> Proposal:
    """Resume stopped partitions after a fix, or accept their bad records as error rows (E10)."""
    stopped = [
        (commit.topic_partition(number), found.stop)
        for commit in shards_of(store, topic).values()
        for number, found in commit.partitions.items()
        if found.stop is not None and partition in (None, number)
    ]
    if not stopped:
        raise Refused(f"no partition of {topic} is stopped", next_step="kbq status lists what is stopped")
    for tp, stop in stopped:
        if as_errors and stop is not None and stop.reason in NO_BAD_RECORD:
            raise Refused(
                f"{tp} is stopped for {stop.reason}: there are no bad records to accept as error rows",
                next_step=" or ".join(stop_commands(stop.reason, tp)),
            )

    def apply() -> None:
        for tp, _ in stopped:
            state.change(store, Commit, commit_path_of(tp), partial(resumed, tp.partition, as_errors))

    return Proposal(
        f"resume {topic}",
        tuple(f"{stop.message}: {_how(stop, as_errors)}" for _, stop in stopped if stop is not None),
        apply,
    )


def _how(stop: Stop, as_errors: bool) -> str:
    """The effect of resuming a partition. The number of bad records is unknown until they are read."""
    if not as_errors:
        return "is read again"
    positions = stop.until - stop.first
    return (
        f"its bad records become error rows: up to {positions:,}, by its offsets [{stop.first}, {stop.until})"
    )


def propose_new_schemas(store: ObjectStore, topic: str) -> Proposal:
    """Accept the registry's current schemas for all of a topic's ids, after a move to another registry (E12)."""
    shards = {shard: commit for shard, commit in shards_of(store, topic).items() if commit.schema_ids}
    if not shards:
        raise Refused(f"no schema of {topic} is stored", next_step="kbq status lists what is stopped")

    def apply() -> None:
        for shard in shards:
            state.change(store, Commit, commit_path(topic, shard), schema_pins.accept_schemas)

    ids = sorted({schema_id for commit in shards.values() for schema_id in commit.schema_ids})
    lines = (
        f"drops the stored schemas of ids {', '.join(map(str, ids))}: the next extraction stores the registry's",
        "records that were written with another schema of the same id may be decoded wrongly",
    )
    return Proposal(f"accept the registry's schemas for {topic}", lines, apply)


def resumed(partition: int, as_errors: bool, commit: Commit) -> Commit:
    """The commit without the partition's stop, if it has one."""
    if commit.partitions[partition].stop is None:
        return commit
    return commits.resume(commit, partition, as_errors=as_errors)


def propose_resume_table(
    store: ObjectStore, table: TableReference, *, to_quarantine: bool = False
) -> Proposal:
    """Resume a parked table (L5). With ``to_quarantine``, any number of its next bad files may go to quarantine. For a
    table that is not parked, acknowledge jobs with wrong row counts (L4) and files in quarantine (L5)."""
    path, current = table_state_path(table), read_table(store, table)
    if current.parked is None and (current.new_mismatches or current.new_quarantined):
        return _propose_accept(store, table, current)
    if current.parked is None:
        raise Refused(f"table {table} is not parked", next_step="kbq status lists parked tables")

    if current.parked.reason in DECISIONS:
        next_step = " or ".join(
            park_commands(table, current.parked.reason, transitions.failed_batch(current))
        )
        raise Refused(f"table {table} waits for a decision: {current.parked.error}", next_step=next_step)

    def apply() -> None:
        state.change(store, TableState, path, partial(table_state.unpark, accepts_loss=to_quarantine))

    lines = [f"was parked: {current.parked.reason}: {current.parked.error}"]
    if to_quarantine:
        lines.append("files that the warehouse rejects go to quarantine, until a job loads some files")
    return Proposal(f"resume table {table}", tuple(lines), apply)


def _propose_accept(store: ObjectStore, table: TableReference, current: TableState) -> Proposal:
    """Accept what the proposal lists, but nothing that comes later."""
    seen = jobs_of(current.mismatches), len(current.quarantined)
    lines = (
        *map(str, current.new_mismatches),
        *(
            f"{quarantine_path(q.file.path)}: {counted(q.file.rows, 'row')} that the warehouse rejected: {q.error}"
            for q in current.new_quarantined
        ),
    )

    def apply() -> None:
        state.change(store, TableState, table_state_path(table), lambda now: table_state.accept(now, *seen))

    return Proposal(f"accept the row counts of table {table}", lines, apply)


def propose_park_table(store: ObjectStore, table: TableReference) -> Proposal:
    """Park a table: nothing is loaded into it until it is resumed, and its files wait in its backlog (E7).

    If the table is already parked for a temporary reason, it is now parked by the operator: KBQ no longer retries it.
    """
    path = table_state_path(table)
    parked = read_table(store, table).parked
    if parked is not None and parked.reason not in PARKINGS:
        raise Refused(f"table {table} is already parked", next_step=f"kbq resume --table {table}")

    def apply() -> None:
        state.change(
            store,
            TableState,
            path,
            lambda now: table_state.park(now, ParkReason.OPERATOR, "held by kbq park"),
        )

    return Proposal(f"park table {table}", ("nothing is loaded into it until it is resumed",), apply)


def _commit_of(store: ObjectStore, tp: TopicPartition) -> Commit:
    found = state.find(store, Commit, commit_path_of(tp))
    if found is None or tp.partition not in found.value.partitions:
        raise NotFound(f"{tp} has no position", next_step="kbq status lists the partitions")
    return found.value


def shards_of(store: ObjectStore, topic: str, *, required: bool = True) -> dict[int, Commit]:
    """A topic's commits by shard. Raises NotFound if one is ``required`` and there is none, MissingState if one was
    lost, because its topic is not new (E1)."""
    entry = state.topic_registry(store).topics.get(topic, TopicEntry())
    found = {s: state.find(store, Commit, commit_path(topic, s)) for s in (*entry.active, *entry.creating)}
    for shard in entry.active:
        if found[shard] is None:
            raise MissingState(f"{commit_path(topic, shard)} is missing", next_step=codec.RESTORE)
    shards = {shard: c.value for shard, c in found.items() if c is not None}
    if required and not shards:
        raise NotFound(
            f"{topic} has no commit",
            next_step=f"kbq status lists the topics; or kbq bootstrap --topic {topic} --at earliest",
        )
    return shards


def _delete_done_files(store: ObjectStore, partitions: Collection[TopicPartition]) -> None:
    """Delete the partitions' done files. They hint at positions, so those of an old epoch would mislead a bootstrap."""
    store.delete_many([n.format() for n in list_done_files(store) if n.topic_partition in partitions])
