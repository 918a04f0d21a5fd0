"""A task that dies once is read again. One that dies in every run stops only its own partition (PROTOCOL E10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbq_assets.core.extraction.deaths import MOST_DEATHS
from kbq_assets.core.extraction.turns import SliceLimits, Turns
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, Bench

OTHER = TopicPartition(TOPIC, 1)


@pytest.fixture
def bench() -> Bench:
    """Two partitions that share a task."""
    bench = Bench(partitions=2)
    bench.produce(1, 1)
    bench.produce(1, partition=1)
    return bench


def extract(bench: Bench, kills: Callable[[Unit], bool] = lambda unit: False) -> ExtractionReport:
    return bench.extract(open_engine=lambda worker: InProcessEngine(worker, kills=kills))


def kills_first(unit: Unit) -> bool:
    return unit.range.topic_partition == TP


def test_a_task_that_died_is_read_again_and_its_ranges_share_no_task_until_then(bench: Bench) -> None:
    report = extract(bench, kills_first)
    assert (set(report.failures), report.stops) == ({TP, OTHER}, ())
    assert [state.deaths for state in bench.commit().partitions.values()] == [1, 1]
    report = extract(bench, kills_first)
    assert (set(report.failures), report.stops) == ({TP}, ())
    assert [state.deaths for state in bench.commit().partitions.values()] == [2, 0]
    assert not extract(bench).failures
    assert [(state.next, state.deaths) for state in bench.commit().partitions.values()] == [(2, 0), (1, 0)]


def test_a_range_whose_tasks_die_in_every_run_stops_and_passes_later_without_help(bench: Bench) -> None:
    for _ in range(MOST_DEATHS):
        assert extract(bench, kills_first).failures
    report = extract(bench, kills_first)
    [stop] = report.stops
    assert (report.failures, stop.topic_partition, stop.reason) == ({}, TP, "task_died")
    assert "memory" in stop.message and "window_records" in stop.message
    bench.store.time_ms += 60_000
    extract(bench, kills_first)
    written = bench.commit().partitions[0].stop
    assert written is not None and written.tries == 1
    bench.store.time_ms += 3_600_000
    assert not extract(bench).failures
    assert [(state.next, state.stop) for state in bench.commit().partitions.values()] == [
        (2, None),
        (1, None),
    ]


def test_a_unit_whose_task_died_shares_no_task() -> None:
    def unit(partition: int, *, alone: bool = False) -> Unit:
        return Unit(OffsetRange(TopicPartition(TOPIC, partition), 0, 5), 1, SETTINGS, alone=alone)

    turns = Turns([unit(0), unit(1, alone=True), unit(2)], SliceLimits())
    tasks = [turns.next_task(1) for _ in range(3)]
    assert [[u.range.topic_partition.partition for u in task] for task in tasks] == [[0], [1], [2]]
