"""Small data may wait, limits last from run to run, runs record their cost, and topics do not stop each other."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.extraction.ports import ExtractionLimits
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, Bench, value

WAITING = SETTINGS.with_options(min_records=3, max_wait_seconds=100)


def produce(bench: Bench, seconds_ago: float, count: int = 1) -> None:
    """Records of some age by the clock of the run."""
    for _ in range(count):
        timestamp = bench.clock.now_ms() - int(seconds_ago * 1000)
        bench.kafka.produce(TP, value(1), key=b"k", timestamp=timestamp)


def test_little_data_waits_until_there_is_enough() -> None:
    bench = Bench(settings=WAITING)
    produce(bench, 0, 2)
    report = bench.extract()
    assert ([w.positions for w in report.plan.waiting], report.partitions) == ([2], ())
    assert bench.paths("staging/") == []
    produce(bench, 0)
    assert bench.extract().totals.records == 3


def test_little_data_waits_until_its_oldest_record_is_old_enough() -> None:
    bench = Bench(settings=WAITING)
    produce(bench, 0)
    bench.clock.sleep(60)
    produce(bench, 0)
    bench.clock.sleep(39)
    assert bench.extract().totals.records == 0
    bench.clock.sleep(2)
    assert bench.extract().totals.records == 2


@pytest.mark.parametrize("options", [{"min_records": 3, "max_wait_seconds": 7200}, {"quiet_seconds": 7200}])
@pytest.mark.parametrize("lag", [0, 5000])
def test_small_data_does_not_wait_past_the_end_of_its_hour_by_the_data_clock(
    options: dict[str, int], lag: int
) -> None:
    """The hour of a topic whose records are always late ends later by the lag, though the wait ends long before."""
    bench = Bench(settings=SETTINGS.with_options(**options, close_hours=True, complete_after_seconds=300))
    produce(bench, lag, 3)
    assert bench.extract().totals.records == 3, "the first rows wait for nothing"
    left = 3600 - (bench.clock.now_ms() / 1000 - lag - 300) % 3600
    assert left > 200
    bench.clock.sleep(left - 100)
    produce(bench, 100)
    [waiting] = bench.extract().plan.waiting
    assert waiting.closes_ms == pytest.approx(bench.clock.now_ms() + 100_000, abs=1)
    bench.clock.sleep(101)
    produce(bench, lag)
    assert bench.extract().totals.records == 2
    produce(bench, 0)
    bench.clock.sleep(1000)
    assert bench.extract().totals.records == 0, "the next hour goes on"


def test_without_it_small_data_waits_as_long_as_it_may() -> None:
    bench = Bench(settings=SETTINGS.with_options(min_records=3, max_wait_seconds=7200))
    produce(bench, 0)
    bench.clock.sleep(3700)
    [waiting] = bench.extract().plan.waiting
    assert not waiting.closes_ms


def test_records_that_are_read_do_not_make_the_rest_old() -> None:
    bench = Bench(settings=WAITING)
    produce(bench, 1000, 3)
    bench.extract()
    produce(bench, 0)
    assert len(bench.extract().plan.waiting) == 1


@pytest.mark.parametrize("seconds_ago", [-3600.0, 1_700_000_000.0])
def test_nothing_waits_by_a_clock_that_contradicts_the_records(seconds_ago: float) -> None:
    bench = Bench(settings=WAITING)
    produce(bench, seconds_ago)
    assert bench.extract().totals.records == 1


def test_positions_without_a_record_need_not_wait_for_one() -> None:
    bench = Bench(settings=WAITING)
    bench.kafka.gap(TP, 2)
    bench.extract()
    assert bench.commit().partitions[0].next == 2


def test_a_limit_of_the_run_is_shared_and_the_next_runs_read_the_rest() -> None:
    bench = Bench(partitions=3)
    for partition, count in enumerate((6, 1, 6)):
        bench.produce(*[1] * count, partition=partition)
    limits = ExtractionLimits(total=ReadLimits(records=7))
    assert [p.counts.records for p in bench.extract(limits).partitions] == [3, 1, 3]
    assert [p.counts.records for p in bench.extract(limits).partitions] == [3, 3]
    assert bench.extract(limits).partitions == ()


def test_a_topic_whose_seconds_are_used_up_continues_in_the_next_run() -> None:
    bench = Bench(settings=SETTINGS.with_options(max_seconds=5))
    bench.produce(*[1] * 9)

    def slow() -> None:
        bench.clock.sleep(6)

    bench.faults = Script("read", before=slow)
    limits = ExtractionLimits(slices=SliceLimits(positions=3, ahead=0))
    report = bench.extract(limits)
    assert (report.totals.records, report.unfinished, report.is_behind) == (2, 1, False)
    bench.extract(limits)
    assert bench.commit().partitions[0].next == 9


def test_a_slice_ends_with_the_runs_time_and_what_was_read_is_published() -> None:
    bench = Bench()
    bench.produce(*[1] * 9)
    bench.faults = Script("read", before=lambda: bench.clock.sleep(1000))
    report = bench.extract(ExtractionLimits(seconds=600, slices=SliceLimits(positions=5, ahead=0)))
    assert (report.totals.records, report.unfinished, report.is_behind) == (2, 1, True)
    assert bench.commit().partitions[0].next == 2
    assert bench.extract().totals.records == 7


def test_slices_read_ahead_of_one_that_the_runs_time_cut_are_read_again_once() -> None:
    bench = Bench()
    bench.produce(*[1] * 9)
    bench.faults = Script("read", before=lambda: bench.clock.sleep(1000))
    report = bench.extract(ExtractionLimits(seconds=600, slices=SliceLimits(positions=3, least=1, ahead=2)))
    assert (report.totals.records, bench.commit().partitions[0].next) == (2, 2)
    assert bench.extract().totals.records == 7
    bench.load()
    assert bench.offsets(A) == list(range(9))


def test_a_run_keeps_what_each_topic_cost() -> None:
    bench = Bench(settings=SETTINGS.with_options(owner="sales"))
    bench.produce(1, 1)
    bench.faults = Script("read", before=lambda: setattr(bench.clock, "cpu", 2.5))
    [cost] = bench.extract().costs
    assert (cost.records, cost.core_seconds) == (2, 2.5)
    [path] = bench.paths("costs/")
    [line] = bench.store.get(path).data.splitlines()
    kept = json.loads(line)
    assert (kept["topic"], kept["owner"], kept["records"], kept["cost"]) == (TOPIC, "sales", 2, 2.5)


def test_an_idle_run_costs_nothing() -> None:
    bench = Bench()
    assert (bench.extract().costs, bench.paths("costs/")) == ((), [])


def test_costs_that_cannot_be_kept_do_not_fail_the_run() -> None:
    bench = Bench(faults=Script("create", "costs/", Outcome.UNAVAILABLE))
    bench.produce(1)
    assert bench.extract().totals.records == 1


def test_topics_that_fail_do_not_stop_the_others() -> None:
    bench = Bench()
    bench.produce(1)
    topics = [f"other-{n}" for n in range(6)]
    for topic in topics:
        bench.kafka.create_topic(topic)
    for topic, payload in zip(
        topics, [value(99), b"\x01bad", value(1), value(6), value(1), value(1)], strict=True
    ):
        bench.kafka.produce(TopicPartition(topic, 0), payload, key=b"k")
    failing = SETTINGS.with_options(errors="fail")
    bench.faults = Script("read", "other-2", Outcome.UNAVAILABLE)
    report = bench.extract(
        sources=[SourceEntry("other-1", failing), SourceEntry("*", SETTINGS)],
        limits=ExtractionLimits(slices=SliceLimits(packed_units=3)),
    )
    stopped = {s.topic_partition.topic: s.reason for s in report.stops}
    assert stopped == {"other-0": "unknown_schema", "other-1": "bad_record", "other-3": "unstageable_schema"}
    assert {tp.topic for tp in report.failures} == {"other-2"}
    assert {p.topic_partition.topic for p in report.partitions} == {TOPIC, "other-4", "other-5"}
    bench.load()
    assert len(bench.offsets(A)) == 3


# Quiet partitions


def _files_of_an_hour(partitions: int, options: dict[str, int]) -> int:
    """Data files after an hour of runs every five minutes; each partition gets a record every six minutes."""
    bench = Bench(partitions=partitions, settings=SETTINGS.with_options(**options))
    bench.produce(1, partition=0)
    for partition in range(1, partitions):
        bench.produce(1, partition=partition)
    bench.extract()
    before = len(bench.paths("staging/"))
    assert before == partitions, "the first rows of a topic wait for nothing"
    for minute in range(1, 61):
        bench.clock.sleep(60)
        if minute % 6 == 0:
            for partition in range(partitions):
                now = bench.clock.now_ms()
                bench.kafka.produce(TopicPartition(TOPIC, partition), value(1), key=b"k", timestamp=now)
        if minute % 5 == 0:
            bench.extract()
    return len(bench.paths("staging/")) - before


@pytest.mark.parametrize("partitions", [2, 8])
def test_a_quiet_partition_writes_two_files_in_an_hour_instead_of_ten_however_many_there_are(
    partitions: int,
) -> None:
    assert _files_of_an_hour(partitions, {"quiet_seconds": 900}) == 2 * partitions
    assert _files_of_an_hour(partitions, {"quiet_seconds": 0}) == 10 * partitions


def test_a_topic_s_own_minimum_wins_over_quiet_partitions() -> None:
    bench = Bench(settings=SETTINGS.with_options(min_records=2, quiet_seconds=900))
    produce(bench, 0, 2)
    assert bench.extract().totals.records == 2
    produce(bench, 0)
    assert [w.max_wait_seconds for w in bench.extract().plan.waiting] == [3600]
