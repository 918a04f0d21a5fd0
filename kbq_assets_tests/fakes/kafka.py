"""A broker in memory: logs with gaps, transactions, retention, recreation and new partitions.

`FakeKafka` is the `OffsetReader` and the `Source` port, without faults. `FakeKafka.view` is the same broker
as one process sees it: ``faults`` is asked before every call, and before every batch of a read, and answers
with an `Outcome`. All calls only read, so an outcome is a crash, no answer, or OK.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kbq_assets.core.errors import AccessRefused, NotFound, OffsetOutOfRange, Unavailable, UnreadableBatch
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import Chunk, Origins, RawRecord, encode_headers
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome

_CRASHES = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE)
Announce = Callable[[str, str], None]


@dataclass
class FakePartition:
    """One log. Positions without a record are control records, aborted records or compacted ones.

    ``epochs`` holds (leader epoch, its first offset); ``open_since`` the first offset of an open transaction.
    """

    start: int = 0
    end: int = 0
    records: dict[int, RawRecord] = field(default_factory=dict)
    history: dict[int, RawRecord] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    open_since: int | None = None
    unreadable: dict[OffsetRange, str] = field(default_factory=dict)
    """Batches that cannot be read, each with its reason."""

    @property
    def last_stable(self) -> int:
        """Where readers of committed records end."""
        return self.end if self.open_since is None else self.open_since

    @property
    def leader_epoch(self) -> int:
        """The current one."""
        return self.epochs[-1][0]

    def epoch_of(self, offset: int) -> int:
        """The leader epoch under which an offset was written."""
        return self.epochs[bisect.bisect_right([first for _, first in self.epochs], offset) - 1][0]

    def end_of(self, leader_epoch: int) -> int:
        """Where the log of an epoch ends (OffsetForLeaderEpoch): at the first offset of a later one."""
        return min((first for epoch, first in self.epochs if epoch > leader_epoch), default=self.end)


@dataclass
class FakeTopic:
    """A topic's incarnation."""

    topic_id: str
    partitions: list[FakePartition]


class FakeKafka:
    """A broker. ``chunk_records`` is how many records a batch holds at most, so that windows can split.

    ``down``: every port call raises Unavailable. ``leaderless`` partitions have no offsets.
    ``notices_recreation``: whether a reading ends when its topic is
    replaced; the real client may read on in the new log. ``refused`` topics may be described, not read.
    """

    def __init__(
        self,
        *,
        chunk_records: int = 500,
        faults: Callable[[Call], Outcome] | None = None,
    ) -> None:
        self.chunk_records = chunk_records
        self.faults = faults
        self.cluster = "fake"
        self.advertised: list[tuple[str, int]] = []
        self.down = False
        self.leaderless: set[TopicPartition] = set()
        self.refused: set[str] = set()
        self.notices_recreation = True
        self.topics_by_name: dict[str, FakeTopic] = {}
        self._incarnations = 0

    # The simulator's side

    def view(self, process: str) -> KafkaView:
        """The broker as one process sees it: its calls carry the process's name, and can fail."""
        return KafkaView(self, process)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """A new, empty topic; one of that name is replaced (see `recreate_topic`)."""
        self._incarnations += 1
        logs = [FakePartition() for _ in range(partitions)]
        self.topics_by_name[topic] = FakeTopic(f"id-{self._incarnations}", logs)

    def recreate_topic(self, topic: str, partitions: int | None = None) -> None:
        """Delete and recreate a topic: it has another id, and offsets start at 0."""
        self.create_topic(topic, partitions or len(self.topics_by_name[topic].partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        del self.topics_by_name[topic]

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions."""
        logs = self.topics_by_name[topic].partitions
        logs.extend(FakePartition() for _ in range(total - len(logs)))

    def produce(
        self,
        tp: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int = -1,
    ) -> int:
        """Append a record; return its offset. Inside an open transaction it stays unread until the commit."""
        log = self.log(tp)
        offset, log.end = log.end, log.end + 1
        log.records[offset] = RawRecord(value, offset, timestamp, key, tuple(headers))
        if log.open_since is None:
            log.history[offset] = log.records[offset]
        return offset

    def gap(self, tp: TopicPartition, positions: int = 1) -> None:
        """Append positions that hold no record: control records, an aborted transaction."""
        self.log(tp).end += positions

    def begin_transaction(self, tp: TopicPartition) -> None:
        """Hold the last stable offset here."""
        self.log(tp).open_since = self.log(tp).end

    def end_transaction(self, tp: TopicPartition, *, commit: bool) -> None:
        """Commit or abort the open transaction, with its control record."""
        log = self.log(tp)
        assert log.open_since is not None, f"no transaction is open on {tp}"
        for offset in range(log.open_since, log.end):
            if commit:
                log.history[offset] = log.records[offset]
            else:
                del log.records[offset]
        log.open_since = None
        self.gap(tp)

    def compact(self, tp: TopicPartition, *offsets: int) -> None:
        """Remove records; their positions stay."""
        for offset in offsets:
            del self.log(tp).records[offset]

    def damage(self, tp: TopicPartition, first: int, until: int, reason: str = "damaged_batch") -> None:
        """Make the batch of ``[first, until)`` unreadable."""
        self.log(tp).unreadable[OffsetRange(tp, first, until)] = reason

    def repair(self, tp: TopicPartition) -> None:
        """Make every batch readable."""
        self.log(tp).unreadable.clear()

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Retention: the log starts at ``offset``."""
        log = self.log(tp)
        log.start = max(log.start, min(offset, log.end))
        log.records = {o: m for o, m in log.records.items() if o >= log.start}

    def elect_leader(self, tp: TopicPartition) -> None:
        """A new leader: a new leader epoch from here on."""
        log = self.log(tp)
        log.epochs.append((log.leader_epoch + 1, log.end))

    def truncate(self, tp: TopicPartition, end: int) -> None:
        """An unclean leader election: the log ends at ``end``, under a new leader epoch."""
        log = self.log(tp)
        log.end = max(log.start, min(end, log.end))
        log.records = {o: m for o, m in log.records.items() if o < log.end}
        log.history = {o: m for o, m in log.history.items() if o < log.end}
        kept = [(epoch, first) for epoch, first in log.epochs if first < log.end] or [(log.epochs[0][0], 0)]
        log.epochs = [*kept, (log.leader_epoch + 1, log.end)]

    def log(self, tp: TopicPartition) -> FakePartition:
        """A partition's log."""
        return self.topics_by_name[tp.topic].partitions[tp.partition]

    def committed(self, tp: TopicPartition) -> Mapping[int, RawRecord]:
        """Every committed record of this incarnation, those lost to retention or compaction included."""
        return self.log(tp).history

    # The ports

    def cluster_id(self) -> str:
        self._require_up()
        return self.cluster

    def brokers(self) -> Collection[tuple[str, int]]:
        self._require_up()
        return self.advertised

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        self._require_up()
        return {
            name: TopicDescription(name, topic.topic_id, len(topic.partitions))
            for name, topic in sorted(self.topics_by_name.items())
            if names is None or name in names
        }

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        self._require_up()
        return {
            tp: BrokerOffsets(log.start, log.last_stable, log.leader_epoch)
            for tp in partitions
            if tp not in self.leaderless and (log := self._find(tp)) is not None
        }

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        self._require_up()
        return {
            tp: min(
                (o for o, m in log.records.items() if m.timestamp >= timestamp_ms and o < log.last_stable),
                default=log.last_stable,
            )
            for tp in partitions
            if (log := self._find(tp)) is not None
        }

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        self._require_up()
        logs = ((tp, log, first) for tp, first in stable.items() if (log := self._find(tp)) is not None)
        return {
            tp: log.end - first
            for tp, log, first in logs
            if first in log.records and log.records[first].timestamp < before_ms
        }

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        return self.read_announced(range_, options, lambda operation, target: None)

    def read_announced(
        self, range_: OffsetRange, options: ReadOptions, announce: Announce
    ) -> Iterator[RecordBatch]:
        """Read; ``announce`` is called before every batch."""
        log, position = None, range_.from_offset
        while log is None or position < range_.until_offset:
            announce("read", str(OffsetRange(range_.topic_partition, position, range_.until_offset)))
            self._require_up()
            if range_.topic_partition.topic in self.refused:
                raise AccessRefused(f"{range_}: Topic authorization failed", next_step="grant the ACL")
            if log is None:
                log = self._validated(range_, options.leader_epoch)
            elif (now := self._find(range_.topic_partition)) is not None and not self.notices_recreation:
                log = now
            elif now is not log:
                raise NotFound(f"{range_.topic_partition} was deleted", next_step="kbq extract")
            batch = self._batch(log, range_, position, options)
            position = batch.position
            yield batch

    def _batch(
        self, log: FakePartition, range_: OffsetRange, position: int, options: ReadOptions
    ) -> RecordBatch:
        if not log.start <= position <= log.end:
            raise _out_of_range(range_, position, log)
        until = min(range_.until_offset, log.last_stable)
        for bad, reason in log.unreadable.items():
            if bad.from_offset <= position < bad.until_offset:
                raise UnreadableBatch(
                    f"{bad} is bad", reason=reason, first=bad.from_offset, until=bad.until_offset
                )
            if position < bad.from_offset:
                until = min(until, bad.from_offset)
        offsets = [o for o in range(position, until) if o in log.records][: self.chunk_records]
        if len(offsets) == self.chunk_records:
            until = offsets[-1] + 1
        elif until < range_.until_offset and until == position:
            raise Unavailable(f"{range_}: the log ends at {until}", next_step="kbq extract plans anew")
        rows = [log.records[o] for o in offsets]
        chunk = Chunk.from_messages(rows, keys=options.keys, headers=options.headers)
        if not options.headers:
            chunk = replace(chunk, late_headers=lambda index: encode_headers(rows[index].headers))
        epochs = np.array([log.epoch_of(o) for o in offsets], np.int64)
        origins = Origins(epochs, np.zeros(len(offsets), np.int64))
        chunk = replace(chunk, origins=lambda: origins)
        return RecordBatch(chunk, until, int(epochs[-1]) if offsets else -1)

    def _validated(self, range_: OffsetRange, leader_epoch: int) -> FakePartition:
        log = self._find(range_.topic_partition)
        if log is None:
            raise NotFound(f"{range_.topic_partition} does not exist", next_step="kbq plan")
        known = leader_epoch <= log.leader_epoch
        if leader_epoch >= 0 and not (known and log.end_of(leader_epoch) >= range_.from_offset):
            raise _out_of_range(range_, range_.from_offset, log)
        return log

    def _find(self, tp: TopicPartition) -> FakePartition | None:
        topic = self.topics_by_name.get(tp.topic)
        return topic.partitions[tp.partition] if topic and tp.partition < len(topic.partitions) else None

    def _require_up(self) -> None:
        if self.down:
            raise Unavailable("the broker is down", next_step="start it")


class FakeGroups:
    """The `AdvisoryGroups` port: ``offsets`` by group; with a ``problem`` every commit fails."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.problem = ""

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        if self.problem:
            raise Unavailable(f"{group}: {self.problem}", next_step="choose another group")
        self.offsets.setdefault(group, {}).update(positions)


class KafkaView:
    """One process's broker: every call, and every batch of a read, is announced to the fault plan first."""

    def __init__(self, kafka: FakeKafka, process: str) -> None:
        self._kafka = kafka
        self._process = process

    def cluster_id(self) -> str:
        self._announce("cluster_id", "")
        return self._kafka.cluster_id()

    def brokers(self) -> Collection[tuple[str, int]]:
        self._announce("brokers", "")
        return self._kafka.brokers()

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        self._announce("topics", "")
        return self._kafka.topics(names)

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        self._announce("offsets", "")
        return self._kafka.offsets(partitions)

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        self._announce("offsets_for_time", "")
        return self._kafka.offsets_for_time(partitions, timestamp_ms)

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        self._announce("held_back", "")
        return self._kafka.held_back(stable, before_ms)

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        return self._kafka.read_announced(range_, options, self._announce)

    def _announce(self, operation: str, target: str) -> None:
        call = Call(self._process, operation, target, writes=False)
        outcome = self._kafka.faults(call) if self._kafka.faults else Outcome.OK
        if outcome in _CRASHES:
            raise Crash(f"{self._process} dies in {operation} {target}")
        if outcome is not Outcome.OK:
            raise Unavailable(f"{operation} {target}: no answer", next_step="try again")


def _out_of_range(range_: OffsetRange, position: int, log: FakePartition) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"{range_}: position {position} is not in the log [{log.start}, {log.end})",
        next_step="kbq plan shows the commands that fix it",
    )
