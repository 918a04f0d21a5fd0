"""Reads the records of one range through librdkafka: the fallback if KBQ's own client cannot read them.

It supports all of librdkafka's options, and all brokers and message formats. Each record is a Python object, so it
needs about four times the CPU time of `adapters.kafka.fetch` (ADR 11).

Each range has its own consumer, which takes 10 to 20 ms per range. A single consumer for many ranges would take 60 to
500 ms, because a fetch that waits at the end of one partition delays the next. Also, librdkafka compares the leader
epoch with the broker's only for topics that are new to it.

If a topic is deleted and recreated while one of its ranges is read, this may go unnoticed: librdkafka continues in the
new log if that is long enough. So the committer compares topic ids after the read.

The consumer joins no group and commits nothing. librdkafka only looks up the coordinator of the group ``kbq``.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Message as ClientMessage
from confluent_kafka import TopicPartition as ClientPartition

from kbq_assets.adapters.kafka.errors import (
    UNKNOWN,
    gone,
    is_about_groups,
    is_refusal,
    read_error,
    unavailable,
)
from kbq_assets.adapters.kafka.options import LOGGER, check_options, client_options, redacted, without_secrets
from kbq_assets.core.errors import ConfigurationError, KbqError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.ports.kafka import LEAST_WAIT_SECONDS, VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import NO_HEADERS, UNREADABLE_HEADERS, Chunk, Origins, Spans, encode_headers

#: A chunk's size in bytes: large enough to hide numpy's cost per call, small enough for the CPU's caches.
CHUNK_BYTES: Final = 4 * 1024 * 1024
#: A chunk's maximum number of records, for topics of small records.
CHUNK_RECORDS: Final = 20_000
#: Seconds to gather records for one chunk. If a range ends in control records, its last chunk waits this long.
GATHER_SECONDS: Final = 0.02
#: Messages to take from librdkafka at once.
_STEP: Final = 16
#: Seconds for which the log may end before the range does, because a new leader needs some seconds to learn how far its
#: followers are. After that, the log counts as truncated, and the next plan reports it.
END_SECONDS: Final = 10.0
#: Seconds between polls of a silent broker.
IDLE_SECONDS: Final = 1.0

# A worker's memory holds the queue, one response and the chunk. A single record may be larger than any of them.
# Responses are kept small because they arrive compressed, and librdkafka adds about 300 bytes to each message. With
# 2 million records that compress 50-fold, 1 MiB peaks at 120 MB and 8 MiB at 630 MB, without being faster. A response
# is unpacked as a whole (lz4 expands zeros 255-fold), and the next one may arrive while its records are consumed.
# 256 KiB take as much CPU time as 512 KiB, and half as much memory.
_DEFAULTS: Final[Mapping[str, str | int]] = {
    "queued.max.messages.kbytes": 16 * 1024,
    "queued.min.messages": 50_000,
    "max.partition.fetch.bytes": 256 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
    # If a range ends in control records, it waits this long for its end.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 10,
    "receive.message.max.bytes": 256 * 1024 * 1024,
}

#: confluent_kafka's TIMESTAMP_CREATE_TIME and TIMESTAMP_LOG_APPEND_TIME, as Kafka numbers them.
_TIMESTAMP_TYPES: Final = {1: 0, 2: 1}
#: Raises the errors that the client leaves behind. Python's own method call does not, once it is optimized.
_HEADERS_OF: Final = operator.methodcaller("headers")
# The port's guarantees depend on these options, so they are never overridden.
_OURS: Final[Mapping[str, str | int | bool]] = {
    "group.id": "kbq",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "check.crcs": True,
    "allow.auto.create.topics": False,
}


class LibrdkafkaSource:
    """The `RecordSource` port over librdkafka.

    Raises Unavailable after ``no_progress_seconds`` without progress in a range. Threads may share an instance.
    Raises ConfigurationError for options that are not allowed.
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
        check_options(self._options)

    def __repr__(self) -> str:
        return f"LibrdkafkaSource({self._bootstrap_servers!r}, {redacted(self._options)})"

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``; see the port. Closes the consumer when the iterator ends or is dropped."""
        if not range_:
            empty = Chunk.from_messages((), keys=options.keys, headers=options.headers)
            yield RecordBatch(empty, range_.until_offset)
            return
        client = client_options(self._bootstrap_servers, self._options)
        errors: deque[KafkaError] = deque(maxlen=10)
        wait_until = time.monotonic() + options.wait_seconds
        reading = _MessageReading(
            range_, self._bootstrap_servers, self._no_progress_seconds, wait_until, client, errors
        )
        yield from reading.batches(options, self._chunk_records)


@dataclass
class _MessageReading:
    """A read of one range."""

    range: OffsetRange
    bootstrap_servers: str
    no_progress_seconds: float
    wait_until: float
    client: Mapping[str, str]
    errors: deque[KafkaError]
    position: int = field(init=False)
    last_progress: float = field(init=False)
    is_at_end: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.position = self.range.from_offset
        self.last_progress = time.monotonic()

    def batches(self, options: ReadOptions, chunk_records: int) -> Iterator[RecordBatch]:
        """Batches until the range is complete. Raises the port's errors. Always closes the consumer."""
        consumer = _open(self.client, self.errors)
        try:
            tp, epoch = self.range.topic_partition, options.leader_epoch
            start = ClientPartition(tp.topic, tp.partition, self.range.from_offset, leader_epoch=epoch)
            consumer.assign([start])
            yield from self._batches(consumer, options, chunk_records)
        finally:
            consumer.close()

    def _batches(self, consumer: Consumer, options: ReadOptions, chunk_records: int) -> Iterator[RecordBatch]:
        until = self.range.until_offset
        while self.position < until:
            arrived = self._next_messages(consumer, min(chunk_records, until - self.position))
            before = self.position
            messages = self._records(arrived)
            if not messages and self.position == before:
                self._wait(consumer)
                continue
            self.errors.clear()
            chunk = _chunk(messages, options)
            yield RecordBatch(chunk, self.position, _leader_epoch(messages))
            # The time that the caller spends on the batch does not count as a stall of the broker.
            self.last_progress = time.monotonic()

    def _next_messages(self, consumer: Consumer, count: int) -> list[ClientMessage]:
        """The next messages: those that are queued, or arrive within `GATHER_SECONDS`."""
        try:
            first = consumer.poll(IDLE_SECONDS)
            if first is None or first.error() is not None:
                return [] if first is None else [first]
            found, size, until = [first], len(first), time.monotonic() + GATHER_SECONDS
            # Take small steps: large records may follow small ones, and librdkafka limits a step only by their number.
            while len(found) < count and size < CHUNK_BYTES:
                more = consumer.consume(min(_STEP, count - len(found)), max(0.0, until - time.monotonic()))
                if not more:
                    break
                found += more
                size += sum(map(len, more))
        except KafkaException as raised:
            raise self._error(raised.args[0]) from raised
        return found

    def _records(self, arrived: Sequence[ClientMessage]) -> Sequence[ClientMessage]:
        """The records of the range. ``position`` moves past all positions that are known to be complete."""
        until = self.range.until_offset
        if arrived:
            self.is_at_end = arrived[-1].error() is not None
        if any(map(ClientMessage.error, arrived)):
            arrived = [message for message in arrived if not self._is_event(message)]
        if arrived:
            self.position = max(self.position, _offset(arrived[-1]) + 1)
        if self.position > until:
            arrived = [message for message in arrived if _offset(message) < until]
            self.position = until
        return arrived

    def _is_event(self, message: ClientMessage) -> bool:
        """Whether a message is an event instead of a record. At the partition's end, all positions before it are
        complete. Raises errors."""
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self.position = max(self.position, _offset(message))
        elif is_about_groups(error):
            LOGGER.debug("ignored: %s", error.str())
        else:
            # This includes errors after which librdkafka would continue: it skips a batch with a wrong checksum.
            raise self._error(error)
        return True

    def _wait(self, consumer: Consumer) -> None:
        """Called after a poll without messages. Raises if none can come, or none has come for too long."""
        refusal = next((error for error in self.errors if is_refusal(error)), None)
        if refusal is not None:
            raise self._error(refusal)
        self._require_partition(consumer)
        seconds = time.monotonic() - self.last_progress
        at_end = self.is_at_end
        limit = min(self.no_progress_seconds, max(LEAST_WAIT_SECONDS, self.wait_until - self.last_progress))
        if seconds >= (min(END_SECONDS, limit) if at_end else limit):
            last = f"; last error: {self._clean(self.errors[-1])}" if self.errors else ""
            what = "the log ends at" if at_end else "nothing came after"
            message = f"{self.range}: {what} offset {self.position}, for {seconds:.0f} s{last}"
            raise unavailable(message, self.bootstrap_servers)

    def _require_partition(self, consumer: Consumer) -> None:
        """Raise NotFound early if the partition is missing: librdkafka would wait half a minute."""
        tp = self.range.topic_partition
        try:
            topic = consumer.list_topics(tp.topic, timeout=IDLE_SECONDS).topics[tp.topic]
        except KafkaException:
            return  # the broker cannot be reached, which the time limit reports
        if topic.error is not None:
            if topic.error.code() in UNKNOWN:
                raise gone(f"{self.range}", topic.error.str())
        elif tp.partition not in topic.partitions:
            raise gone(f"{self.range}", f"the topic has {counted(len(topic.partitions), 'partition')}")

    def _error(self, error: KafkaError) -> KbqError:
        found = read_error(error, self.range, self.bootstrap_servers)
        found.message = without_secrets(found.message, self.client)
        return found

    def _clean(self, error: KafkaError) -> str:
        return without_secrets(error.str(), self.client)


def _open(client: Mapping[str, str], errors: deque[KafkaError]) -> Consumer:
    configuration: dict[str, Any] = {**_DEFAULTS, **client, **_OURS, "error_cb": errors.append}
    try:
        return Consumer(configuration, logger=LOGGER)
    except KafkaException as raised:
        message = str(raised.args[0])
    # Not chained, since the client's own message may quote a value.
    raise ConfigurationError(
        f"Kafka client: {without_secrets(message, client)}", next_step="check the KBQ_KAFKA_… options"
    )


def _chunk(messages: Sequence[ClientMessage], options: ReadOptions) -> Chunk:
    """Messages as arrays over one buffer. Python's fastest loop is ``map`` over the client's methods."""
    values = Spans.of(list(map(ClientMessage.value, messages)))
    timestamps = [milliseconds for _, milliseconds in map(ClientMessage.timestamp, messages)]
    for message in messages:
        message.set_value(None)  # the chunk has a copy, and keeps messages only for their headers
    return Chunk(
        values.buffer,
        values.starts,
        values.ends,
        np.array(list(map(ClientMessage.offset, messages)), np.int64),
        np.array(timestamps, np.int64),
        Spans.of(list(map(ClientMessage.key, messages))) if options.keys else None,
        Spans.of([_headers(message) for message in messages]) if options.headers else None,
        None if options.headers else lambda index: _headers(messages[index]),
        origins=lambda: _origins(messages),
    )


def _origins(messages: Sequence[ClientMessage]) -> Origins:
    """Leader epochs and timestamp types. Without raw headers, since the client does not return Kafka's encoding."""
    epochs = [message.leader_epoch() for message in messages]
    types = [_TIMESTAMP_TYPES.get(message.timestamp()[0], -1) for message in messages]
    return Origins(
        np.array([-1 if epoch is None else epoch for epoch in epochs], np.int64), np.array(types, np.int64)
    )


def _offset(message: ClientMessage) -> int:
    offset = message.offset()
    assert offset is not None, "librdkafka delivers no record or end without its offset"
    return offset


def _headers(message: ClientMessage) -> bytes:
    try:
        found = _HEADERS_OF(message)
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka cannot return headers with a name that is not UTF-8. Such a record must not stop its
        # partition, since its value is intact.
        return UNREADABLE_HEADERS
    return encode_headers(cast("list[tuple[str, bytes | None]]", found)) if found else NO_HEADERS


def _leader_epoch(messages: Sequence[ClientMessage]) -> int:
    epoch = messages[-1].leader_epoch() if messages else None
    return -1 if epoch is None else epoch
