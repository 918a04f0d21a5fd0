"""The fetch reader and librdkafka return the same records, and librdkafka reads what the fetch reader cannot."""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.reader import FetchOrOther, open_reader
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError, Unavailable, UnreadableBatch
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.local.stack import LocalStack
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch, RecordSource
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.worker.adapters import open_source
from kbq_assets_tests.adapters.kafka.brokers import RealBroker, real_broker
from kbq_assets_tests.adapters.kafka.fetch.wire_broker import TOPIC, wire_broker
from kbq_assets_tests.adapters.kafka.fetch.wires import batch
from kbq_assets_tests.contracts.source import as_messages, messages, read, records
from kbq_assets_tests.fixtures.local_stack import stack_with_free_ports

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MESSAGES = [
    RawRecord(b"value", 0, 1_000, b"key", [("a", b"1"), ("a", b""), ("ü" * 70, None)]),
    RawRecord(None, 1, 2_000, b"", []),
    RawRecord(b"", 2, 3_000, None, [("large", b"x" * 70_000)]),
    RawRecord(b"v" * 3_000_000, 3, 4_000, b"k" * 100, [(str(n), b"%d" % n) for n in range(200)]),
    *(RawRecord(b"%d" % n * (n % 50), 4 + n, 5_000 + n, b"%d" % (n % 7)) for n in range(2_000)),
]


@pytest.fixture
def broker(local_stack: LocalStack) -> Iterator[RealBroker]:
    yield from real_broker(local_stack.bootstrap_servers)


def found(
    source: RecordSource, tp: TopicPartition, first: int, until: int, keys: bool, headers: bool
) -> tuple[list[RawRecord], int, int]:
    """Records with all that was asked for, the last position, the last leader epoch."""
    everything, epoch = [], -1
    for part in source.read(OffsetRange(tp, first, until), ReadOptions(keys=keys, headers=headers)):
        everything.extend(as_messages(part.chunk))
        epoch = part.leader_epoch if len(part.chunk) else epoch
    return everything, part.position, epoch


def assert_same(broker: RealBroker, tp: TopicPartition, until: int) -> list[RawRecord]:
    """Both readers give the same of several ranges."""
    ours, theirs = FetchSource(broker.bootstrap_servers), LibrdkafkaSource(broker.bootstrap_servers)
    for keys, headers in ((True, True), (False, False)):
        for first, end in ((0, until), (until // 3, 2 * until // 3), (until - 1, until)):
            expected = found(theirs, tp, first, end, keys, headers)
            assert found(ours, tp, first, end, keys, headers) == expected
    return found(ours, tp, 0, until, True, True)[0]


def produce(broker: RealBroker, tp: TopicPartition, wanted: list[RawRecord], **config: Any) -> None:
    options: Mapping[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "message.max.bytes": 12_000_000,
    }
    producer = Producer({**options, "linger.ms": 50, **config})
    for m in wanted:
        producer.produce(
            tp.topic, m.value, m.key, tp.partition, headers=list(m.headers), timestamp=m.timestamp
        )
    assert producer.flush(120) == 0


@pytest.mark.kafka
class TestBothReadersGiveTheSame:
    @pytest.mark.parametrize("codec", CODECS)
    def test_of_every_codec(self, broker: RealBroker, codec: str) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        produce(broker, tp, MESSAGES, **{"compression.type": codec})
        read_back = assert_same(broker, tp, len(MESSAGES))
        assert [m.value for m in read_back] == [m.value for m in MESSAGES]

    def test_of_what_the_broker_compresses(self, broker: RealBroker) -> None:
        """Java's compression: other frames than librdkafka's."""
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            tp = TopicPartition(broker.create_topic(config={"compression.type": codec}), 0)
            produce(broker, tp, MESSAGES)
            assert_same(broker, tp, len(MESSAGES))

    def test_of_append_times(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(config={"message.timestamp.type": "LogAppendTime"}), 0)
        produce(broker, tp, MESSAGES, **{"compression.type": "lz4"})
        assert min(m.timestamp for m in assert_same(broker, tp, len(MESSAGES))) > 1_600_000_000_000

    def test_of_interleaved_transactions(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        for n in range(12):
            broker.transaction(tp, messages(20, 100 * n), commit=n % 3 != 1)
            broker.produce(tp, messages(3, 100 * n + 50))
        until = broker.reader.offsets([tp])[tp].latest
        assert len(assert_same(broker, tp, until)) == 8 * 20 + 12 * 3

    def test_of_a_compacted_partition(self, broker: RealBroker) -> None:
        tp, left = broker.compacted_partition()
        assert len(assert_same(broker, tp, broker.reader.offsets([tp])[tp].latest)) == len(left)


@pytest.mark.thorough
@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux counts it")
def test_records_that_compress_a_hundredfold_take_little_memory(broker: RealBroker) -> None:
    tp = TopicPartition(broker.create_topic(), 0)
    produce(
        broker,
        tp,
        [RawRecord(bytes(1_000), n, 1) for n in range(200_000)],
        **{"compression.type": "zstd", "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000},
    )
    source = FetchSource(broker.bootstrap_servers)
    read(source, tp, 0, 1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(len(part.chunk) for part in source.read(OffsetRange(tp, 0, 200_000)))
    assert count == 200_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80 * 1024


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_restarts_under_a_reading_costs_no_record(tmp_path: Any) -> None:
    stack = stack_with_free_ports(tmp_path)
    stack.up()
    try:
        for broker in real_broker(stack.bootstrap_servers):
            tp = TopicPartition(broker.create_topic(), 0)
            broker.produce(tp, [RawRecord(b"%d" % i * 1_000, i, 1) for i in range(20_000)])
            source = FetchSource(stack.bootstrap_servers, no_progress_seconds=300, chunk_records=500)
            reading = source.read(OffsetRange(tp, 0, 20_000), ReadOptions(leader_epoch=0))
            begun = [next(reading)]
            stack.down()
            stack.up()
            begun.extend(reading)
            assert list(records(begun)) == list(range(20_000))
    finally:
        stack.down()


class Recorded:
    """A source that gives what it was given, and tells what it was asked for."""

    def __init__(self, batches: list[RecordBatch]) -> None:
        self.batches = batches
        self.asked: list[tuple[OffsetRange, int]] = []

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        self.asked.append((range_, options.leader_epoch))
        yield from self.batches


class TestTheChoice:
    """Old formats and old brokers: only a broker of wires can still show them."""

    OLD = (5, struct.pack(">qiIb", 2, 20, 0, 1) + bytes(15))

    def test_auto_goes_on_with_librdkafka_from_where_fetch_stopped(self) -> None:
        first = (2, batch(messages(2)))
        rest = RecordBatch(Chunk.from_messages(messages(3, 2)), 5)
        other = Recorded([rest])
        with wire_broker(log=[first, self.OLD]) as broker:
            source = FetchOrOther(
                FetchSource(broker.address, {"max.partition.fetch.bytes": "50"}), lambda: other
            )
            found = read(source, TopicPartition(TOPIC, 0), 0, 5)
        assert list(records(found)) == [0, 1, 2, 3, 4]
        assert other.asked == [(OffsetRange(TopicPartition(TOPIC, 0), 2, 5), 0)]

    def test_auto_reads_small_batches_itself_as_only_it_refuses_one_that_would_fill_the_memory(self) -> None:
        log = [(n + 1, batch(messages(1, n))) for n in range(250)]
        log.append((251, batch([RawRecord(bytes(40 << 20), 250, 1)], codec="gzip")))
        options = {"receive.message.max.bytes": str(32 << 20)}
        with wire_broker(log=log) as broker, pytest.raises(UnreadableBatch) as caught:
            read(open_reader(broker.address, options, "auto"), TopicPartition(TOPIC, 0), 0, 251)
        assert (caught.value.reason, caught.value.first, caught.value.until) == ("oversized_batch", 250, 251)

    def test_fetch_alone_says_who_can(self) -> None:
        with (
            wire_broker(log=[self.OLD]) as broker,
            pytest.raises(Unavailable, match="old format") as caught,
        ):
            list(open_reader(broker.address, {}, "fetch").read(OffsetRange(TopicPartition(TOPIC, 0), 0, 5)))
        assert "KBQ_READER=auto" in caught.value.next_step

    def test_options_that_fetch_does_not_know_are_for_librdkafka(self) -> None:
        options = {"queued.min.messages": "100"}
        assert isinstance(open_reader("a:1", options, "auto"), LibrdkafkaSource)
        with pytest.raises(ConfigurationError, match=r"queued\.min\.messages"):
            open_reader("a:1", options, "fetch")

    @pytest.mark.parametrize("reader", ["librdkafka", "fetch", "auto"])
    def test_the_setting_chooses(self, reader: str) -> None:
        opened = open_source(parse_settings({"KBQ_READER": reader}))
        assert isinstance(opened, LibrdkafkaSource) == (reader == "librdkafka")

    def test_another_reader_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="KBQ_READER"):
            parse_settings({"KBQ_READER": "fast"})
