"""Readings over a network and a cluster that fail: nothing is lost, doubled or waited for without end."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from kbq_assets.adapters.kafka.fetch import source as subject
from kbq_assets.adapters.kafka.fetch.errors import Damaged, NotSpoken
from kbq_assets.adapters.kafka.fetch.protocol import (
    ResponseReader,
    parse_epoch_end,
    parse_fetch,
    parse_metadata,
)
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.core.errors import KbqError, NotFound, OffsetOutOfRange, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import RecordBatch
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
    return list(source.read(OffsetRange(TP, first, until), leader_epoch=epoch))


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
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Unavailable),
        (KafkaError.INVALID_MSG, Unavailable),
        (KafkaError.INVALID_REQUEST, Unavailable),
    ],
)
def test_errors_that_stay_are_raised_at_once(broker: WireBroker, code: int, expected: type[KbqError]) -> None:
    broker.errors = deque([code] * 100)
    with pytest.raises(expected, match=r"wired\[0\]") as caught:
        read(source_of(broker))
    assert caught.value.next_step
    assert len(broker.asked) == 1


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


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_a_size_that_no_answer_has_is_refused(broker: WireBroker, size: bytes) -> None:
    broker.faults = deque([lambda answer: size + answer[4:]])
    with pytest.raises(Unavailable, match="damaged: an answer of"):
        read(source_of(broker))


def test_a_changed_byte_in_a_record_is_unavailable_after_the_good_ones(broker: WireBroker) -> None:
    broker.faults = deque([bytes, lambda answer: answer[:-700] + bytes([answer[-700] ^ 1]) + answer[-699:]])
    found = []
    with pytest.raises(Unavailable, match="checksum"):
        for each in source_of(broker).read(OffsetRange(TP, 0, END)):
            found.append(each)
    assert list(records(found)) == list(range(found[-1].position))


class TestLeaders:
    @pytest.fixture
    def next_leader(self) -> Iterator[WireBroker]:
        with wire_broker(log=log_of(), epoch=3, epoch_ends={0: END, 3: END}) as other:
            yield other

    def moving(self, broker: WireBroker, to: WireBroker) -> list[RecordBatch]:
        """Read while the leadership moves after the second answer."""
        reading = source_of(broker).read(OffsetRange(TP, 0, END), leader_epoch=0)
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
        (parse_fetch, fetch),
        (parse_epoch_end, broker._epoch_end(bytes(8))),
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
