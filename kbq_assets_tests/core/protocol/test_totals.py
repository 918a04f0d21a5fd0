"""Histograms merge, totals never count a run twice, and metric families are valid for Prometheus."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.run_totals import RunEnd, RunTotals, TopicCost, WorkerUse, skew
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window, reset
from kbq_assets.core.protocol.counts import Counts, total
from kbq_assets.core.protocol.totals import (
    BATCH_ROWS,
    LATENCY_SECONDS,
    READY_SECONDS,
    Histogram,
    WindowTotals,
)
from kbq_assets.extras.metrics.families import OTHER, bounded, histogram

ROWS = st.lists(st.integers(0, 10_000_000), max_size=30)
NOW_MS = 1_700_000_000_000


def observed(values: list[int]) -> Histogram:
    return Histogram().observe(BATCH_ROWS, values)


def staged(path: str, rows: int = 1, raw_bytes: int = 10, oldest_ms: int = NOW_MS) -> StagedFile:
    return StagedFile(path, 0, 1, rows, 5, raw_bytes, "", "f", oldest_ms=oldest_ms)


@given(ROWS, ROWS)
def test_histograms_of_parts_add_up_to_that_of_the_whole(some: list[int], others: list[int]) -> None:
    assert observed(some) + observed(others) == observed(some + others)


@given(ROWS)
def test_a_bucket_holds_what_is_at_most_its_bound(values: list[int]) -> None:
    family = histogram("h", "", BATCH_ROWS, [({}, observed(values))])
    buckets = {s.labels["le"]: s.value for s in family.samples if s.suffix == "_bucket"}
    expected = {str(bound): sum(value <= bound for value in values) for bound in BATCH_ROWS}
    assert buckets == {**expected, "+Inf": len(values)}
    assert [s.value for s in family.samples if s.suffix in ("_sum", "_count")] == [sum(values), len(values)]


@pytest.mark.parametrize("bounds", [BATCH_ROWS, LATENCY_SECONDS, READY_SECONDS])
def test_bounds_rise(bounds: tuple[int, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bisect_left(bounds, bounds[-1]) == len(bounds) - 1


def test_a_window_counts_its_files_bytes_rows_and_ages() -> None:
    files = (
        staged("staging/1-a/t.0.d.A.1.0.avro", 3, 30, NOW_MS - 40_000),
        staged("staging/1-a/t.0.e.B.1.0.avro", 2, 7, NOW_MS - 15_000),
    )
    totals = WindowTotals().published([(Window(0, 5, Counts(), files), 2.5)], NOW_MS)
    assert (totals.files, totals.bytes, totals.last_ms) == (2, {"d": 30, "e": 7}, NOW_MS)
    assert (totals.rows.sum, totals.latency.sum, totals.staged.sum) == (5.0, 2.5, 40.0)


def test_ages_are_of_records_with_a_timestamp_and_never_below_zero() -> None:
    unknown = Window(0, 1, Counts(), (staged("staging/1-a/t.0.d.A.1.0.avro", oldest_ms=-1),))
    ahead = Window(0, 1, Counts(), (staged("staging/1-a/t.0.d.A.1.0.avro", oldest_ms=NOW_MS + 9),))
    totals = WindowTotals().published([(unknown, 0.0)], NOW_MS)
    assert (totals.rows.count, totals.staged.count) == (1, 0)
    assert totals.published([(ahead, 0.0)], NOW_MS).staged == Histogram((1,), 0.0)


def test_windows_count_together_as_one_by_one() -> None:
    files = [(staged(f"staging/1-a/t.{n}.d.A.1.0.avro", n, 7, NOW_MS - n * 333),) for n in range(9)]
    windows = [(Window(0, 5, Counts(), each), 0.1 * n) for n, each in enumerate([*files, ()])]
    apart = WindowTotals()
    for window in windows:
        apart = apart.published([window], NOW_MS)
    assert WindowTotals().published(windows, NOW_MS) == apart
    assert apart.published([], NOW_MS + 1) == apart


def test_the_total_of_counts_is_their_sum() -> None:
    parts = [Counts(n, n, rows={f"d.{n % 3}": n}, extra={"new": n, "text": str(n)}) for n in range(9)]
    assert total(parts) == sum(parts, Counts())
    assert total(parts).extra == sum(parts, Counts()).extra
    assert total([]) == Counts()


def test_a_window_without_files_is_no_batch() -> None:
    totals = WindowTotals().published([(Window(0, 5, Counts()), 1.0)], NOW_MS)
    assert totals == WindowTotals(last_ms=NOW_MS)


def test_what_was_counted_before_a_reset_stays_counted() -> None:
    parts = {p: PartitionCommit(next=5, totals=Counts(positions=5, records=5, skipped=5)) for p in (0, 1)}
    commit = Commit("t", 0, "c", "i", 1, parts)
    anew = reset(commit, {0: 0}, cluster_id="c", topic_id="i")
    again = reset(anew, {0: 0, 1: 0}, cluster_id="c", topic_id="i")
    assert [c.totals.records for c in (commit, anew, again)] == [10, 10, 10]


def test_state_of_an_earlier_version_is_read_as_it_was() -> None:
    old_commit = b'{"cluster_id":"c","epoch":1,"format":1,"shard":0,"topic":"t","topic_id":"i"}'
    old_table = b'{"format":1,"sequence":3,"uuid":"u"}'
    assert codec.loads(Commit, old_commit, "c") == Commit("t", 0, "c", "i", 1)
    assert codec.loads(TableState, old_table, "t") == TableState("u", 3)


def test_a_run_counts_once_however_often_it_is_recorded() -> None:
    run = RunEnd("r1", True, 2.0, NOW_MS, lost_files=1, orphans=2, done_files=3)
    once = RunTotals().plus(run)
    assert once.plus(run) == once
    assert (once.runs, once.lost_files, once.orphans, once.done_files) == (1, 1, 2, 3)


def test_the_last_success_outlives_later_failures() -> None:
    totals = RunTotals().plus(RunEnd("r1", True, 1.0, 1_000)).plus(RunEnd("r2", False, 1.0, 2_000))
    assert (totals.runs, totals.succeeded, totals.succeeded_ms, totals.ended_ms) == (2, 1, 1_000, 2_000)


def test_totals_remember_few_runs_and_every_topics_cost() -> None:
    totals = RunTotals()
    for number in range(50):
        cost = Usage(f"t{number % 2}", "team", "cc", records=30, seconds=2.0, core_seconds=1.5)
        totals = totals.plus(RunEnd(str(number), True, 1.0, number, costs=(cost,)))
    assert len(totals.recent) < 10
    assert totals.costs == {
        "t0": TopicCost("team", "cc", 37.5, 37.5, 750, 50.0),
        "t1": TopicCost("team", "cc", 37.5, 37.5, 750, 50.0),
    }
    assert (totals.costs["t0"].rate, TopicCost().rate) == (15.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "expected"), [([], 0.0), ([0.0], 0.0), ([2.0, 2.0], 1.0), ([3.0, 1.0], 1.5)]
)
def test_skew_compares_the_busiest_with_the_average(seconds: list[float], expected: float) -> None:
    assert skew([WorkerUse(1, s) for s in seconds]) == expected


def test_labels_are_bounded_and_nothing_is_left_out_of_the_sum() -> None:
    values = {f"t{n}": 1.0 for n in range(10)}
    assert bounded(values, most=4) == {"t0": 1.0, "t1": 1.0, "t2": 1.0, "t3": 1.0, OTHER: 6.0}
    assert bounded({"a": 1.0, "b": 5.0, "c": 7.0}, max, most=1) == {"a": 1.0, OTHER: 7.0}
    assert bounded(values) == values
