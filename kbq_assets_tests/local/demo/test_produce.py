"""Production to the real broker: the log equals the broker's contents, whatever happened on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.core.errors import StateError, Unavailable
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.local.demo.log import FILE_NAME, ProducersLog, expected_outcomes
from kbq_assets.local.demo.produce import produce_demo, produce_more
from kbq_assets.local.demo.topics import FLIGHTS_TOPIC, TOPICS, DemoRecord, DemoTopic, Step
from kbq_assets.local.stack import LocalStack

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]
pytestmark = pytest.mark.kafka

SMALL = tuple(topic for topic in TOPICS if topic is not FLIGHTS_TOPIC)
[WEATHER] = (topic for topic in TOPICS if topic.transactional)
#: Records that a run never gets to, which is killed once as many are on the broker.
KEPT_BACK = 3_000


class Demo:
    """Demo topics with unique names."""

    def __init__(self, stack: LocalStack, home: Path) -> None:
        self.stack = stack
        self.home = home
        self.reader = KafkaOffsetReader(stack.bootstrap_servers)
        self.source = LibrdkafkaSource(stack.bootstrap_servers)
        self.admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        self._suffix = uuid.uuid4().hex[:8]
        self.topics: list[str] = []

    def topic(self, topic: DemoTopic, records: int | None = None) -> DemoTopic:
        """A demo topic under another name, of another length."""
        named = replace(topic, name=f"{topic.name}.{self._suffix}", records=records or topic.records)
        self.topics.append(named.name)
        return named

    def produce(self, *topics: DemoTopic) -> ProducersLog:
        return produce_demo(self.stack.bootstrap_servers, self.stack.registry_url, self.home, topics=topics)

    def more(self, count: int, topic: DemoTopic) -> ProducersLog:
        return produce_more(
            self.stack.bootstrap_servers, self.stack.registry_url, self.home, count, topic=topic
        )

    @property
    def log_path(self) -> Path:
        return self.home / "demo" / FILE_NAME

    def ends(self, *topics: DemoTopic) -> dict[TopicPartition, BrokerOffsets]:
        partitions = [TopicPartition(t.name, p) for t in topics for p in range(t.partitions)]
        return dict(self.reader.offsets(partitions))

    def on_the_broker(self, topic: DemoTopic) -> dict[TopicPartition, dict[int, bytes | None]]:
        """Offset to value, as KBQ's own reader sees it."""
        found: dict[TopicPartition, dict[int, bytes | None]] = {}
        for tp, offsets in self.ends(topic).items():
            batches = self.source.read(OffsetRange(tp, offsets.earliest, offsets.latest))
            chunks = [batch.chunk for batch in batches]
            found[tp] = {int(c.offsets[i]): c.value(i) for c in chunks for i in range(len(c))}
        return found

    def delete(self, *names: str) -> None:
        for future in self.admin.delete_topics(list(names)).values():
            future.result(120)

    def assert_log_is_true(self, *topics: DemoTopic) -> None:
        """Every committed record is in the log, at its offset and with its outcome, and nothing else is."""
        expected = expected_outcomes(self.home / "demo")
        for topic in topics:
            there = self.on_the_broker(topic)
            assert {tp: sorted(values) for tp, values in there.items()} == {
                tp: sorted(expected(tp) or {}) for tp in there
            }
            assert sum(map(len, there.values())) == topic.records
            nulls = {(tp, o) for tp, values in there.items() for o, value in values.items() if value is None}
            skips = {(tp, o) for tp in there for o, what in (expected(tp) or {}).items() if what == "skip"}
            assert skips <= nulls


@pytest.fixture
def demo(local_stack: LocalStack, tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(local_stack, tmp_path)
    yield demo
    demo.delete(*(set(demo.topics) & set(demo.reader.topics())))


def test_the_log_is_what_is_on_the_broker(demo: Demo) -> None:
    topics = [*(demo.topic(topic) for topic in SMALL), demo.topic(FLIGHTS_TOPIC, 20_000)]
    log = demo.produce(*topics)
    demo.assert_log_is_true(*topics)
    assert ProducersLog.load(demo.log_path) == log
    assert {name: totals.produced for name, totals in log.totals().items()} == {
        topic.name: topic.records for topic in topics
    }


@pytest.mark.thorough
def test_a_second_run_produces_nothing(demo: Demo) -> None:
    topics = [*(demo.topic(topic) for topic in SMALL), demo.topic(FLIGHTS_TOPIC, 5_000)]
    first = demo.produce(*topics)
    ends, written = demo.ends(*topics), demo.log_path.stat().st_mtime_ns
    assert demo.produce(*topics) == first
    assert (demo.ends(*topics), demo.log_path.stat().st_mtime_ns) == (ends, written)


def test_a_lost_log_is_rebuilt_from_the_records(demo: Demo) -> None:
    topics = [demo.topic(topic) for topic in SMALL if not topic.transactional]
    first = demo.produce(*topics)
    ends = demo.ends(*topics)
    demo.log_path.unlink()
    assert demo.produce(*topics) == first
    assert demo.ends(*topics) == ends


def test_more_flights_follow_and_are_logged(demo: Demo) -> None:
    flights = demo.topic(FLIGHTS_TOPIC, 1_000)
    demo.produce(flights)
    before = demo.on_the_broker(flights)
    log = demo.more(100, flights)
    assert log.totals()[flights.name].rows == 1_100
    demo.assert_log_is_true(replace(flights, records=1_100))
    after = demo.on_the_broker(flights)
    assert all(after[tp].items() >= values.items() for tp, values in before.items())
    # And the demo knows that its topic is longer now.
    assert demo.produce(flights) == log


def test_a_recreated_topic_is_produced_anew(demo: Demo) -> None:
    topic = demo.topic(SMALL[-1])
    demo.produce(topic)
    demo.delete(topic.name)
    while topic.name in demo.reader.topics():
        time.sleep(0.1)
    demo.produce(topic)
    demo.assert_log_is_true(topic)


def test_a_foreign_record_between_the_demos_own_is_refused(demo: Demo) -> None:
    topic = demo.topic(SMALL[-1])
    demo.produce(replace(topic, sequence=lambda ids, count: iter(())))  # the empty topic
    producer = Producer({"bootstrap.servers": demo.stack.bootstrap_servers})
    producer.produce(topic.name, b"foreign")
    assert producer.flush(120) == 0
    demo.log_path.unlink()
    with pytest.raises(StateError, match=rf"{topic.name}\[0\] has a record at offset 0"):
        demo.produce(topic)


def test_records_that_others_append_afterwards_are_not_the_demos(demo: Demo) -> None:
    topic = demo.topic(SMALL[-1])
    log = demo.produce(topic)
    producer = Producer({"bootstrap.servers": demo.stack.bootstrap_servers})
    producer.produce(topic.name, b"{}")
    assert producer.flush(120) == 0
    assert demo.produce(topic) == log


@pytest.mark.thorough
@pytest.mark.parametrize(
    "topic", [replace(FLIGHTS_TOPIC, records=60_000), WEATHER], ids=["plain", "transactions"]
)
def test_a_run_that_was_killed_is_completed(demo: Demo, topic: DemoTopic) -> None:
    topic = demo.topic(topic, topic.records)
    context = multiprocessing.get_context("spawn")
    arguments = (demo.stack.bootstrap_servers, demo.stack.registry_url, demo.home, topic.name, topic.records)
    process = context.Process(target=produce_one, args=arguments)
    process.start()
    while sum(offsets.latest for offsets in demo.ends(topic).values()) <= KEPT_BACK:
        assert process.is_alive()
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not ProducersLog.load(demo.log_path).topics[topic.name].complete
    assert expected_outcomes(demo.home / "demo")(TopicPartition(topic.name, 0)) is None
    demo.produce(topic)
    demo.assert_log_is_true(topic)
    values = [value for part in demo.on_the_broker(topic).values() for value in part.values()]
    assert len(values) == topic.records


def produce_one(bootstrap_servers: str, registry_url: str, home: Path, name: str, records: int) -> None:
    """Produce one topic in a separate process. It never completes, because the last records are held back."""
    [topic] = (topic for topic in TOPICS if name.startswith(f"{topic.name}."))
    left = iter(range(records - KEPT_BACK))

    def kept_back(wanted: Iterable[DemoRecord]) -> Iterator[DemoRecord]:
        for record in wanted:
            if next(left, None) is None:
                threading.Event().wait()
            yield record

    def sequence(ids: Mapping[str, int], count: int) -> Iterator[Step]:
        for step in topic.sequence(ids, count):
            yield replace(step, records=kept_back(step.records))

    unfinished = replace(topic, name=name, records=records, sequence=sequence)
    produce_demo(bootstrap_servers, registry_url, home, topics=[unfinished])


def test_a_broker_that_is_down_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.local.demo.broker._SECONDS", 0.5)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        produce_demo("127.0.0.1:1", "http://127.0.0.1:1", tmp_path)


def test_a_registry_that_is_down_is_unavailable(demo: Demo, tmp_path: Path) -> None:
    topic = demo.topic(SMALL[0])
    with pytest.raises(Unavailable, match=r"the schema registry at .* does not answer"):
        produce_demo(demo.stack.bootstrap_servers, "http://127.0.0.1:1", tmp_path, topics=[topic])
