"""Reads over a network and a cluster that fail: no record is lost or duplicated, and no wait is endless."""

from __future__ import annotations

import random
import struct
import threading
import tracemalloc
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from confluent_kafka import KafkaError

from kbq_assets.adapters.kafka.fetch import source as subject
from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.errors import Damaged, NotSpoken
from kbq_assets.adapters.kafka.fetch.record_batches import BatchHead, without_aborted
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.fetch.wire_protocol import (
    ResponseReader,
    fetch_request,
    parse_epoch_end,
    parse_fetch,
    parse_metadata,
)
from kbq_assets.core.errors import (
    AccessRefused,
    KbqError,
    NotFound,
    OffsetOutOfRange,
    StateError,
    Unavailable,
    UnreadableBatch,
)
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import ReadOptions, RecordBatch
from kbq_assets.wire.chunk import RawRecord
from kbq_assets_tests.adapters.kafka.fetch.wire_broker import (
    TOPIC,
    Fault,
    WireBroker,
    cut_at,
    drop,
    wire_broker,
)
from kbq_assets_tests.adapters.kafka.fetch.wires import batch
from kbq_assets_tests.contracts.source import records

TP = TopicPartition(TOPIC, 0)
BATCHES = 40
PER_BATCH = 25
END = BATCHES * PER_BATCH


def log_of(epoch: int = 0) -> list[tuple[int, bytes]]:
    """Forty batches of a kilobyte or so."""
    found = []
    for first in range(0, END, PER_BATCH):
        part = [RawRecord(b"value %d" % n * 5, n, 1_000 + n) for n in range(first, first + PER_BATCH)]
        found.append((first + PER_BATCH, batch(part, codec="lz4", epoch=epoch)))
    return found


@pytest.fixture
def broker() -> Iterator[WireBroker]:
    with wire_broker(log=log_of()) as broker:
        yield broker


def source_of(broker: WireBroker, *others: WireBroker, seconds: float = 60.0, **options: str) -> FetchSource:
    """Answers of a kilobyte: ten or more for the whole log."""
    servers = ",".join(each.address for each in (broker, *others))
    options = {"max.partition.fetch.bytes": "1000", "fetch.wait.max.ms": "50"} | {
        name.replace("_", "."): value for name, value in options.items()
    }
    return FetchSource(servers, options, no_progress_seconds=seconds, chunk_records=50)


def read(source: FetchSource, first: int = 0, until: int = END, epoch: int = -1) -> list[RecordBatch]:
    return list(source.read(OffsetRange(TP, first, until), ReadOptions(leader_epoch=epoch)))


def test_answers_are_asked_for_ahead_and_each_once(broker: WireBroker) -> None:
    assert list(records(read(source_of(broker)))) == list(range(END))
    offsets = [offset for offset, _ in broker.asked]
    assert offsets == sorted(set(offsets))
    assert len(offsets) > 10


def test_ranges_share_a_connection(broker: WireBroker) -> None:
    source = source_of(broker)
    for first in range(0, END, 100):
        assert list(records(read(source, first, first + 100))) == list(range(first, first + 100))
    assert broker.connections == 1


def test_a_reading_that_is_dropped_leaves_no_answer_to_the_next_one(broker: WireBroker) -> None:
    source = source_of(broker)
    for _ in range(3):
        reading = source.read(OffsetRange(TP, 0, END))
        next(reading)
        cast(Any, reading).close()
    assert list(records(read(source, 500))) == list(range(500, END))


FAULTS: dict[str, Fault] = {
    "cut in the head": cut_at(0.001),
    "cut in the middle": cut_at(0.5),
    "cut before the end": cut_at(0.999),
    "no answer": drop,
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("good", [0, 1, 5])
def test_a_connection_that_ends_costs_no_record(broker: WireBroker, name: str, good: int) -> None:
    broker.faults = deque([*([bytes] * good), FAULTS[name], FAULTS[name]])
    assert list(records(read(source_of(broker)))) == list(range(END))
    assert broker.connections == 3


@pytest.mark.parametrize("piece", [1_000, 1_399])
def test_answers_may_come_in_pieces(broker: WireBroker, piece: int) -> None:
    broker.piece = piece
    assert list(records(read(source_of(broker)))) == list(range(END))


def test_connections_that_a_broker_has_closed_meanwhile_are_opened_anew(broker: WireBroker) -> None:
    source = source_of(broker)
    read(source, 0, 100)
    broker.cut()
    assert list(records(read(source, 100, 200))) == list(range(100, 200))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ],
)
def test_errors_that_pass_are_tried_again(
    broker: WireBroker, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "UNKNOWN_SECONDS", 60.0)
    broker.errors = deque([0, 0, code, code])
    assert list(records(read(source_of(broker)))) == list(range(END))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetOutOfRange),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessRefused),
        (KafkaError.INVALID_MSG, StateError),
        (KafkaError.INVALID_REQUEST, Unavailable),
    ],
)
def test_errors_that_stay_are_raised_at_once(broker: WireBroker, code: int, expected: type[KbqError]) -> None:
    broker.errors = deque([code] * 100)
    with pytest.raises(expected, match=r"wired\[0\]") as caught:
        read(source_of(broker))
    assert caught.value.next_step
    assert len(broker.asked) == 1


def test_a_topic_that_may_not_be_read_names_the_missing_acl(broker: WireBroker) -> None:
    broker.errors = deque([KafkaError.TOPIC_AUTHORIZATION_FAILED] * 100)
    with pytest.raises(AccessRefused) as caught:
        read(source_of(broker))
    assert "grant the ACL READ on topic wired to " in caught.value.next_step


def test_errors_that_never_pass_end_in_time(broker: WireBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_LEAST_SECONDS", 60.0)  # each answer comes, and is the last error
    broker.errors = deque([KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000)
    with pytest.raises(Unavailable, match=r"last error: .*[Ll]eader"):
        read(source_of(broker, seconds=0.5))


def test_a_topic_that_is_gone_is_not_found(broker: WireBroker) -> None:
    broker.metadata_errors = deque([KafkaError.UNKNOWN_TOPIC_OR_PART] * 1_000)
    with pytest.raises(NotFound, match="wired"):
        read(source_of(broker))


def test_a_topic_that_is_not_known_everywhere_yet_is_waited_for(
    broker: WireBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "UNKNOWN_SECONDS", 60.0)
    broker.metadata_errors = deque([KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE])
    assert list(records(read(source_of(broker), until=10))) == list(range(10))


def test_a_silent_broker_is_unavailable_in_time(broker: WireBroker) -> None:
    silence = threading.Event()
    broker.faults = deque([lambda answer: answer[: int(silence.wait(300))]])
    try:
        with pytest.raises(Unavailable, match=r"no answer in time|timed out"):
            read(source_of(broker, seconds=0.5))
    finally:
        silence.set()


def test_garbage_is_unavailable_and_the_connection_is_not_used_again(broker: WireBroker) -> None:
    broker.faults = deque([lambda answer: answer[:4] + bytes(len(answer) - 4)])
    source = source_of(broker)
    with pytest.raises(Unavailable, match="damaged: the answer to another request"):
        read(source)
    assert list(records(read(source))) == list(range(END))
    assert broker.connections == 2


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_a_size_that_no_answer_has_is_refused(broker: WireBroker, size: bytes) -> None:
    broker.faults = deque([lambda answer: size + answer[4:]])
    with pytest.raises(Unavailable, match="damaged: an answer of"):
        read(source_of(broker))


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46", "KBQ_KAFKA_SECURITY_PROTOCOL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is not a broker's port"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "names Kafka brokers"),
        (struct.pack(">iih", 6, 9, 0), "names Kafka brokers"),
        (struct.pack(">iihi", 10, 1, 0, 2**31 - 1), "names Kafka brokers"),
        (struct.pack(">iih", 6, 1, 35), "names Kafka brokers"),
    ],
)
def test_what_is_no_broker_gets_the_advice_that_fits(answer: bytes, advice: str) -> None:
    with wire_broker(greeting=answer) as other, pytest.raises(Unavailable) as caught:
        read(source_of(other))
    assert advice in caught.value.next_step
    assert "gap" not in str(caught.value)


@pytest.mark.parametrize(("topic", "partition"), [("other", 0), (TOPIC, 1)])
@pytest.mark.parametrize("answer", ["_fetch", "_epoch_end"])
def test_an_answer_about_another_partition_is_refused(
    broker: WireBroker, topic: str, partition: int, answer: str
) -> None:
    broker.epoch, broker.epoch_ends, broker.lies = 1, {0: END, 1: END}, {answer: (topic, partition)}
    with pytest.raises(Unavailable, match=r"an answer about .* instead of wired\[0\]"):
        read(source_of(broker), epoch=0)


def test_aborted_transactions_without_end_are_refused(broker: WireBroker) -> None:
    broker.aborted = [(1, n) for n in range(50)]
    assert list(records(read(source_of(broker)))) == list(range(END))
    broker.aborted = [(1, n) for n in range(51)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_protocol, "MOST_ABORTED", 50)
        with pytest.raises(Unavailable, match="51 pairs, more than the limit"):
            read(source_of(broker))


def test_large_answers_take_memory_of_their_size(broker: WireBroker) -> None:
    broker.aborted = [(n, n) for n in range(200_000)]
    data = memoryview(broker._fetch(fetch_request(TP, 0, 0, max_bytes=1, wait_seconds=0)))
    replicas = struct.pack(">i", 1_000_000) + bytes(4_000_000)
    partition = struct.pack(">hiii", 0, 0, 5, 0) + replicas + bytes(8)
    metadata = struct.pack(">iihii", 0, 0, -1, 5, 1) + b"\0\0\0\5wired\0" + struct.pack(">i", 1) + partition
    tracemalloc.start()
    answer = parse_fetch(ResponseReader(data), TP)
    assert answer.aborted[-1].tolist() == [199_999, 199_999]
    heads = [BatchHead(0, 0, 0, n, 0, 0, 0, 0, 0, 0, n, 0) for n in range(100)]
    tracemalloc.reset_peak()
    assert len(list(without_aborted(heads, answer.aborted, np.empty(0, np.uint8)))) == 100
    assert parse_metadata(ResponseReader(memoryview(metadata)), TOPIC).partitions[0].epoch == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(data)


@pytest.mark.parametrize("api", [wire_protocol.METADATA, wire_protocol.API_VERSIONS])
def test_a_control_answer_has_a_small_limit(broker: WireBroker, api: wire_protocol.Api) -> None:
    broker.long_answers = {api.key: api.most_bytes + 1}
    with pytest.raises(Unavailable, match=f"an answer of {api.most_bytes + 1} bytes"):
        read(source_of(broker))


def test_a_batch_over_the_limit_is_named(broker: WireBroker) -> None:
    for size, until in ((200_000, END + 3), (400_000, END + 1)):
        broker.log = log_of()
        large = RawRecord(random.Random(0).randbytes(size), END, 1)
        broker.log.append((END + 3, batch([large], next_offset=END + 3)))
        source, found = source_of(broker, receive_message_max_bytes="150000"), []
        broker.cuts = {END: 140_000} if until == END + 3 else {}
        with pytest.raises(UnreadableBatch, match=r"receive\.message\.max\.bytes") as caught:
            for each in source.read(OffsetRange(TP, 0, END + 3)):
                found.append(each)
        assert (caught.value.first, caught.value.until, found[-1].position) == (END, until, END)
        assert caught.value.reason == "oversized_batch"


def test_a_changed_byte_in_a_record_is_named_after_the_good_ones(broker: WireBroker) -> None:
    broker.faults = deque([bytes, lambda answer: answer[:-700] + bytes([answer[-700] ^ 1]) + answer[-699:]])
    found = []
    with pytest.raises(UnreadableBatch, match="checksum") as caught:
        for each in source_of(broker).read(OffsetRange(TP, 0, END)):
            found.append(each)
    assert list(records(found)) == list(range(found[-1].position))
    assert (caught.value.first, caught.value.reason) == (found[-1].position, "damaged_batch")


class TestLeaders:
    @pytest.fixture
    def next_leader(self) -> Iterator[WireBroker]:
        with wire_broker(log=log_of(), epoch=3, epoch_ends={0: END, 3: END}) as other:
            yield other

    def moving(self, broker: WireBroker, to: WireBroker) -> list[RecordBatch]:
        """Read while the leadership moves after the second answer."""
        reading = source_of(broker).read(OffsetRange(TP, 0, END), ReadOptions(leader_epoch=0))
        found = [next(reading), next(reading)]
        broker.leader, broker.errors = to, deque([KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000)
        found.extend(reading)
        return found

    def test_the_reading_goes_on_at_the_new_one(self, broker: WireBroker, next_leader: WireBroker) -> None:
        next_leader.leader = next_leader
        assert list(records(self.moving(broker, next_leader))) == list(range(END))
        assert {epoch for _, epoch in next_leader.asked} == {3}

    def test_a_new_leader_without_what_was_read_is_a_truncated_log(
        self, broker: WireBroker, next_leader: WireBroker
    ) -> None:
        next_leader.epoch_ends = {0: 60}
        with pytest.raises(OffsetOutOfRange, match="truncated"):
            self.moving(broker, next_leader)
        assert next_leader.asked == []

    def test_the_first_server_may_be_away(self, broker: WireBroker, next_leader: WireBroker) -> None:
        next_leader.close()
        source = source_of(next_leader, broker)
        assert list(records(read(source, until=50))) == list(range(50))

    @pytest.mark.parametrize(("end", "is_whole"), [(100, True), (99, False)])
    def test_a_reading_begins_only_where_its_epoch_ends_no_sooner(
        self, next_leader: WireBroker, end: int, is_whole: bool
    ) -> None:
        next_leader.epoch_ends = {1: end}
        source = source_of(next_leader)
        if is_whole:
            assert list(records(read(source, 100, 150, epoch=1))) == list(range(100, 150))
        else:
            with pytest.raises(OffsetOutOfRange):
                read(source, 100, 150, epoch=1)


def test_an_old_broker_is_for_librdkafka(broker: WireBroker) -> None:
    broker.fetch_versions = (0, 8)
    with pytest.raises(NotSpoken, match="Fetch 0 to 8"):
        read(source_of(broker))


def test_a_batch_larger_than_an_answer_arrives(broker: WireBroker) -> None:
    large = RawRecord(random.Random(0).randbytes(300_000), END, 1)
    broker.log.append((END + 1, batch([large])))
    found = read(source_of(broker), END - 1, END + 1)
    assert records(found)[END] == large.value


def test_mutated_answers_are_damaged_or_parse_but_nothing_else(broker: WireBroker) -> None:
    source = random.Random(5)
    fetch = broker._fetch(bytes(64))
    for parse, data in (
        (lambda reply: parse_fetch(reply, TP), fetch),
        (lambda reply: parse_epoch_end(reply, TP), broker._epoch_end(bytes(8))),
        (lambda reply: parse_metadata(reply, TOPIC), broker._metadata(b"")),
    ):
        for _ in range(1_000):
            mutated = bytearray(data[: source.randint(0, len(data))] if source.random() < 0.3 else data)
            for _ in range(source.randint(0, min(3, len(mutated)))):
                mutated[source.randrange(min(200, len(mutated)))] = source.randrange(256)
            try:
                parse(ResponseReader(memoryview(bytes(mutated))))
            except Damaged:
                continue
