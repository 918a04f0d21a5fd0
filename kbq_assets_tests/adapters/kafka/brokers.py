"""The brokers for the contract suite: the fake one and the real one."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.wire.chunk import RawRecord
from kbq_assets_tests.fakes.kafka import FakeKafka

Answer = TypeVar("Answer")

COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1",
}


class FakeBroker:
    """The fake, driven as the contract wants."""

    def __init__(self) -> None:
        self.kafka = FakeKafka(chunk_records=100)
        self.reader = self.kafka.view("test")
        self.source: RecordSource = self.reader
        self._names = (f"topic.{n}" for n in itertools.count())

    def create_topic(self, partitions: int = 1) -> str:
        topic = next(self._names)
        self.kafka.create_topic(topic, partitions)
        return topic

    def produce(self, tp: TopicPartition, messages: Sequence[RawRecord]) -> None:
        for m in messages:
            self.kafka.produce(tp, m.value, key=m.key, headers=m.headers, timestamp=m.timestamp)

    def transaction(self, tp: TopicPartition, messages: Sequence[RawRecord], *, commit: bool | None) -> None:
        if not messages:
            return
        self.kafka.begin_transaction(tp)
        self.produce(tp, messages)
        if commit is not None:
            self.end_transaction(tp, commit=commit)

    def end_transaction(self, tp: TopicPartition, *, commit: bool) -> None:
        self.kafka.end_transaction(tp, commit=commit)

    def compacted_partition(self) -> tuple[TopicPartition, Mapping[int, bytes]]:
        tp = TopicPartition(self.create_topic(), 0)
        values = [f"{n}".encode() for n in range(20)]
        for value in values:
            self.kafka.produce(tp, value)
        self.kafka.compact(tp, *range(10), 12, 17, 18)
        return tp, {offset: values[offset] for offset in (10, 11, 13, 14, 15, 16, 19)}

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        self.kafka.delete_before(tp, offset)

    def recreate_topic(self, topic: str) -> None:
        self.kafka.recreate_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self.kafka.add_partitions(topic, total)


class RealBroker:
    """A running broker, driven as the contract requires. Topics get unique names and are deleted at the end."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.reader = KafkaOffsetReader(bootstrap_servers)
        self.source: RecordSource = LibrdkafkaSource(bootstrap_servers, chunk_records=1_000)
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._open: dict[TopicPartition, Producer] = {}
        self._topics: list[str] = []

    def close(self) -> None:
        """Delete what was created."""
        for tp in list(self._open):
            self.end_transaction(tp, commit=False)
        left = set(self._topics) & set(self.reader.topics())
        if left:
            _finish(self.admin.delete_topics(list(left)))

    def create_topic(
        self, partitions: int = 1, config: Mapping[str, str] | None = None, *, name: str = ""
    ) -> str:
        topic = name or f"contract.{uuid.uuid4().hex[:12]}"
        self._create(topic, partitions, config or {})
        self._topics.append(topic)
        return topic

    def produce(self, tp: TopicPartition, messages: Sequence[RawRecord]) -> None:
        _send(self._producer({}), tp, messages)

    def transaction(self, tp: TopicPartition, messages: Sequence[RawRecord], *, commit: bool | None) -> None:
        if not messages:
            return
        producer = self._producer({"transactional.id": uuid.uuid4().hex})
        producer.init_transactions()
        producer.begin_transaction()
        _send(producer, tp, messages)
        self._open[tp] = producer
        if commit is not None:
            self.end_transaction(tp, commit=commit)

    def end_transaction(self, tp: TopicPartition, *, commit: bool) -> None:
        producer = self._open.pop(tp)
        before = self._end(tp)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        # The marker is written a moment after the coordinator has answered.
        _wait_for(lambda: self._end(tp) > before)

    def compacted_partition(self) -> tuple[TopicPartition, Mapping[int, bytes]]:
        tp = TopicPartition(self.create_topic(config=COMPACTED), 0)
        for generation in range(3):
            self.produce(
                tp, [RawRecord(f"{generation}.{k}".encode(), 0, -1, f"{k}".encode()) for k in range(8)]
            )
            time.sleep(0.3)
        # The newest segment is never compacted: this record begins one.
        self.produce(tp, [RawRecord(b"newest", 0, -1, b"newest")])
        wanted = {16 + k: f"2.{k}".encode() for k in range(8)} | {24: b"newest"}
        _wait_for(lambda: len(self._values(tp)) == len(wanted))
        return tp, wanted

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        _finish(self.admin.delete_records([ClientPartition(tp.topic, tp.partition, offset)]))

    def recreate_topic(self, topic: str) -> None:
        self.delete(topic)
        self._create(topic, 1, {})

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        _finish(self.admin.delete_topics([topic]))
        _wait_for(lambda: topic not in self.reader.topics())

    def add_partitions(self, topic: str, total: int) -> None:
        _finish(self.admin.create_partitions([NewPartitions(topic, total)]))
        _wait_for(lambda: self.reader.topics()[topic].partitions == total)

    def _create(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        limits = {"max.message.bytes": str(12 * 1024 * 1024)}
        new = NewTopic(topic, partitions, 1, config={**limits, **config})
        # A topic of that name may still be on its way out.
        _wait_for(lambda: _succeeds(lambda: _finish(self.admin.create_topics([new]))))
        _wait_for(lambda: topic in self.reader.topics())

    def _producer(self, config: Mapping[str, Any]) -> Producer:
        return Producer(
            {"bootstrap.servers": self.bootstrap_servers, "message.max.bytes": 12 * 1024 * 1024, **config}
        )

    def _end(self, tp: TopicPartition) -> int:
        return self.reader.offsets([tp])[tp].latest

    def _values(self, tp: TopicPartition) -> Sequence[bytes | None]:
        batches = self.source.read(OffsetRange(tp, 0, self._end(tp)))
        return [batch.chunk.value(i) for batch in batches for i in range(len(batch.chunk))]


def real_broker(bootstrap_servers: str) -> Iterator[RealBroker]:
    """A broker for one test."""
    broker = RealBroker(bootstrap_servers)
    yield broker
    broker.close()


def _send(producer: Producer, tp: TopicPartition, messages: Sequence[RawRecord]) -> None:
    for m in messages:
        optional = {"timestamp": m.timestamp} if m.timestamp >= 0 else {}
        producer.produce(
            tp.topic,
            m.value,
            m.key,
            tp.partition,
            headers=list(m.headers),
            **optional,  # type: ignore[arg-type]
        )
    assert producer.flush(120) == 0


def _finish(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(120)


def _succeeds(act: Callable[[], None]) -> bool:
    try:
        act()
    except KafkaException:
        return False
    return True


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "the broker does not get there"
        time.sleep(0.05)
