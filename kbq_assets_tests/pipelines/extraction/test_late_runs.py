"""A run that comes back after a reset leaves the new epoch alone: it planned for another log (PROTOCOL E2, E9)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.publishing import ANOTHER_WAS_FASTER, rebase
from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.extraction.extract import plan
from kbq_assets.pipelines.extraction.prepare import prepare_each
from kbq_assets.pipelines.operate.commands import propose_accept_gap, propose_reset
from kbq_assets.worker.unit import extract_unit
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.kafka import KafkaView
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, Bench
from kbq_assets_tests.strategies import staged_file, window

SECOND = TopicPartition(TOPIC, 1)


def planned(bench: Bench) -> ExtractionPlan:
    return plan(bench.store, bench.kafka, [SourceEntry(TOPIC, bench.settings)])


def recreate_and_reset(bench: Bench, partitions: int) -> None:
    bench.load()
    bench.kafka.recreate_topic(TOPIC, partitions)
    propose_reset(bench.store, bench.kafka, TOPIC).apply()


def test_a_gap_of_the_log_before_a_reset_is_not_recorded() -> None:
    bench = Bench(settings=SETTINGS.with_options(on_retention_loss="record"))
    bench.produce(*[1] * 4)
    bench.extract()
    bench.produce(*[1] * 4)
    bench.kafka.delete_before(TP, 6)
    late = planned(bench)
    assert [gap.until for gap in late.gaps] == [6]
    recreate_and_reset(bench, 1)
    prepare_each(bench.store, late)
    bench.produce(*[1] * 8)
    bench.extract()
    assert bench.commit().partitions[0].accepted_gaps == ()
    assert (bench.commit().partitions[0].totals.lost, bench.commit().partitions[0].next) == (0, 8)


def test_a_gap_that_an_operator_confirms_after_a_reset_is_refused() -> None:
    bench = Bench()
    bench.extract()
    bench.produce(*[1] * 4)
    bench.kafka.delete_before(TP, 2)
    late = propose_accept_gap(bench.store, bench.kafka, TP)
    recreate_and_reset(bench, 1)
    with pytest.raises(Refused, match="moved meanwhile"):
        late.apply()
    assert bench.commit().partitions[0].next == 0


def before_offsets(bench: Bench, happens: Callable[[], object]) -> KafkaView:
    """The broker as a process sees it that sleeps before it asks for offsets, until something has happened."""
    waiting = [happens]

    def sleep(call: Call) -> Outcome:
        if call.operation == "offsets" and waiting:
            waiting.pop()()
        return Outcome.OK

    bench.kafka.faults = sleep
    return bench.kafka.view("late")


def reset_and_lose(bench: Bench) -> None:
    recreate_and_reset(bench, 1)
    bench.produce(*[1] * 4)
    bench.kafka.delete_before(TP, 2)


def test_a_run_compares_offsets_with_a_commit_that_it_read_before_them() -> None:
    bench = Bench(settings=SETTINGS.with_options(on_retention_loss="record"))
    bench.extract()
    reader = before_offsets(bench, partial(reset_and_lose, bench))
    late = plan(bench.store, reader, [SourceEntry(TOPIC, bench.settings)])
    assert [(gap.epoch, gap.until) for gap in late.gaps] == [(1, 2)]
    prepare_each(bench.store, late)
    assert (bench.commit().epoch, bench.commit().partitions[0].next) == (2, 0)


def test_an_operator_sees_a_gap_in_a_commit_that_was_read_before_the_offsets() -> None:
    bench = Bench()
    bench.extract()
    late = propose_accept_gap(bench.store, before_offsets(bench, partial(reset_and_lose, bench)), TP)
    with pytest.raises(Refused, match="moved meanwhile"):
        late.apply()


def test_a_reset_while_the_topic_is_recreated_again_leaves_it_stopped() -> None:
    bench = Bench()
    bench.extract()
    bench.kafka.recreate_topic(TOPIC)
    reader = before_offsets(bench, partial(bench.kafka.recreate_topic, TOPIC))
    propose_reset(bench.store, reader, TOPIC).apply()
    assert [stop.reason for stop in planned(bench).stops] == [StopReason.RECREATED]


def test_a_partition_of_the_log_before_a_reset_is_not_added() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.kafka.add_partitions(TOPIC, 2)
    bench.produce(*[1] * 4, partition=1)
    bench.kafka.delete_before(SECOND, 3)
    late = planned(bench)
    assert [addition.start for addition in late.additions] == [3]
    recreate_and_reset(bench, 1)
    prepare_each(bench.store, late)
    bench.kafka.add_partitions(TOPIC, 2)
    bench.produce(*[1] * 4, partition=1)
    report = bench.extract()
    assert report.stops == ()
    assert bench.commit().partitions[1].start == 0


def test_a_partition_that_the_creator_of_the_commit_did_not_see_waits_for_the_next_run() -> None:
    bench = Bench()
    first = planned(bench)
    bench.kafka.add_partitions(TOPIC, 2)
    bench.produce(1, partition=1)
    second = planned(bench)
    assert [sorted(each.starts) for each in (*first.creations, *second.creations)] == [[0], [0, 1]]
    prepare_each(bench.store, first)
    [unit] = prepare_each(bench.store, second).units
    assert extract_unit(unit, bench.worker(bench.kafka)) == UnitOutcome(unit, superseded=True)
    read = UnitOutcome(unit, windows=(window(0, 1, staged_file(0, 1, topic=TOPIC, partition=1)),))
    assert rebase(bench.commit(), [read], 0)[1:] == ([], {SECOND: ANOTHER_WAS_FASTER})
    bench.extract()
    assert bench.commit().partitions[1].next == 1


def test_a_late_task_of_a_partition_that_a_reset_dropped_is_superseded() -> None:
    bench = Bench(partitions=2)
    bench.produce(1, partition=1)
    bench.extract()
    bench.produce(1, partition=1)
    [unit] = planned(bench).units
    recreate_and_reset(bench, 1)
    assert [*bench.commit().partitions] == [0]
    assert extract_unit(unit, bench.worker(bench.kafka)) == UnitOutcome(unit, superseded=True)


def test_late_windows_of_a_partition_that_a_reset_dropped_are_lost_to_a_faster_run() -> None:
    bench = Bench(partitions=2)
    bench.produce(1, partition=1)
    bench.extract()
    bench.produce(1, partition=1)
    [unit] = planned(bench).units
    late = extract_unit(unit, bench.worker(bench.kafka))
    assert late.windows != ()
    recreate_and_reset(bench, 1)
    commit, published, lost = rebase(bench.commit(), [late], 0)
    assert (commit.partitions, published, lost) == (
        bench.commit().partitions,
        [],
        {SECOND: ANOTHER_WAS_FASTER},
    )
