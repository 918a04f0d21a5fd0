"""The `RecordSource` port over Kafka's own protocol.

It requests the next answer before it processes the last one, so the broker sends while records are unpacked. The
next answer waits in the socket, so memory is bounded by one answer and one chunk.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError

from kbq_assets.adapters.kafka.errors import UNKNOWN, gone, is_refusal, read_error, unavailable, unreadable
from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.cluster import Cluster
from kbq_assets.adapters.kafka.fetch.connection import Connection
from kbq_assets.adapters.kafka.fetch.errors import (
    Answered,
    AuthenticationRefused,
    ConnectionLost,
    Damaged,
    DamagedBatch,
    FetchFailure,
    OversizedAnswer,
)
from kbq_assets.adapters.kafka.fetch.librdkafka_options import Access, access_of
from kbq_assets.adapters.kafka.fetch.record_batches import (
    Delivered,
    WantedOffsets,
    deliver,
    next_offset,
    survey,
)
from kbq_assets.adapters.kafka.fetch.wire_protocol import FetchAnswer, PartitionLeader
from kbq_assets.adapters.kafka.options import check_options, client_options, redacted, without_secrets
from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.ports.kafka import LEAST_WAIT_SECONDS, VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import Bytes, Chunk

#: A chunk's maximum number of records, for topics of small records.
CHUNK_RECORDS: Final = 40_000
#: Seconds for which the log may end before the range does, because a new leader needs some seconds to learn how far its
#: followers are.
END_SECONDS: Final = 10.0
#: Seconds until all brokers know a new topic.
UNKNOWN_SECONDS: Final = 1.0
#: Seconds between tries while the cluster changes.
_BACKOFF_SECONDS: Final = 0.1
#: Pause after an answer without records. Usually the broker itself has waited.
_PAUSE_SECONDS: Final = 0.02
_LEAST_SECONDS: Final = 0.1

#: Transient errors, such as when the leader moves, or a broker starts or stops.
_PASSING: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN,
    }
)


class FetchSource:
    """The `RecordSource` port over its own sockets.

    Raises Unavailable after ``no_progress_seconds`` without progress in a range. In addition to the port's errors,
    raises `NotSpoken` before or between batches if librdkafka should read the rest. Threads may share an instance.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str] | None = None,
        *,
        no_progress_seconds: float = 60.0,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._options = dict(options or {})
        self._no_progress_seconds = no_progress_seconds
        self._chunk_records = chunk_records
        self._cluster = Cluster()
        check_options(self._options)

    def __repr__(self) -> str:
        return f"FetchSource({self._bootstrap_servers!r}, {redacted(self._options)})"

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``; see the port."""
        if not range_:
            empty = Chunk.from_messages((), keys=options.keys, headers=options.headers)
            yield RecordBatch(empty, range_.until_offset)
            return
        client = client_options(self._bootstrap_servers, self._options)
        access = access_of(client)
        bounds, parts = (range_.from_offset, range_.until_offset), (options.keys, options.headers)
        wanted = WantedOffsets(*bounds, *parts, self._chunk_records, access.most_bytes)
        seconds, epoch = self._no_progress_seconds, options.leader_epoch
        wait_until = time.monotonic() + options.wait_seconds
        reading = _Reading(range_, self._cluster, access, client, seconds, wait_until, wanted, epoch)
        yield from reading.batches()


@dataclass
class _Link:
    """A connection to the partition's leader, and the requested offset, -1 if none is requested."""

    connection: Connection
    leader: PartitionLeader
    asked: int = -1


@dataclass
class _Reading:
    """A read of one range. ``epoch`` is the log's leader epoch up to ``position``, -1 if unknown."""

    range: OffsetRange
    cluster: Cluster
    access: Access
    client: Mapping[str, str]
    no_progress_seconds: float
    wait_until: float
    wanted: WantedOffsets
    epoch: int
    position: int = field(init=False)
    fetch_bytes: int = field(init=False)
    link: _Link | None = field(init=False, default=None)
    last_progress: float = field(init=False)
    is_at_end: bool = field(init=False, default=False)
    failure: FetchFailure | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.position = self.range.from_offset
        self.fetch_bytes = self.access.fetch_bytes
        self.last_progress = time.monotonic()

    def batches(self) -> Iterator[RecordBatch]:
        """Batches until the range is complete. Raises the port's errors, and NotSpoken."""
        try:
            while self.position < self.range.until_offset:
                yield from self._step()
            self._give_back()
        except DamagedBatch as damaged:
            raise unreadable(damaged) from damaged
        except Damaged as damaged:
            what = f"{self.range}: the broker's answer is damaged: {damaged}"
            message = f"{what} (Kafka at {self.client['bootstrap.servers']})"
            raise Unavailable(message, next_step=damaged.advice) from damaged
        except AuthenticationRefused as refused:
            raise self._error(KafkaError(KafkaError._AUTHENTICATION, str(refused))) from None
        finally:
            self._unlink()

    def _step(self) -> Iterator[RecordBatch]:
        """The batches of one answer; empty if none came."""
        before = self.position
        try:
            fetched = self._fetch()
        except (ConnectionLost, Answered) as failure:
            self._note(failure)
            self._give_up_if_late()
            time.sleep(_BACKOFF_SECONDS)
            return
        if fetched is not None:
            for delivered in fetched:
                self.position, self.epoch = delivered.position, delivered.batch_epoch
                yield RecordBatch(delivered.chunk, delivered.position, delivered.record_epoch)
                # The time that the caller spends on the batch does not count as a stall of the broker.
                self.last_progress = time.monotonic()
        if self.position == before:
            self._give_up_if_late()
        else:
            self.failure = None

    def _fetch(self) -> Iterator[Delivered] | None:
        """The records of the next answer, after requesting the one that follows; None if no records came."""
        link = self.link or self._open()
        if link.asked != self.position:
            self._ask(link, self.position)
        try:
            reply, data = link.connection.receive(self._seconds() + self.access.wait_seconds)
        except OversizedAnswer as answer_:
            raise self._oversized(str(answer_)) from None
        link.asked = -1
        answer = wire_protocol.parse_fetch(reply, self.range.topic_partition)
        if answer.error:
            raise self._refusal(answer.error)
        heads = survey(data, answer.records_from, answer.records_until)
        behind = heads[-1].next_offset if heads else self.position
        if behind <= self.position:
            self._nothing(answer, bool(heads), data)
            return None
        if behind < self.range.until_offset:
            self._ask(link, behind)
        wanted = dataclasses.replace(self.wanted, from_offset=self.position)
        return deliver(heads, wanted, answer.aborted, data)

    def _ask(self, link: _Link, offset: int) -> None:
        tp, seconds = self.range.topic_partition, self.access.wait_seconds
        request = wire_protocol.fetch_request(
            tp, link.leader.epoch, offset, max_bytes=self.fetch_bytes, wait_seconds=seconds
        )
        link.connection.send(wire_protocol.FETCH, request)
        link.asked = offset

    def _nothing(self, answer: FetchAnswer, has_batches: bool, data: Bytes) -> None:
        """Handle an answer without progress."""
        if not has_batches and answer.records_until > answer.records_from:
            if self.fetch_bytes >= self.access.most_bytes:
                until = next_offset(data, answer.records_from, answer.records_until)
                raise self._oversized(f"a batch of more than {self.fetch_bytes} bytes", until)
            self.fetch_bytes = min(2 * self.fetch_bytes, self.access.most_bytes)
        self.is_at_end = self.position >= answer.last_stable_offset
        time.sleep(_PAUSE_SECONDS)

    def _oversized(self, text: str, until: int = -1) -> DamagedBatch:
        """The error for a batch at the position. Without ``until``, the batch is so large that its end is unknown."""
        where, until = f"the batch at offset {self.position}", max(until, self.position + 1)
        return DamagedBatch(f"{where}: {text}", self.position, until, is_oversized=True)

    def _open(self) -> _Link:
        """A connection to the leader, after checking that it has the same log as was read so far. Raises FetchFailure,
        NotFound, OffsetOutOfRange."""
        tp = self.range.topic_partition
        leader = self.cluster.leader(tp, self.access, self._seconds())
        if leader.node is None:
            raise self._refusal(leader.error or KafkaError.LEADER_NOT_AVAILABLE)
        connection = self.cluster.borrow(leader.node, self.access, self._seconds())
        self.link = link = _Link(connection, leader)
        if self.epoch not in (-1, leader.epoch):
            self._require_same_log(link)
        return link

    def _require_same_log(self, link: _Link) -> None:
        """Raise OffsetOutOfRange if the epoch read so far ends before the position, because the log was truncated.

        A leader with the same epoch has only appended to its log, and each fetch names the expected epoch.
        """
        request = wire_protocol.epoch_end_request(self.range.topic_partition, link.leader.epoch, self.epoch)
        error, epoch, end = wire_protocol.parse_epoch_end(
            link.connection.ask(wire_protocol.EPOCH_END, request), self.range.topic_partition
        )
        if error:
            raise self._refusal(error)
        if epoch < 0 or end < self.position:
            text = f"the log was truncated: leader epoch {self.epoch} ends at {end}, not at {self.position}"
            raise self._error(KafkaError(KafkaError._LOG_TRUNCATION, text))

    def _refusal(self, code: int) -> Answered | KbqError:
        """The exception for an error code. Transient ones are retried."""
        error = KafkaError(code)
        if code in UNKNOWN and self._idle_seconds() >= min(UNKNOWN_SECONDS, self._patience):
            return gone(f"{self.range}", error.str())
        if code in UNKNOWN or code in _PASSING:
            return Answered(code, error.str())
        return self._error(error)

    def _note(self, failure: ConnectionLost | Answered) -> None:
        """Note a failure, so that the next step uses another connection, and perhaps another leader."""
        self.failure, self.is_at_end = failure, False
        self._unlink()
        self.cluster.forget_leader(self.range.topic_partition)
        if isinstance(failure, Answered) and is_refusal(KafkaError(failure.code)):
            raise self._error(KafkaError(failure.code, str(failure)))

    def _give_up_if_late(self) -> None:
        """Raise Unavailable if no records have come for too long."""
        seconds, limit = self._idle_seconds(), self._patience
        if seconds < (min(END_SECONDS, limit) if self.is_at_end else limit):
            return
        last = f"; last error: {without_secrets(str(self.failure), self.client)}" if self.failure else ""
        what = "the log ends at" if self.is_at_end else "nothing came after"
        message = f"{self.range}: {what} offset {self.position}, for {seconds:.0f} s{last}"
        raise unavailable(message, self.client["bootstrap.servers"])

    @property
    def _patience(self) -> float:
        """Seconds for which the range may currently stall."""
        left = max(LEAST_WAIT_SECONDS, self.wait_until - self.last_progress)
        return min(self.no_progress_seconds, left)

    def _idle_seconds(self) -> float:
        return time.monotonic() - self.last_progress

    def _seconds(self) -> float:
        """Seconds to wait for an answer or a connection."""
        left = self._patience - self._idle_seconds()
        return max(_LEAST_SECONDS, min(left, self.access.answer_seconds))

    def _give_back(self) -> None:
        """Keep the connection for the next read."""
        link, self.link = self.link, None
        if link is not None:
            self.cluster.give_back(link.connection, self.access)

    def _unlink(self) -> None:
        """Close the connection: its stream position is unknown."""
        link, self.link = self.link, None
        if link is not None:
            link.connection.close()

    def _error(self, error: KafkaError) -> KbqError:
        found = read_error(error, self.range, self.client["bootstrap.servers"])
        found.message = without_secrets(found.message, self.client)
        return found
