"""Rows per hour of a file: the same as counting one by one, in memory that no times can exceed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.protocol.commits import MOST_DATES, MOST_HOURS
from kbq_assets.wire.chunk import END_OF_TIME
from kbq_assets.wire.records.event_time import HOUR_MICROS
from kbq_assets.wire.records.rows_per_hour import HourCounter

DAY_MICROS = 24 * HOUR_MICROS
MILLIS = 1_700_000_000_000


def counted(*chunks: Sequence[int], newest: int | None = None) -> HourCounter:
    counter = HourCounter()
    for times in chunks:
        counter.add(np.array(times, np.int64), newest)
    return counter


def test_no_rows_have_no_hours() -> None:
    for counter in (HourCounter(), counted([])):
        assert (counter.hours, counter.days, counter.newest_ms) == ({}, frozenset(), 0)


@given(
    chunks=st.lists(
        st.lists(st.integers(-3 * HOUR_MICROS, 60 * HOUR_MICROS) | st.integers(-(2**50), 2**50), max_size=8),
        max_size=4,
    )
)
@settings(max_examples=60)
def test_hours_days_and_the_newest_time_are_those_of_all_rows(chunks: list[list[int]]) -> None:
    times = [time for chunk in chunks for time in chunk]
    counter = counted(*chunks)
    assert counter.hours == Counter(time // HOUR_MICROS for time in times)
    assert counter.days == {time // DAY_MICROS for time in times}
    assert counter.newest_ms == (max(times) // 1000 if times else 0)
    assert list(counter.hours) == sorted(counter.hours)


@pytest.mark.parametrize("span", [1, 4_095, 4_096, 10_000_000], ids=str)
def test_chunks_over_many_hours_are_counted_like_those_over_few(span: int) -> None:
    times = [0, span * HOUR_MICROS, HOUR_MICROS - 1, span * HOUR_MICROS + 1]
    assert counted(times).hours == {0: 2, span: 2}
    assert counted(*([time] for time in times)).hours == {0: 2, span: 2}


@pytest.mark.parametrize(
    ("times", "hours"),
    [
        ([-1], {-1: 1}),
        ([0], {0: 1}),
        ([HOUR_MICROS - 1], {0: 1}),
        ([HOUR_MICROS], {1: 1}),
        ([-HOUR_MICROS], {-1: 1}),
    ],
)
def test_an_hour_ends_before_the_next_begins(times: list[int], hours: dict[int, int]) -> None:
    assert counted(times).hours == hours


def test_a_time_that_does_not_count_as_new_is_counted_all_the_same() -> None:
    counter = counted([5 * HOUR_MICROS], newest=2 * HOUR_MICROS)
    assert (counter.hours, counter.newest_ms) == ({5: 1}, 2 * 3_600_000)


class TestManyHours:
    @pytest.mark.parametrize("days", [MOST_DATES, MOST_DATES + 1])
    def test_more_days_than_a_commit_lists_are_none(self, days: int) -> None:
        times = [day * DAY_MICROS for day in range(days)]
        expected = frozenset(range(days)) if days == MOST_DATES else frozenset()
        assert counted(times).days == expected
        assert counted(*([time] for time in times)).days == expected
        assert counted(times, [0]).days == expected, "days are not listed again"

    def test_the_hours_with_most_rows_stay(self) -> None:
        few = [hour * HOUR_MICROS for hour in range(1_000, 1_000 + 3 * MOST_HOURS)]
        many = [hour * HOUR_MICROS for hour in range(MOST_HOURS) for _ in range(2)]
        for chunks in ([few, many], [many, few], [many + few]):
            assert counted(*chunks).hours == dict.fromkeys(range(MOST_HOURS), 2)

    def test_of_hours_with_as_many_rows_the_latest_stay(self) -> None:
        found = counted([hour * HOUR_MICROS for hour in range(MOST_HOURS + 5)]).hours
        assert list(found) == list(range(5, MOST_HOURS + 5))

    def test_hours_over_centuries_take_little_memory_and_no_row_of_the_busiest_is_lost(self) -> None:
        counter, chance = HourCounter(), np.random.default_rng(1)
        for _ in range(20):
            counter.add(chance.integers(-(2**55), 2**55, 3_000))
            counter.add(np.zeros(500, np.int64))
        assert counter.hours[0] == 10_000
        assert len(counter.hours) == MOST_HOURS


class TestKafkaTimes:
    @staticmethod
    def kafka(*timestamps: int) -> HourCounter:
        counter = HourCounter()
        counter.add_kafka(np.array(timestamps, np.int64))
        return counter

    @pytest.mark.parametrize(
        "timestamps",
        [(), (0,), (MILLIS,), (MILLIS, MILLIS + 1), (MILLIS, 0, MILLIS + 3_600_000), (END_OF_TIME - 1,)],
    )
    def test_milliseconds_are_counted_like_microseconds(self, timestamps: tuple[int, ...]) -> None:
        found, expected = self.kafka(*timestamps), counted([each * 1000 for each in timestamps])
        assert (found.hours, found.days, found.newest_ms) == (
            expected.hours,
            expected.days,
            expected.newest_ms,
        )

    @pytest.mark.parametrize("timestamps", [(-1, -1), (END_OF_TIME,), (2**62,), (-1, END_OF_TIME)])
    def test_a_timestamp_that_is_none_counts_as_the_epoch(self, timestamps: tuple[int, ...]) -> None:
        found = self.kafka(*timestamps)
        assert found.hours == {0: len(timestamps)}
        assert found.newest_ms == 0

    def test_one_without_a_time_among_others_changes_only_its_own_hour(self) -> None:
        assert self.kafka(MILLIS, -1, MILLIS).hours == {0: 1, MILLIS // 3_600_000: 2}
