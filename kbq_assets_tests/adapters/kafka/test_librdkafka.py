"""Behavior that only the real broker shows: time limits, many partitions, restarts, memory, no group."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as ClientMessage

from kbq_assets.adapters.kafka import metadata
from kbq_assets.adapters.kafka.errors import read_error
from kbq_assets.adapters.kafka.fetch.wire_protocol import Api, frame, text
from kbq_assets.adapters.kafka.librdkafka import CHUNK_BYTES, LibrdkafkaSource, _headers, _MessageReading
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.cli.context import ExitCode, exit_code
from kbq_assets.core.errors import (
    AccessRefused,
    ConfigurationError,
    KbqError,
    NotFound,
    OffsetOutOfRange,
    StateError,
    Unavailable,
)
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.local.stack import LocalStack
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import RawRecord, decode_headers
from kbq_assets_tests.adapters.kafka.brokers import RealBroker, real_broker
from kbq_assets_tests.adapters.kafka.fetch import wires
from kbq_assets_tests.contracts.pace import goes_within
from kbq_assets_tests.contracts.source import as_messages, messages, read, records
from kbq_assets_tests.fixtures.local_stack import stack_with_free_ports

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]

NOBODY = "127.0.0.1:1"
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "user",
    "sasl.password": "open-sesame",
}


@pytest.fixture
def broker(local_stack: LocalStack) -> Iterator[RealBroker]:
    yield from real_broker(local_stack.bootstrap_servers)


def test_a_broker_out_of_reach_is_unavailable_by_name_and_in_time() -> None:
    tp = TopicPartition("t", 0)
    reader = KafkaOffsetReader(NOBODY, timeout_seconds=1)
    source = LibrdkafkaSource(NOBODY, no_progress_seconds=1)
    for call in (
        reader.cluster_id,
        reader.topics,
        lambda: reader.offsets([tp]),
        lambda: reader.offsets_for_time([tp], 0),
        lambda: list(source.read(OffsetRange(tp, 0, 1))),
    ):
        begun = time.monotonic()
        with pytest.raises(Unavailable, match=NOBODY) as caught:
            call()
        assert caught.value.next_step
        assert time.monotonic() - begun < 25, "longer than its limit, by default 30 and 60 seconds"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRange),
        (KafkaError.OFFSET_OUT_OF_RANGE, OffsetOutOfRange),
        (KafkaError._LOG_TRUNCATION, OffsetOutOfRange),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound),
        (KafkaError._UNKNOWN_PARTITION, NotFound),
        (100, NotFound),
        (KafkaError._BAD_MSG, StateError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessRefused),
        (KafkaError._TRANSPORT, Unavailable),
        (KafkaError.UNKNOWN, Unavailable),
    ],
)
def test_every_error_of_a_reading_names_the_range_and_a_next_step(
    code: int, expected: type[KbqError]
) -> None:
    error = read_error(
        KafkaError(code, "what librdkafka says"), OffsetRange(TopicPartition("t", 0), 1, 2), NOBODY
    )
    assert type(error) is expected
    assert "t[0] [1, 2)" in error.message
    assert "what librdkafka says" in error.message
    assert error.next_step


@pytest.mark.parametrize("error", [SystemError, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")])
def test_headers_that_the_client_cannot_give_do_not_stop_a_reading(error: Exception) -> None:
    class WithHeaderNameOfAnyBytes:
        def headers(self) -> None:
            raise error

    encoded = _headers(cast(ClientMessage, WithHeaderNameOfAnyBytes()))
    assert decode_headers(encoded) == [("kbq_unreadable_headers", None)]


def test_what_librdkafka_refuses_is_a_configuration_error() -> None:
    source = LibrdkafkaSource("127.0.0.1:1", {"security.protocol": "sideways"})
    with pytest.raises(ConfigurationError, match=r"Kafka client: .*security\.protocol"):
        list(source.read(OffsetRange(TopicPartition("t", 0), 0, 1)))


class FakeConsumer:
    """librdkafka's consumer with all messages in its queue."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.queue = deque(ClientMessage("t", 0, n, value=bytes(size)) for n, size in enumerate(sizes))

    def poll(self, seconds: float) -> ClientMessage | None:
        return self.queue.popleft() if self.queue else None

    def consume(self, count: int, seconds: float) -> list[ClientMessage]:
        return [self.queue.popleft() for _ in range(min(count, len(self.queue)))]


def test_a_chunk_holds_little_where_large_records_follow_small_ones() -> None:
    sizes = [10] * 5_000 + [1_000_000] * 60 + [10] * 5_000
    reading = _MessageReading(
        OffsetRange(TopicPartition("t", 0), 0, len(sizes)), NOBODY, 60.0, math.inf, {}, deque()
    )
    chunks = [
        (len(part.chunk), len(part.chunk.buffer))
        for part in reading._batches(cast(Any, FakeConsumer(sizes)), VALUES_ONLY, 20_000)
    ]
    assert sum(records for records, _ in chunks) == len(sizes)
    assert max(size for _, size in chunks) <= CHUNK_BYTES + 16 * 1_000_000
    assert len(chunks) < 20, "small records share a chunk"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("servers", [NOBODY, f"{NOBODY},127.0.0.1:2", "{silent}", "{silent}," + NOBODY])
def test_brokers_that_are_down_are_not_waited_for(
    servers: str, silent_server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A day is what a caller may have: the test would hang."""
    monkeypatch.setattr(metadata, "DOWN_SECONDS", 0.0)
    monkeypatch.setattr(metadata, "_SETUP", {"socket.connection.setup.timeout.ms": "1000"})
    reader = KafkaOffsetReader(servers.format(silent=silent_server), timeout_seconds=86_400.0)
    for _ in range(2):  # the client reports only once that all are down
        with pytest.raises(Unavailable, match="all brokers are down"):
            reader.topics()
    assert not caplog.records, "the client logs every try"


def test_an_error_that_is_not_kafkas_ends_the_wait_too() -> None:
    """Nobody else would answer."""

    class Closed:
        def poll(self, timeout: float) -> int:
            return 0

        def list_topics(self, timeout: float) -> None:
            raise RuntimeError("the handle has been closed")

    connection = metadata.BrokerMetadata({"bootstrap.servers": NOBODY})
    connection.client = cast(Any, Closed())
    with pytest.raises(RuntimeError, match="has been closed"):
        connection.read(86_400.0)


class TestPartialAnswers:
    """One partition without a leader must not stop the others."""

    @staticmethod
    def gather(answers: dict[str, int | list[int]], *, timeout: float = 30.0) -> dict[str, int]:
        """`KafkaOffsetReader._gather` with scripted answers: a value, or a sequence of error codes, the last of
        which repeats."""
        reader = KafkaOffsetReader(NOBODY, timeout_seconds=timeout)

        def ask(keys: list[str], seconds: float) -> dict[str, Future[int]]:
            futures: dict[str, Future[int]] = {}
            for key in keys:
                futures[key] = Future()
                script = answers[key]
                if isinstance(script, int):
                    futures[key].set_result(script)
                    continue
                code = script.pop(0) if len(script) > 1 else script[0]
                if code == KafkaError.NO_ERROR:
                    futures[key].set_result(-7)
                else:
                    futures[key].set_exception(KafkaException(KafkaError(code)))
            return futures

        return reader._gather("offsets", list(answers), ask)

    def test_a_leader_that_moves_is_waited_for(self) -> None:
        moving = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NO_ERROR]
        assert self.gather({"a": 1, "b": list(moving)}) == {"a": 1, "b": -7}

    def test_one_that_stays_without_an_answer_is_left_out(self) -> None:
        assert self.gather({"a": 1, "b": [KafkaError.LEADER_NOT_AVAILABLE]}, timeout=1) == {"a": 1}

    def test_what_the_broker_does_not_know_is_left_out_at_once(self) -> None:
        begun = time.monotonic()
        assert self.gather({"a": [KafkaError.UNKNOWN_TOPIC_OR_PART]}) == {}
        assert time.monotonic() - begun < 25

    def test_no_answer_at_all_is_unavailable(self) -> None:
        with pytest.raises(Unavailable):
            self.gather({"a": [KafkaError.LEADER_NOT_AVAILABLE], "b": [KafkaError._TIMED_OUT]}, timeout=1)

    def test_refused_credentials_are_not_waited_for(self) -> None:
        begun = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            self.gather({"a": [KafkaError.TOPIC_AUTHORIZATION_FAILED]})
        assert "credentials" in caught.value.next_step
        assert time.monotonic() - begun < 25


@pytest.mark.kafka
class TestAtTheBroker:
    def test_a_thousand_partitions_are_asked_for_in_seconds(self, broker: RealBroker) -> None:
        topics = [broker.create_topic(100) for _ in range(10)]
        partitions = [TopicPartition(topic, p) for topic in topics for p in range(100)]

        def ask() -> None:
            described = broker.reader.topics()
            assert {described[topic].partitions for topic in topics} == {100}
            assert set(broker.reader.offsets(partitions)) == set(partitions)

        assert goes_within(5, ask)

    def test_many_small_ranges_take_milliseconds_each(self, broker: RealBroker) -> None:
        topic = broker.create_topic(50)
        for partition in range(50):
            broker.produce(TopicPartition(topic, partition), messages(10))

        def read_all() -> None:
            for partition in range(50):
                tp = TopicPartition(topic, partition)
                found = broker.source.read(OffsetRange(tp, 0, 10), ReadOptions(leader_epoch=0))
                assert len(records(list(found))) == 10

        assert goes_within(10, read_all)

    def test_no_group_is_joined_and_nothing_is_committed(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        broker.produce(tp, messages(10))
        read(broker.source, tp, 0, 10)
        groups = broker.admin.list_consumer_groups().result(120).valid
        assert "kbq" not in [group.group_id for group in groups]

    def test_header_names_that_are_not_utf_8_stop_no_reading(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        # Many: the client's error shows in another way once Python has seen the call often.
        sent = [RawRecord(b"%d" % n, n, 1, None, (("\udcff", b"1"), ("fine", None))) for n in range(50)]
        produced = struct.pack(">hhi", -1, -1, 60_000) + struct.pack(">i", 1) + text(tp.topic)
        batch = wires.batch(sent)
        produced += struct.pack(">iii", 1, tp.partition, len(batch)) + batch
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(frame(Api("Produce", 0, 3), 1, "test", produced))
            assert connection.recv(4)
        batches = list(broker.source.read(OffsetRange(tp, 0, 50), ReadOptions(headers=True)))
        found = [message for each in batches for message in as_messages(each.chunk)]
        assert [m.value for m in found] == [m.value for m in sent]
        assert {m.headers for m in found} == {(("kbq_unreadable_headers", None),)}

    def test_a_reading_given_up_half_way_leaves_nothing_open(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        broker.produce(tp, [RawRecord(bytes(100), i, 1) for i in range(5_000)])
        for _ in range(5):
            reading = broker.source.read(OffsetRange(tp, 0, 5_000))
            next(reading)
            cast(Generator[RecordBatch, None, None], reading).close()
        assert len(read(broker.source, tp, 0, 5_000)) > 0

    def test_refused_credentials_fail_soon_and_are_not_shown(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        source = LibrdkafkaSource(broker.bootstrap_servers, SASL, no_progress_seconds=3)
        with pytest.raises(Unavailable) as caught:
            list(source.read(OffsetRange(tp, 0, 1)))
        assert "open-sesame" not in str(caught.value)

    def test_a_driver_whose_credentials_are_refused_needs_a_person(self, broker: RealBroker) -> None:
        # The listener is without SASL, as a topic's user finds it who has confused the ports.
        reader = KafkaOffsetReader(broker.bootstrap_servers, SASL, timeout_seconds=30)
        with pytest.raises(AccessRefused) as caught:
            reader.topics()
        assert "check the credentials" in caught.value.next_step and "open-sesame" not in str(caught.value)
        assert exit_code(caught.value) == ExitCode.FAILED

    def test_a_topic_deleted_under_a_reading_ends_it(self, broker: RealBroker) -> None:
        tp = TopicPartition(broker.create_topic(), 0)
        broker.produce(tp, [RawRecord(bytes(100_000), i, 1) for i in range(1_500)])
        reading = broker.source.read(OffsetRange(tp, 0, 1_500))
        next(reading)
        broker.delete(tp.topic)
        with pytest.raises((NotFound, Unavailable, OffsetOutOfRange)):
            for _ in reading:
                pass


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_that_restarts_under_a_reading_costs_no_record(tmp_path: Path) -> None:
    stack = stack_with_free_ports(tmp_path)
    stack.up()
    try:
        for broker in real_broker(stack.bootstrap_servers):
            tp = TopicPartition(broker.create_topic(), 0)
            broker.produce(tp, [RawRecord(b"%d" % i * 1_000, i, 1) for i in range(20_000)])
            source = LibrdkafkaSource(stack.bootstrap_servers, no_progress_seconds=300, chunk_records=500)
            hasty = LibrdkafkaSource(stack.bootstrap_servers, no_progress_seconds=10, chunk_records=500)
            reading = hasty.read(OffsetRange(tp, 0, 20_000), ReadOptions(leader_epoch=0))
            found = [next(reading)]
            stack.down()
            stack.up()
            # librdkafka mostly finds the broker again. Where it does not, the next reading goes on.
            with contextlib.suppress(Unavailable, NotFound):
                found.extend(reading)
            last = found[-1]
            rest = OffsetRange(tp, last.position, 20_000)
            found.extend(source.read(rest, ReadOptions(leader_epoch=last.leader_epoch)))
            assert list(records(found)) == list(range(20_000))
    finally:
        stack.down()
