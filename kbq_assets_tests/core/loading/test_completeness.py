"""An hour is complete once every partition has passed it and all of it is loaded. It then stays complete."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.loading import completeness
from kbq_assets.core.loading.completeness import HOUR_MS, KEPT_HOURS, HourRow, SourcePartition, TableHours
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Stop
from kbq_assets.core.protocol.names import TableReference, sanitise_table
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import END_MARK_MS, LogEnd, Watermark, due_shards, mark_ends
from kbq_assets_tests.strategies import staged_file, window

TABLE = TableReference("d", "t")
SAFETY = 900_000
TP = TopicPartition("t", 0)


def _file(*, first: int = 0, newest_ms: int = 0, **hours: int) -> StagedFile:
    """A staged file with rows in hours: ``h5=3`` are three rows of hour 5; ``none`` rows are of no listed hour."""
    listed = {int(name[1:]): rows for name, rows in hours.items() if name != "none"}
    rows = sum(hours.values())
    file = staged_file(first, first + rows)
    return dataclasses.replace(file, events=BusinessTimes(listed, newest_ms))


def _partition(until: int, partition: int = 0, problem: str = "") -> SourcePartition:
    """A partition that has passed an hour by a minute."""
    passed = until * HOUR_MS + SAFETY + 60_000
    return SourcePartition(TopicPartition("t", partition), Watermark(passed), SAFETY, passed, problem)


# How far a partition is ----------------------------------------------------------------------------------------------


def test_the_highest_business_time_of_a_window_is_passed() -> None:
    mark = Watermark().with_window(
        window(0, 3, _file(newest_ms=700, h0=2), _file(first=2, newest_ms=500, h0=1)), 900
    )
    assert mark == Watermark(event_ms=700, rows_ms=900)
    assert mark.with_window(window(3, 4, _file(first=3, newest_ms=600, h0=1)), 950).event_ms == 700


@pytest.mark.parametrize(
    ("kafka_ms", "asked_ms", "highest"), [(800, 900, 800), (0, 900, 900), (950, 900, 900), (0, 0, 9999)]
)
def test_a_producer_whose_clock_is_ahead_completes_nothing(
    kafka_ms: int, asked_ms: int, highest: int
) -> None:
    found = dataclasses.replace(window(0, 1, _file(newest_ms=9999, h0=1)), newest_ms=kafka_ms)
    assert Watermark().with_window(found, asked_ms).event_ms == highest


def test_a_window_without_a_record_that_has_its_time_moves_nothing_but_the_first_patience() -> None:
    found = dataclasses.replace(window(0, 1, _file(newest_ms=0, h9=1)), newest_ms=9999)
    assert Watermark(700, 900, 950).with_window(found, 960) == Watermark(700, 900, 950)
    assert Watermark(0, 0, 950).with_window(found, 960) == Watermark(0, 960, 950)


def test_a_window_without_rows_says_nothing() -> None:
    assert Watermark(5, 6, 7).with_window(window(0, 4, gaps=4), 900) == Watermark(5, 6, 7)


@pytest.mark.parametrize(
    ("mark", "passed"),
    [
        (Watermark(), 0),  # of an older version, or never read
        (Watermark(event_ms=5_000), 5_000),
        (Watermark(event_ms=5_000, rows_ms=50_000, end_ms=50_000), 5_000),  # it has rows: business time counts
        (Watermark(event_ms=5_000, rows_ms=50_000, end_ms=59_999), 5_000),  # not long enough without rows
        (Watermark(event_ms=5_000, rows_ms=50_000, end_ms=60_000), 60_000),  # idle: its log end counts
        (Watermark(end_ms=60_000), 60_000),  # empty
        (Watermark(event_ms=99_000, rows_ms=50_000, end_ms=60_000), 99_000),
        (Watermark(end_ms=10**9), 90_000),  # the caller's clock is ahead of the store's
    ],
)  # fmt: skip
def test_a_partition_without_new_rows_is_judged_by_its_log_end(mark: Watermark, passed: int) -> None:
    assert mark.passed_ms(patience_ms=10_000, not_after_ms=90_000) == passed


@pytest.mark.parametrize(
    ("mark", "ends"),
    [
        (Watermark(), 0),
        (Watermark(rows_ms=5), 0),  # it has brought nothing with a business time
        (Watermark(event_ms=100, rows_ms=500), 500 + SAFETY - 100),  # its records are 400 ms late
        (Watermark(event_ms=SAFETY, rows_ms=SAFETY), SAFETY + HOUR_MS),  # it has just passed an hour
        (Watermark(event_ms=SAFETY - 1, rows_ms=SAFETY), SAFETY + 1),
        (
            Watermark(event_ms=100, rows_ms=500, end_ms=SAFETY),
            500 + SAFETY - 100,
        ),  # not idle yet: its rows count
        (Watermark(event_ms=100, rows_ms=500, end_ms=SAFETY + 500), SAFETY + HOUR_MS),  # its log end has
    ],
)
def test_an_hour_s_end_is_expected_as_if_business_time_went_on(mark: Watermark, ends: int) -> None:
    assert mark.next_hour_ms(SAFETY) == ends


def test_only_partitions_that_are_at_the_end_the_broker_reported_are_marked() -> None:
    stop = Stop("bad_record", "", 7, 9)
    states = {
        0: PartitionCommit(7), 1: PartitionCommit(7), 2: PartitionCommit(7, stop=stop), 3: PartitionCommit(7),
        4: PartitionCommit(7, watermark=Watermark(end_ms=99)),
    }  # fmt: skip
    ends = {TopicPartition("t", p): LogEnd(0, end) for p, end in {0: 7, 1: 8, 2: 7, 4: 7}.items()}
    marked = mark_ends(Commit("t", 0, "c", "", 1, states), ends, 50)
    assert {p: s.watermark.end_ms for p, s in marked.partitions.items()} == {0: 50, 1: 0, 2: 0, 3: 0, 4: 99}


def test_idle_partitions_are_marked_now_and_then() -> None:
    ends = {
        TopicPartition("a", 0): LogEnd(5, 5, 1000),
        TopicPartition("a", 64): LogEnd(5, 6, 0),  # has records: it is marked when they are published
        TopicPartition("b", 70): LogEnd(0, 0),
    }
    assert list(due_shards(ends, 1000 + END_MARK_MS)) == [("a", 0), ("b", 1)]
    assert list(due_shards(ends, 999 + END_MARK_MS)) == [("b", 1)]


def test_a_reset_forgets_how_far_a_partition_was() -> None:
    commit = Commit("t", 0, "c", "", 1, {p: PartitionCommit(7, watermark=Watermark(1, 2, 3)) for p in (0, 1)})
    after = commits.reset(commit, {0: 0}, cluster_id="c", topic_id="")
    assert [after.partitions[p].watermark for p in (0, 1)] == [Watermark(), Watermark(1, 2, 3)]


# How far a table is --------------------------------------------------------------------------------------------------


def test_the_slowest_partition_holds_a_table_back() -> None:
    slow = completeness.slowest_of([_partition(8, 1), _partition(5, 2), _partition(6, 3)])
    assert slow is not None
    verdict = completeness.judge(TABLE, TableHours(until=3), [_partition(9), slow], [])
    assert (verdict.until, verdict.held_by) == (5, "t[2]")
    assert verdict.why == "t[2] has passed 1970-01-01 05:16"


def test_a_partition_a_second_short_of_the_threshold_holds_the_hour() -> None:
    partition = SourcePartition(TP, Watermark(5 * HOUR_MS + SAFETY - 1000), SAFETY)
    assert partition.until == 4


def test_of_equally_slow_partitions_the_one_with_a_problem_is_named() -> None:
    verdict = completeness.judge(
        TABLE, TableHours(), [_partition(5, 1), _partition(5, 2, "it is stopped: bad_record")], []
    )
    assert verdict.why.startswith("t[2] has passed 1970-01-01 05:16: it is stopped: bad_record")


def test_a_partition_that_was_never_read_holds_everything() -> None:
    verdict = completeness.judge(
        TABLE, TableHours(), [_partition(5), SourcePartition(TopicPartition("t", 1))], []
    )
    assert (verdict.until, verdict.why) == (0, "t[1] is not read to its end yet")


@pytest.mark.parametrize(
    ("file", "until"),
    [
        (_file(h5=1, h7=2), 5),
        (_file(h9=2), 8),  # of an hour that is not due
        (_file(h1=2), 8),  # only of complete hours: late in any case
        (_file(h1=1, h6=1), 6),
        (_file(none=2), 3),  # from an older version: it may hold anything
        (dataclasses.replace(_file(h7=1, none=1), dates=(0,)), 3),
        (dataclasses.replace(_file(h30=1, none=1), dates=(1,)), 8),  # nothing before its first date
        (dataclasses.replace(_file(h1=1, none=1), dates=()), 3),  # of more dates than it lists
    ],
)  # fmt: skip
def test_files_that_are_not_loaded_hold_their_hours(file: StagedFile, until: int) -> None:
    verdict = completeness.judge(TABLE, TableHours(until=3), [_partition(8)], [file])
    assert (verdict.until, verdict.held_by) == (until, "t[0]" if until == 8 else "staged files")


@pytest.mark.parametrize(
    ("refused", "waiting", "until", "held_by"),
    [
        ([_file(h3=7)], [], 3, "quarantined files"),
        ([_file(h6=7)], [_file(first=9, h4=1)], 4, "staged files"),
        ([_file(h4=7)], [_file(first=9, h6=1)], 4, "quarantined files"),
        ([_file(h2=7)], [], 8, "t[0]"),  # only of complete hours
        ([_file(h8=7)], [], 8, "t[0]"),
    ],
)
def test_files_that_no_job_accepts_hold_their_hours(
    refused: list[StagedFile], waiting: list[StagedFile], until: int, held_by: str
) -> None:
    verdict = completeness.judge(TABLE, TableHours(until=3), [_partition(8)], waiting, refused=refused)
    assert (verdict.until, verdict.held_by) == (until, held_by)
    assert ("kbq resume --table d.t" in verdict.why) == (held_by == "quarantined files")


@pytest.mark.parametrize("partitions", [[], [_partition(9)]])
def test_a_parked_table_and_one_that_nothing_feeds_stay_where_they_are(
    partitions: list[SourcePartition],
) -> None:
    verdict = completeness.judge(
        TABLE, TableHours(until=3), partitions, [], "parked: load_failed" if partitions else ""
    )
    assert verdict.until == 3
    assert verdict.why == ("parked: load_failed" if partitions else "no extracted topic has records for it")


def test_what_is_complete_stays_complete() -> None:
    hours = completeness.advance(TableHours(until=8), 9, 100)
    assert completeness.judge(TABLE, hours, [_partition(2)], [_file(h1=1)]).until == 9
    assert completeness.advance(hours, 4, 200) == hours == completeness.advance(hours, 9, 200)


# What is counted -----------------------------------------------------------------------------------------------------


def test_rows_of_a_complete_hour_are_late_when_they_are_loaded() -> None:
    hours = completeness.with_rows(TableHours(until=6), [_file(h5=2, h6=3), _file(h5=1, none=4)])
    assert (hours.rows, hours.late, hours.older_rows, hours.late_rows) == ({5: 3, 6: 3}, {5: 3}, 4, 3)


def test_rows_that_an_erasure_left_out_of_a_file_make_no_count_negative() -> None:
    erased = dataclasses.replace(_file(h5=3, h6=1), rows=2)
    found = completeness.with_rows(TableHours(), [erased, _file(none=2)])
    assert (found.rows, found.older_rows) == ({5: 3, 6: 1}, 2)


def test_hours_beyond_the_bound_are_added_up() -> None:
    hours = TableHours(until=KEPT_HOURS + 2)
    for hour in range(KEPT_HOURS + 2):
        hours = completeness.with_rows(hours, [_file(**{f"h{hour}": 1})])
    assert (len(hours.rows), min(hours.rows), hours.older_rows, hours.older_late) == (KEPT_HOURS, 2, 2, 2)
    assert (hours.late_rows, hours.late) == (KEPT_HOURS + 2, hours.rows)


def test_hours_without_rows_are_listed_once_they_are_complete() -> None:
    hours = completeness.with_rows(completeness.advance(TableHours(), 5, 100), [_file(h3=1, h8=2)])
    hours = completeness.advance(hours, 7, 200)
    assert list(completeness.hour_rows(TABLE, hours)) == [
        HourRow("t", 3, True, 100, 1, 1),
        HourRow("t", 5, True, 200, 0, 0),
        HourRow("t", 6, True, 200, 0, 0),
        HourRow("t", 8, False, None, 2, 0),
    ]
    assert [hours.completed_ms(hour) for hour in (4, 6, 7)] == [100, 200, None]


_BATCHES = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 5), st.integers(0, 900)), max_size=30)


@given(_BATCHES)
def test_whatever_comes_every_row_is_counted_once_and_the_late_ones_as_late(
    batches: list[tuple[int, int, int]],
) -> None:
    hours, rows, late = TableHours(), 0, 0
    for hour, count, until in batches:
        late += count if hour < hours.until else 0
        rows += count
        hours = completeness.with_rows(hours, [_file(**{f"h{hour}": count})])
        after = completeness.advance(hours, until, until)
        assert after.until == max(hours.until, until)
        hours = after
        assert codec.decode(TableHours, codec.encode(hours)) == hours
    assert sum(hours.rows.values()) + hours.older_rows == rows
    assert hours.late_rows == late
    assert len(hours.rows) <= 3 * KEPT_HOURS
    assert len(hours.completed) <= KEPT_HOURS
    listed = list(completeness.hour_rows(TABLE, hours))
    assert [row.hour for row in listed] == sorted({row.hour for row in listed})
    assert all(row.complete == (row.hour < hours.until) for row in listed)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5), st.one_of(st.just(0), st.integers(0, 50)))),
    st.integers(1, 3),
)
def test_what_is_listed_of_an_hour_is_all_of_it_whatever_does_not_fit(
    batches: list[tuple[int, int, int]], kept: int
) -> None:
    hours, rows, late = TableHours(), Counter[int](), Counter[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completeness, "KEPT_HOURS", kept)
        for hour, count, until in batches:
            rows[hour] += count
            late[hour] += count if hour < hours.until else 0
            hours = completeness.with_rows(hours, [_file(**{f"h{hour}": count})])
            hours = completeness.advance(hours, until, until)
            listed = list(completeness.hour_rows(TABLE, hours))
            assert [(r.rows, r.late) for r in listed] == [(rows[r.hour], late[r.hour]) for r in listed]
            assert len(hours.rows) <= 3 * kept
            assert (sum(hours.rows.values()) + hours.older_rows, hours.late_rows) == (
                rows.total(),
                late.total(),
            )


def _loaded(until: int, hours: range, known: TableHours | None = None) -> TableHours:
    """Load the given number of hours with a row each, one by one, into a table that is complete until then."""
    found = completeness.advance(known or TableHours(), until, 1)
    for hour in hours:
        found = completeness.with_rows(found, [_file(**{f"h{hour}": 1})])
    return found


def _listed(hours: TableHours, until: int) -> list[tuple[int, int]]:
    """Complete hours and their rows, once it is so late."""
    rows = completeness.hour_rows(TABLE, completeness.advance(hours, until, 2))
    return [(row.hour, row.rows) for row in rows if row.complete]


def test_hours_of_a_far_future_push_none_of_today_out() -> None:
    hours = _loaded(1000, range(50_000, 50_000 + 3 * KEPT_HOURS))
    hours = completeness.with_rows(hours, [_file(h1001=500, h1002=700)])
    assert _listed(hours, 1004) == [(1000, 0), (1001, 500), (1002, 700), (1003, 0)]
    assert completeness.with_rows(hours, [_file(h60000=2)]).older_rows == hours.older_rows + 1


def test_an_hour_that_fell_out_is_not_listed_when_its_time_comes() -> None:
    hours = _loaded(1000, range(1100, 1100 + 2 * KEPT_HOURS + 7))
    assert hours.unlisted == {1100 + KEPT_HOURS: 1107 + KEPT_HOURS}
    late = 1105 + KEPT_HOURS
    hours = completeness.with_rows(hours, [_file(**{f"h{late}": 9})])
    assert (late in hours.rows, hours.older_rows) == (False, 16)
    listed = dict(_listed(hours, 1110 + KEPT_HOURS))
    assert set(range(1110, 1110 + KEPT_HOURS)) - set(listed) == set(
        range(1100 + KEPT_HOURS, 1107 + KEPT_HOURS)
    )
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("until", [0, 1000])
def test_a_table_that_stood_for_long_or_was_never_complete_lists_the_latest_hours(until: int) -> None:
    end = 1000 + 4 * KEPT_HOURS
    hours = _loaded(until, range(1000, end))
    assert _listed(hours, end)[-KEPT_HOURS:] == [(hour, 1) for hour in range(end - KEPT_HOURS, end)]
    assert len(hours.unlisted) == 1


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(0, 40),
)
def test_no_hour_is_complete_that_a_partition_or_a_file_may_still_bring_rows_of(
    passed: list[int], waiting: list[int], before: int
) -> None:
    partitions = [_partition(until, number) for number, until in enumerate(passed)]
    files = [_file(**{f"h{hour}": 1}) for hour in waiting]
    until = completeness.judge(TABLE, TableHours(until=before), partitions, files).until
    assert until == max(before, min([*passed, *(hour for hour in waiting if hour >= before)]))


def test_no_topics_table_has_the_name_of_the_table_of_hours() -> None:
    assert sanitise_table("_kbq_completeness") == "_kbq_completeness_"
    assert sanitise_table("-kbq.Completeness") == "_kbq_Completeness_"
