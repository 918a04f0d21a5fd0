"""How far a partition was read in time: marks only rise, and the log's end counts only after the patience."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import END_MARK_MS, LogEnd, Watermark, due_shards, mark_ends
from kbq_assets_tests.strategies import staged_file

HOUR = 3_600_000
TIMES = st.integers(0, 10 * HOUR)


def window(*newest: int, kafka_ms: int = 0) -> Window:
    """A window with a file for each highest business time."""
    files = tuple(
        dataclasses.replace(staged_file(n, n + 1), events=BusinessTimes(newest_ms=each))
        for n, each in enumerate(newest)
    )
    return Window(0, len(newest), Counts(), files, newest_ms=kafka_ms)


@pytest.mark.parametrize(
    ("before", "windowed", "asked_ms", "after"),
    [
        pytest.param(Watermark(), window(5_000), 9_000, Watermark(5_000, 9_000), id="first rows"),
        pytest.param(Watermark(5, 9, 4), window(7), 11, Watermark(7, 11, 4), id="newer rows"),
        pytest.param(Watermark(5, 9, 4), window(3), 11, Watermark(5, 11, 4), id="older rows"),
        pytest.param(Watermark(5, 9), window(7), 8, Watermark(7, 9), id="an earlier run"),
        pytest.param(Watermark(), window(3, 8, 5), 9, Watermark(8, 9), id="the newest file"),
        pytest.param(Watermark(), window(20, kafka_ms=6), 30, Watermark(6, 30), id="a fast producer"),
        pytest.param(Watermark(), window(20, kafka_ms=40), 30, Watermark(20, 30), id="a slow producer"),
        pytest.param(Watermark(), window(20, kafka_ms=40), 15, Watermark(15, 15), id="two fast clocks"),
        pytest.param(Watermark(), window(20), 0, Watermark(20, 0), id="unknown moment"),
        pytest.param(Watermark(), window(0), 9, Watermark(0, 9), id="first rows without a time"),
        pytest.param(Watermark(5, 9), window(0), 11, Watermark(5, 9), id="more rows without a time"),
        pytest.param(Watermark(5, 9), window(-1), 11, Watermark(5, 9), id="rows before 1970"),
        pytest.param(Watermark(), window(), 9, Watermark(), id="no rows"),
    ],
)
def test_a_window_moves_the_mark(
    before: Watermark, windowed: Window, asked_ms: int, after: Watermark
) -> None:
    assert before.with_window(windowed, asked_ms) == after


@pytest.mark.parametrize(
    ("mark", "patience_ms", "not_after_ms", "passed_ms"),
    [
        pytest.param(Watermark(), 0, 99, 0, id="unknown"),
        pytest.param(Watermark(50, 90, 95), 10, 99, 50, id="too early to judge by the end"),
        pytest.param(Watermark(50, 90, 100), 10, 100, 100, id="patience is over"),
        pytest.param(Watermark(50, 90, 99), 10, 100, 50, id="a moment before"),
        pytest.param(Watermark(50, 90, 200), 10, 99, 50, id="a clock that is ahead"),
        pytest.param(Watermark(50, 90, 200), 10, 120, 120, id="a clock that is ahead, later"),
        pytest.param(Watermark(150, 90, 100), 10, 100, 150, id="rows from the future"),
        pytest.param(Watermark(0, 0, 100), 10, 100, 100, id="never any rows"),
        pytest.param(Watermark(50, 0, 0), 10, 0, 50, id="never read to its end"),
    ],
)
def test_the_log_end_decides_once_no_rows_came_for_long_enough(
    mark: Watermark, patience_ms: int, not_after_ms: int, passed_ms: int
) -> None:
    assert mark.passed_ms(patience_ms, not_after_ms) == passed_ms


@pytest.mark.parametrize(
    ("mark", "expected_ms"),
    [
        pytest.param(Watermark(), 0, id="unknown"),
        pytest.param(Watermark(HOUR, HOUR, 0), HOUR + 900_000, id="at the hour, which needs patience yet"),
        pytest.param(Watermark(HOUR + 900_000, 7, 0), 7 + HOUR, id="has just passed an hour"),
        pytest.param(Watermark(HOUR + 600_000, 7, 0), 7 + 300_000, id="will pass it in five minutes"),
        pytest.param(Watermark(5, 7, 2 * HOUR), 2 * HOUR + 900_000, id="judged by its end"),
        pytest.param(
            Watermark(5, HOUR, HOUR + 900_000), 2 * HOUR + 900_000, id="judged by its end from now on"
        ),
    ],
)
def test_the_next_hour_is_expected_as_fast_as_the_clock_goes(mark: Watermark, expected_ms: int) -> None:
    assert mark.next_hour_ms(900_000) == expected_ms


T0, T1, T64 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 64)


def commit(**states: PartitionCommit) -> Commit:
    return Commit("t", 0, "c", "id", 1, {int(name[1:]): state for name, state in states.items()})


def test_partitions_that_are_read_to_their_end_are_marked() -> None:
    before = commit(p0=PartitionCommit(next=5), p1=PartitionCommit(next=7))
    after = mark_ends(before, {T0: LogEnd(5, 5), T1: LogEnd(7, 8)}, 100)
    assert [state.watermark.end_ms for state in after.partitions.values()] == [100, 0]
    assert after.partitions[0].next == 5


@pytest.mark.parametrize(
    ("state", "ends", "asked_ms"),
    [
        pytest.param(PartitionCommit(next=5), {}, 100, id="the broker did not answer"),
        pytest.param(PartitionCommit(next=5), {T0: LogEnd(4, 4)}, 100, id="read further meanwhile"),
        pytest.param(PartitionCommit(next=5, stop=Stop("failed", "", 5, 6)), {T0: LogEnd(5, 5)}, 100, id="stopped"),
        pytest.param(PartitionCommit(next=5, watermark=Watermark(end_ms=100)), {T0: LogEnd(5, 5)}, 100, id="marked"),
        pytest.param(PartitionCommit(next=5, watermark=Watermark(end_ms=101)), {T0: LogEnd(5, 5)}, 100, id="later"),
        pytest.param(PartitionCommit(next=5), {T0: LogEnd(5, 5)}, 0, id="unknown moment"),
    ],
)  # fmt: skip
def test_other_partitions_keep_their_mark(
    state: PartitionCommit, ends: dict[TopicPartition, LogEnd], asked_ms: int
) -> None:
    before = commit(p0=state)
    assert mark_ends(before, ends, asked_ms) == before


@pytest.mark.parametrize(
    ("ends", "due"),
    [
        ({}, []),
        ({T0: LogEnd(5, 5)}, [("t", 0)]),
        ({T0: LogEnd(5, 6)}, []),
        ({T0: LogEnd(5, 5, marked_ms=HOUR - END_MARK_MS)}, [("t", 0)]),
        ({T0: LogEnd(5, 5, marked_ms=HOUR - END_MARK_MS + 1)}, []),
        ({T0: LogEnd(5, 5), T1: LogEnd(1, 1)}, [("t", 0)]),
        ({T64: LogEnd(5, 5), T0: LogEnd(5, 5), TopicPartition("s", 70): LogEnd(0, 0)}, [("s", 1), ("t", 0), ("t", 1)]),
    ],
)  # fmt: skip
def test_a_commit_is_due_for_its_marks_once_and_in_order(
    ends: dict[TopicPartition, LogEnd], due: list[tuple[str, int]]
) -> None:
    assert list(due_shards(ends, HOUR)) == due


@settings(max_examples=30)
@given(TIMES, TIMES, TIMES, TIMES, st.lists(st.integers(-1, 10 * HOUR), max_size=2), TIMES)
def test_no_window_moves_a_mark_back(
    event: int, rows: int, end: int, kafka: int, newest: list[int], asked: int
) -> None:
    before = Watermark(event, rows, end)
    after = before.with_window(window(*newest, kafka_ms=kafka), asked)
    assert after.event_ms >= before.event_ms
    assert after.rows_ms >= before.rows_ms
    assert after.end_ms == before.end_ms


@settings(max_examples=30)
@given(TIMES, TIMES, TIMES, TIMES, TIMES)
def test_less_patience_passes_no_less(event: int, rows: int, end: int, patience: int, written: int) -> None:
    mark = Watermark(event, rows, end)
    assert mark.passed_ms(patience, written) >= mark.passed_ms(patience + 1, written) >= event


@settings(max_examples=30)
@given(TIMES.filter(bool), TIMES, st.integers(0, HOUR))
def test_the_next_hour_comes_within_an_hour(event: int, rows: int, patience: int) -> None:
    mark = Watermark(event, rows, rows)
    due = mark.next_hour_ms(patience)
    assert rows < due <= rows + HOUR
    # At that moment, with business time as fast as the clock, an hour and its patience are over.
    passed = mark.passed_ms(patience, rows) + due - rows
    assert (passed - patience) % HOUR == 0
