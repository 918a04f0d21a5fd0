"""Publishing runs in parallel to the loop that submits tasks, and a failure affects only its own commit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import OffsetRange, TopicDescription, TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.extraction import publisher as publishing
from kbq_assets.pipelines.extraction.publisher import PublishedCounts, Publisher
from kbq_assets.pipelines.protocol.state import read
from kbq_assets.pipelines.threads import pool_of
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fixtures.work import calls_of
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, B, Bench, value

PATIENCE_SECONDS = 600.0


class HeldStore(FaultyMemoryStore):
    """A swap of a commit in ``held`` does not return until ``release`` is set."""

    def __init__(self, held: Iterable[str] = ()) -> None:
        super().__init__()
        self.held = {commit_path(topic, 0) for topic in held}
        self.release = threading.Event()

    def swap(self, path: str, data: bytes, generation: int) -> int:
        if path in self.held:
            assert self.release.wait(PATIENCE_SECONDS)
        return super().swap(path, data, generation)


class Asked(FakeKafka):
    """Remembers the topics of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Collection[str] | None] = []

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        self.asked.append(names)
        return super().topics(names)


def world(topics: int, store: FaultyMemoryStore) -> Asked:
    """Topics of one partition, with commits."""
    kafka = Asked()
    for number in range(topics):
        topic = f"t{number}"
        kafka.create_topic(topic, 1)
        commit = Commit(topic, 0, "cluster", kafka.topics_by_name[topic].topic_id, 1, {0: PartitionCommit(0)})
        store.create(commit_path(topic, 0), codec.dumps(commit))
    return kafka


def gap(topic: str, first: int = 0) -> UnitOutcome:
    """A window of ten positions without records."""
    range_ = OffsetRange(TopicPartition(topic, 0), first, first + 10)
    return UnitOutcome(Unit(range_, 1, SETTINGS), (Window(first, first + 10, Counts(positions=10, gaps=10)),))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_commit_that_is_slow_to_swap_delays_no_other_and_not_the_loop() -> None:
    store = HeldStore(["t0"])
    kafka = world(3, store)
    with pool_of(4, "test") as pool:
        publisher = Publisher(store, kafka, FakeClock(), pool)
        for topic in ("t0", "t1", "t2"):
            publisher.add(gap(topic))
        publisher.flush_due()  # returns, although t0 is not published

        def others_are_published() -> bool:
            publisher.flush_due()
            return len(publisher.published) == 2

        wait_until(others_are_published)
        assert {tp.topic for tp in publisher.published} == {"t1", "t2"}
        publisher.add(gap("t0", 10))
        publisher.flush_due()  # the next window of t0 waits for the swap before it
        store.release.set()
        publisher.flush()
    assert (publisher.failures, publisher.counts.positions) == ({}, 40)
    assert read(store, Commit, commit_path("t0", 0)).value.partitions[0].next == 20


def test_only_the_topics_that_are_published_are_described_in_one_request() -> None:
    store = FaultyMemoryStore()
    kafka = world(50, store)
    publisher = Publisher(store, kafka, FakeClock(), pool_of(1, ""))
    for topic in ("t7", "t9"):
        publisher.add(gap(topic))
    publisher.flush_due()
    assert kafka.asked == [{"t7", "t9"}]


def test_more_windows_than_may_wait_are_published_before_the_loop_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "MOST_WAITING", 3)
    store = FaultyMemoryStore()
    publisher = Publisher(store, world(1, store), FakeClock(), pool_of(1, ""))
    publisher.add(gap("t0"))
    publisher.flush_due()
    for number in range(1, 5):  # within a second of the first swap
        publisher.add(gap("t0", 10 * number))
        publisher.flush_due()
    assert publisher.counts.positions == 50


def _swaps_of(tasks: int) -> int:
    """The swaps of a commit while this many tasks of a window each end within a second."""
    swapped = Counter[str]()

    def count(call: Call) -> Outcome:
        swapped[call.operation] += call.target == commit_path("t0", 0)
        return Outcome.OK

    store = FaultyMemoryStore(count)
    publisher = Publisher(store.view("run"), world(1, store), FakeClock(), pool_of(1, ""))
    for number in range(tasks):
        publisher.add(gap("t0", 10 * number))
        publisher.flush_due()
    publisher.flush()
    assert publisher.counts.positions == 10 * tasks
    return swapped["swap"]


def test_tasks_that_end_within_a_second_share_the_swaps_of_their_commit_however_many() -> None:
    assert _swaps_of(5) == _swaps_of(20) == 2


def test_counting_progress_costs_the_same_however_much_is_published() -> None:
    def adding(published: int) -> int:
        counts, window = PublishedCounts(), Window(0, 10, Counts(positions=10, records=10))
        for _ in range(published):
            counts.add((window,))
        return calls_of(lambda: counts.add((window,)))

    assert adding(50) == adding(200)


def two_topics(bench: Bench) -> list[SourceEntry]:
    """The bench's topic and another, with records."""
    other = TopicPartition("other", 0)
    bench.kafka.create_topic(other.topic, 1)
    bench.produce(1)
    bench.kafka.produce(other, value(3))
    return [SourceEntry(TOPIC, SETTINGS), SourceEntry(other.topic, SETTINGS)]


@pytest.mark.parametrize(
    "fault",
    [
        Script("swap", f"commits/{TOPIC}", Outcome.UNAVAILABLE),
        Script("get", f"commits/{TOPIC}", Outcome.UNAVAILABLE, nth=3),
    ],
    ids=["swap", "read"],
)
def test_a_commit_that_the_store_does_not_take_now_fails_its_own_partitions(fault: Script) -> None:
    bench = Bench()
    sources = two_topics(bench)
    bench.faults = fault
    report = bench.extract(sources=sources)
    [failure] = report.failures.items()
    assert failure[0] == TP
    assert failure[1].startswith("not published: ")
    assert [partition.topic_partition.topic for partition in report.partitions] == ["other"]
    assert bench.extract(sources=sources).failures == {}
    bench.load()
    assert (bench.offsets(A), bench.offsets(B)) == ([0], [0])


def test_done_files_that_the_store_does_not_take_now_are_written_by_a_later_run() -> None:
    bench = Bench()
    bench.produce(1, 3)

    def no_done_files(call: Call) -> Outcome:
        refused = call.operation == "create" and call.target.startswith("done/")
        return Outcome.UNAVAILABLE if refused else Outcome.OK

    bench.faults = no_done_files
    assert bench.extract().failures == {}
    bench.load()
    assert bench.extract().failures == {}
    assert (bench.paths("done/"), len(bench.commit().partitions[0].windows)) == ([], 1), "not pruned yet (L7)"
    bench.faults = lambda call: Outcome.OK
    bench.extract()
    assert (len(bench.paths("done/")), bench.commit().partitions[0].windows) == (2, ())


def test_a_broker_that_describes_no_topic_fails_what_was_to_be_published() -> None:
    bench = Bench()
    bench.produce(1)
    bench.faults = Script("topics", outcome=Outcome.UNAVAILABLE, nth=2)
    assert list(bench.extract().failures) == [TP]
    assert bench.extract().totals.records == 1


def test_a_broker_out_of_reach_from_the_beginning_raises() -> None:
    bench = Bench(faults=Script("topics", outcome=Outcome.UNAVAILABLE))
    with pytest.raises(Unavailable):
        bench.extract()


@pytest.mark.parametrize("partitions", [4, 16])
def test_a_task_reads_the_commit_of_its_units_once(partitions: int) -> None:
    bench = Bench(partitions=partitions)
    for partition in range(partitions):
        bench.produce(1, partition=partition)
    bench.extract()
    for partition in range(partitions):
        bench.produce(1, partition=partition)
    calls = Script("none")
    bench.faults = calls
    assert bench.extract().totals.records == partitions
    reads = [
        call for call in calls.calls if call.operation == "get" and call.target == f"commits/{TOPIC}.json"
    ]
    assert len(reads) == 4, "repair, plan, task, swap"


# A defect has the size of its commit ---------------------------------------------------------------------------------

OTHER = "shop.others"


def _two_topics(backup: str = "false") -> tuple[Bench, list[SourceEntry]]:
    bench = Bench(SETTINGS.with_options(backup=backup))
    bench.kafka.create_topic(OTHER, 1)
    bench.produce(1)
    bench.kafka.produce(TopicPartition(OTHER, 0), value(1), timestamp=1000)
    return bench, [SourceEntry(topic, bench.settings) for topic in (TOPIC, OTHER)]


def _defect() -> None:
    raise ValueError("a defect")


def test_a_defect_while_a_commit_is_swapped_stops_its_partitions_alone() -> None:
    bench, sources = _two_topics()
    bench.faults = Script("swap", commit_path(TOPIC, 0), before=_defect)
    report = bench.extract(sources=sources)
    [stop] = report.stops
    assert (stop.topic_partition, stop.reason) == (TP, "failed")
    assert "ValueError: a defect" in stop.message and "report a bug" in stop.message
    assert [each.topic_partition.topic for each in report.partitions] == [OTHER]
    written = bench.commit().partitions[0].stop
    assert written is not None and written.reason == "failed"
    bench.store.time_ms += 3_600_000
    assert not bench.extract(sources=sources).stops
    assert bench.commit().partitions[0].next == 1


def test_windows_that_contradict_themselves_stop_their_partition_alone() -> None:
    store = FaultyMemoryStore()
    kafka = FakeKafka()
    kafka.create_topic("t", 2)
    commit = Commit(
        "t", 0, "cluster", kafka.topics_by_name["t"].topic_id, 1, dict.fromkeys((0, 1), PartitionCommit(0))
    )
    store.create(commit_path("t", 0), codec.dumps(commit))
    publisher = Publisher(store, kafka, FakeClock(), pool_of(1, "publish"))
    for partition, counted in enumerate((9, 10)):
        range_ = OffsetRange(TopicPartition("t", partition), 0, 10)
        window = Window(0, 10, Counts(positions=counted, gaps=counted))
        publisher.add(UnitOutcome(Unit(range_, 1, SETTINGS), (window,)))
    publisher.flush()
    [stop] = publisher.stops
    assert (stop.topic_partition, stop.reason) == (TopicPartition("t", 0), "failed")
    assert "accounts for 9 positions" in stop.message
    found = read(store, Commit, commit_path("t", 0)).value.partitions
    assert [(found[n].next, found[n].stop is not None) for n in (0, 1)] == [(0, True), (10, False)]


def test_a_stop_that_cannot_be_written_either_is_in_the_report() -> None:
    bench, sources = _two_topics()

    def fault(call: Call) -> Outcome:
        if (call.operation, call.target) == ("swap", commit_path(TOPIC, 0)):
            _defect()
        return Outcome.OK

    bench.faults = fault
    report = bench.extract(sources=sources)
    assert [stop.reason for stop in report.stops] == ["failed"]
    assert (bench.commit().partitions[0].stop, bench.commit().partitions[0].next) == (None, 0)
    assert [each.topic_partition.topic for each in report.partitions] == [OTHER]


def test_a_defect_of_a_backup_stops_it_and_no_table() -> None:
    bench, sources = _two_topics(backup="true")
    bench.faults = Script("swap", f"backup/@/{commit_path(TOPIC, 0)}", before=_defect)
    report = bench.extract(sources=sources)
    assert {each.topic_partition.topic for each in report.partitions} == {TOPIC, OTHER}
    assert not report.stops
    [stop] = report.backup.stops
    assert (stop.topic_partition, stop.reason) == (TP, "failed")
    assert all(command.startswith("kbq backup ") for command in stop.commands)


@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_a_commit_that_cannot_be_pruned_keeps_no_other_from_it(topic: str) -> None:
    bench, sources = _two_topics()
    bench.extract(sources=sources)
    bench.load()
    bench.faults = Script("swap", commit_path(topic, 0), before=_defect)
    bench.extract(sources=sources)
    assert [each for each in (TOPIC, OTHER) if _windows(bench, each)] == [topic]
    bench.extract(sources=sources)
    assert not _windows(bench, topic)


def _windows(bench: Bench, topic: str) -> tuple[Window, ...]:
    return read(bench.store, Commit, commit_path(topic, 0)).value.partitions[0].windows
