"""What every broker adapter promises (`kbq_assets.ports.kafka`). Subclass `BrokerContract`, or `SourceContract` for a
source that is no broker, and give the fixture ``broker``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from kbq_assets.core.errors import NotFound, OffsetOutOfRange, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import VALUES_ONLY, OffsetReader, ReadOptions, RecordBatch, RecordSource
from kbq_assets.wire.chunk import Chunk, RawRecord, decode_headers


class Broker(Protocol):
    """A broker under test: the ports, and the hands that change its logs."""

    @property
    def reader(self) -> OffsetReader:
        """The port under test."""

    @property
    def source(self) -> RecordSource:
        """The port under test; it gives up after a second or two at the end of the log, elsewhere after a minute."""

    def create_topic(self, partitions: int = 1) -> str:
        """A new, empty topic; return its name."""

    def produce(self, tp: TopicPartition, messages: Sequence[RawRecord]) -> None:
        """Append committed records; their offsets are the broker's."""

    def transaction(self, tp: TopicPartition, messages: Sequence[RawRecord], *, commit: bool | None) -> None:
        """Append records in one transaction: committed, aborted, or left open (None)."""

    def end_transaction(self, tp: TopicPartition, *, commit: bool) -> None:
        """End the transaction that was left open."""

    def compacted_partition(self) -> tuple[TopicPartition, Mapping[int, bytes]]:
        """The remaining records of a partition after compaction removed some."""

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Retention: the log starts at ``offset`` now."""

    def recreate_topic(self, topic: str) -> None:
        """Delete and recreate a topic."""

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions."""


def messages(count: int, first: int = 0) -> list[RawRecord]:
    """Distinct records. Their timestamps increase by one second, starting one million seconds after 1970."""
    return [
        RawRecord(f"value {i}".encode(), i, 1_000_000_000 + 1000 * i, f"key {i}".encode())
        for i in range(first, first + count)
    ]


def read(
    source: RecordSource, tp: TopicPartition, first: int, until: int, options: ReadOptions = VALUES_ONLY
) -> list[RecordBatch]:
    """All batches of a range."""
    return list(source.read(OffsetRange(tp, first, until), options))


def records(batches: Sequence[RecordBatch]) -> dict[int, bytes | None]:
    """Offset to value. Fails on an offset that comes twice or out of order."""
    offsets = [offset for batch in batches for offset in batch.chunk.offsets.tolist()]
    assert offsets == sorted(set(offsets))
    values = [batch.chunk.value(i) for batch in batches for i in range(len(batch.chunk))]
    return dict(zip(offsets, values, strict=True))


def as_messages(chunk: Chunk) -> list[RawRecord]:
    """A chunk's records as Python objects, with the parts that the chunk has."""
    return [
        RawRecord(
            chunk.value(i),
            int(chunk.offsets[i]),
            int(chunk.timestamps[i]),
            chunk.key(i),
            tuple(decode_headers(chunk.header_bytes(i) or b"\x00")),
        )
        for i in range(len(chunk))
    ]


class SourceContract:
    """The promises of `RecordSource`."""

    @pytest.fixture
    def tp(self, broker: Broker) -> TopicPartition:
        return TopicPartition(broker.create_topic(), 0)

    def test_a_record_arrives_as_it_was_produced(self, broker: Broker, tp: TopicPartition) -> None:
        produced = [
            RawRecord(b"value", 0, 1_700_000_000_123, b"key", (("a", b"1"), ("a", None), ("é", b""))),
            RawRecord(None, 1, 1_700_000_000_124, b"key"),
            RawRecord(b"", 2, 1_700_000_000_125, None, (("b", b"\xff\x00"),)),
            RawRecord(b"\x00\xff", 3, 1_700_000_000_001, b""),
        ]
        broker.produce(tp, produced)
        batches = read(broker.source, tp, 0, 4, ReadOptions(keys=True, headers=True))
        assert [m for batch in batches for m in as_messages(batch.chunk)] == produced

    def test_keys_and_headers_are_there_only_when_asked_for(self, broker: Broker, tp: TopicPartition) -> None:
        broker.produce(tp, messages(1))
        (with_keys, with_headers) = (
            read(broker.source, tp, 0, 1, ReadOptions(keys=True))[0].chunk,
            read(broker.source, tp, 0, 1, ReadOptions(headers=True))[0].chunk,
        )
        assert (with_keys.keys is None, with_keys.headers is None) == (False, True)
        assert (with_headers.keys is None, with_headers.headers is None) == (True, False)

    @pytest.mark.parametrize("headers", [False, True])
    def test_single_headers_can_be_had_while_a_chunk_is_the_latest(
        self, broker: Broker, tp: TopicPartition, headers: bool
    ) -> None:
        broker.produce(tp, [RawRecord(b"v", i, -1, None, (("n", b"%d" % i),) * (i % 3)) for i in range(300)])
        found = [
            decode_headers(batch.chunk.header_bytes(row) or b"")
            for batch in broker.source.read(OffsetRange(tp, 0, 300), ReadOptions(headers=headers))
            for row in range(len(batch.chunk))
        ]
        assert found == [[("n", b"%d" % i)] * (i % 3) for i in range(300)]

    def test_a_copy_can_have_what_kafka_knows_of_each_record(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(300))
        for batch in broker.source.read(OffsetRange(tp, 5, 300)):
            assert batch.chunk.origins is not None
            found = batch.chunk.slice(1, len(batch.chunk)).origins
            assert found is not None
            assert set(found().leader_epochs.tolist()) <= {batch.leader_epoch}
            assert set(found().timestamp_types.tolist()) <= {0}
            assert len(found().leader_epochs) == len(batch.chunk) - 1

    @pytest.mark.parametrize("cuts", [[0, 500], [0, 1, 2, 499, 500], [0, 250, 250, 500], [100, 103]])
    def test_neighbouring_ranges_hold_every_record_once(
        self, broker: Broker, tp: TopicPartition, cuts: list[int]
    ) -> None:
        produced = messages(500)
        broker.produce(tp, produced)
        found: dict[int, bytes | None] = {}
        for first, until in itertools.pairwise(cuts):
            part = records(read(broker.source, tp, first, until))
            assert not found.keys() & part.keys()
            found |= part
        assert found == {m.offset: m.value for m in produced[cuts[0] : cuts[-1]]}

    def test_a_position_never_runs_ahead_of_what_was_delivered(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(5_000))
        delivered, last = 0, 0
        for batch in broker.source.read(OffsetRange(tp, 0, 4_321)):
            delivered += len(batch.chunk)
            assert batch.position == delivered
            assert batch.position > last
            last = batch.position
        assert last == 4_321

    def test_records_of_aborted_transactions_are_never_seen(self, broker: Broker, tp: TopicPartition) -> None:
        broker.transaction(tp, messages(3), commit=True)  # 0, 1, 2 and a marker
        broker.transaction(tp, messages(3, 10), commit=False)  # 4, 5, 6 and a marker
        broker.transaction(tp, messages(2, 20), commit=True)  # 8, 9 and a marker
        found = records(read(broker.source, tp, 0, 11))
        assert found == {
            0: b"value 0",
            1: b"value 1",
            2: b"value 2",
            8: b"value 20",
            9: b"value 21",
        }

    @pytest.mark.parametrize("until", range(1, 9))
    def test_a_range_ends_where_it_should_whatever_its_last_positions_hold(
        self, broker: Broker, tp: TopicPartition, until: int
    ) -> None:
        broker.transaction(tp, messages(2), commit=True)  # 0, 1 and a marker
        broker.transaction(tp, messages(3), commit=False)  # 3, 4, 5 and a marker
        broker.transaction(tp, messages(0), commit=False)
        broker.produce(tp, messages(1, 7))
        batches = read(broker.source, tp, 0, until)
        assert batches[-1].position == until
        assert list(records(batches)) == [offset for offset in (0, 1, 7) if offset < until]

    def test_a_range_without_any_record_ends(self, broker: Broker, tp: TopicPartition) -> None:
        broker.transaction(tp, messages(3), commit=False)
        batches = read(broker.source, tp, 1, 4)
        assert (records(batches), batches[-1].position) == ({}, 4)

    def test_an_empty_range_reads_nothing(self, broker: Broker, tp: TopicPartition) -> None:
        broker.produce(tp, messages(3))
        batches = read(broker.source, tp, 2, 2)
        assert (records(batches), batches[-1].position) == ({}, 2)

    def test_positions_that_compaction_emptied_are_no_obstacle(self, broker: Broker) -> None:
        tp, left = broker.compacted_partition()
        end = broker.reader.offsets([tp])[tp].latest
        assert len(left) < end
        for first, until in ((0, end), (1, end), (0, min(left) + 1), (0, max(left))):
            batches = read(broker.source, tp, first, until)
            assert records(batches) == {o: v for o, v in left.items() if first <= o < until}
            assert batches[-1].position == until

    def test_a_record_of_ten_megabytes_arrives(self, broker: Broker, tp: TopicPartition) -> None:
        large = bytes(range(256)) * 40_000
        broker.produce(tp, [RawRecord(large, 0, 1), RawRecord(b"next", 1, 2), RawRecord(large, 2, 3)])
        assert records(read(broker.source, tp, 0, 3)) == {0: large, 1: b"next", 2: large}

    def test_a_position_that_retention_took_is_an_error_not_a_jump(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(10))
        broker.delete_before(tp, 5)
        with pytest.raises(OffsetOutOfRange):
            read(broker.source, tp, 4, 10)
        assert list(records(read(broker.source, tp, 5, 10))) == [5, 6, 7, 8, 9]

    def test_a_position_beyond_the_end_is_an_error_not_a_jump(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(10))
        with pytest.raises(OffsetOutOfRange):
            read(broker.source, tp, 11, 12)

    def test_a_leader_epoch_the_broker_never_had_is_an_error(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(10))
        epoch = read(broker.source, tp, 0, 5)[-1].leader_epoch
        assert records(list(broker.source.read(OffsetRange(tp, 5, 10), ReadOptions(leader_epoch=epoch))))
        with pytest.raises(OffsetOutOfRange):
            list(broker.source.read(OffsetRange(tp, 5, 10), ReadOptions(leader_epoch=epoch + 1)))

    def test_the_brokers_present_epoch_has_every_position(self, broker: Broker, tp: TopicPartition) -> None:
        for first in (0, 6, 10):
            broker.produce(tp, messages(10 - first if first else 10))
            epoch = broker.reader.offsets([tp])[tp].leader_epoch
            assert epoch >= 0
            reading = broker.source.read(OffsetRange(tp, first, first + 1), ReadOptions(leader_epoch=epoch))
            assert list(records(list(reading))) == [first]

    def test_positions_that_do_not_exist_yet_are_not_taken_for_a_gap(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(3))
        reading = broker.source.read(OffsetRange(tp, 0, 4))
        found = [next(reading)]
        with pytest.raises(Unavailable):
            found.extend(reading)
        assert (list(records(found)), found[-1].position) == ([0, 1, 2], 3)

    def test_a_topic_or_partition_that_is_not_there_is_not_found(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        for missing in (TopicPartition(tp.topic, 1), TopicPartition(f"{tp.topic}-missing", 0)):
            with pytest.raises(NotFound, match=missing.topic):
                read(broker.source, missing, 0, 1)

    def test_a_reading_may_be_dropped_and_begun_again(self, broker: Broker, tp: TopicPartition) -> None:
        broker.produce(tp, messages(3_000))
        for _ in range(3):
            reading = iter(broker.source.read(OffsetRange(tp, 0, 3_000)))
            next(reading)
            del reading
        assert len(records(read(broker.source, tp, 0, 3_000))) == 3_000

    def test_ranges_in_any_order_deliver_their_own_records(self, broker: Broker) -> None:
        topic = broker.create_topic(2)
        for partition in (0, 1):
            broker.produce(TopicPartition(topic, partition), messages(200, 1_000 * partition))
        for first, partition in ((150, 0), (150, 1), (0, 1), (0, 0), (50, 0), (10, 1)):
            found = records(read(broker.source, TopicPartition(topic, partition), first, first + 50))
            assert found == {o: f"value {1_000 * partition + o}".encode() for o in range(first, first + 50)}

    def test_threads_may_share_a_source(self, broker: Broker) -> None:
        topic = broker.create_topic(4)
        for partition in range(4):
            broker.produce(TopicPartition(topic, partition), messages(300, 1_000 * partition))
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(lambda p: records(read(broker.source, TopicPartition(topic, p), 0, 300)), range(4))
            )
        assert found == [{o: f"value {1_000 * p + o}".encode() for o in range(300)} for p in range(4)]


class BrokerContract(SourceContract):
    """The promises of `OffsetReader` and `RecordSource`."""

    def test_the_last_stable_offset_waits_for_an_open_transaction(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(2))
        broker.transaction(tp, messages(3, 2), commit=None)
        assert broker.reader.offsets([tp])[tp].latest == 2
        broker.end_transaction(tp, commit=True)
        assert broker.reader.offsets([tp])[tp].latest == 6
        assert list(records(read(broker.source, tp, 0, 6))) == [0, 1, 2, 3, 4]

    def test_offsets_are_the_brokers_own_at_every_call(self, broker: Broker, tp: TopicPartition) -> None:
        seen = []
        for step in range(3):
            broker.produce(tp, messages(2, 2 * step))
            broker.delete_before(tp, step)
            offsets = broker.reader.offsets([tp])[tp]
            seen.append((offsets.earliest, offsets.latest))
        assert seen == [(0, 2), (1, 4), (2, 6)]

    def test_what_the_broker_does_not_know_is_absent(self, broker: Broker, tp: TopicPartition) -> None:
        missing = [TopicPartition(tp.topic, 7), TopicPartition(f"{tp.topic}-missing", 0)]
        assert set(broker.reader.offsets([tp, *missing])) == {tp}
        assert set(broker.reader.offsets_for_time([tp, *missing], 0)) == {tp}
        assert broker.reader.offsets(missing) == {}
        assert broker.reader.offsets([]) == {}

    def test_a_time_is_found_by_its_first_record_at_or_after_it(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(10))
        times = {0: 0, 1_000_003_000: 3, 1_000_003_001: 4, 1_000_009_000: 9, 1_000_009_001: 10}
        for timestamp, offset in times.items():
            assert broker.reader.offsets_for_time([tp], timestamp) == {tp: offset}

    def test_a_transaction_that_stays_open_holds_back_what_follows(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(2))
        broker.transaction(tp, messages(3, first=2), commit=None)
        broker.produce(tp, messages(2, first=5))
        stable = {tp: broker.reader.offsets([tp])[tp].latest}
        assert stable == {tp: 2}
        assert broker.reader.held_back(stable, 1_000_002_000) == {}, "open since then, not before"
        assert broker.reader.held_back(stable, 1_000_002_001) == {tp: 5}
        assert broker.reader.held_back(stable, 2_000_000_000) == {tp: 5}
        broker.end_transaction(tp, commit=True)
        stable = {tp: broker.reader.offsets([tp])[tp].latest}
        assert broker.reader.held_back({**stable, TopicPartition(tp.topic, 7): 0}, 2_000_000_000) == {}

    def test_a_new_topic_appears_with_its_partitions_and_an_id(self, broker: Broker) -> None:
        topic = broker.create_topic(3)
        described = broker.reader.topics()[topic]
        assert (described.topic, described.partitions, bool(described.topic_id)) == (topic, 3, True)

    def test_single_topics_are_described_without_the_others(self, broker: Broker) -> None:
        wanted, other = broker.create_topic(2), broker.create_topic(1)
        described = broker.reader.topics({wanted, f"{wanted}-unknown"})
        assert {name: found.partitions for name, found in described.items()} == {wanted: 2}
        assert described[wanted] == broker.reader.topics()[wanted]
        assert broker.reader.topics(()) == {}
        assert set(broker.reader.topics({wanted, other})) == {wanted, other}

    def test_added_partitions_appear(self, broker: Broker, tp: TopicPartition) -> None:
        broker.add_partitions(tp.topic, 3)
        assert broker.reader.topics()[tp.topic].partitions == 3
        offsets = broker.reader.offsets([TopicPartition(tp.topic, p) for p in range(4)])
        assert {known.partition: (o.earliest, o.latest) for known, o in offsets.items()} == {
            0: (0, 0),
            1: (0, 0),
            2: (0, 0),
        }

    def test_a_recreated_topic_has_another_id_and_begins_anew(
        self, broker: Broker, tp: TopicPartition
    ) -> None:
        broker.produce(tp, messages(5))
        before = broker.reader.topics()[tp.topic].topic_id
        broker.recreate_topic(tp.topic)
        assert broker.reader.topics()[tp.topic].topic_id not in (before, "")
        assert broker.reader.offsets([tp])[tp].latest == 0
        with pytest.raises(OffsetOutOfRange):
            read(broker.source, tp, 3, 5)

    def test_the_cluster_has_an_id(self, broker: Broker) -> None:
        assert broker.reader.cluster_id()
        assert broker.reader.cluster_id() == broker.reader.cluster_id()
