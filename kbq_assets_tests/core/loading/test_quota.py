"""A table's load jobs stay within the warehouse's daily quota, and the quota lasts for the whole day."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.loading.quota import JobCounts, next_change_ms, next_job_ms, share_of

HOUR = 3_600_000
DAY = 24 * HOUR
NOON = 472_212 * HOUR


def _counted(jobs: int, at_ms: int = NOON) -> JobCounts:
    counts = JobCounts()
    for _ in range(jobs):
        counts = counts.add(at_ms)
    return counts


@pytest.mark.parametrize("used", [0, 749])
def test_half_of_the_quota_is_free(used: int) -> None:
    assert next_job_ms(_counted(used), 1500, NOON) == NOON


def test_then_jobs_are_spaced_so_that_the_rest_lasts_until_the_first_half_is_a_day_old() -> None:
    # An hour's jobs count until the last of them is a day old: 25 hours for 600 jobs.
    assert next_job_ms(_counted(750), 1500, NOON) == NOON + 25 * HOUR // 600


def test_a_spaced_job_starts_when_its_time_has_come() -> None:
    later = NOON + HOUR
    assert next_job_ms(_counted(750), 1500, later) <= later


def test_a_tenth_is_kept_for_retries() -> None:
    jobs = _counted(1350)
    assert next_job_ms(jobs, 1500, NOON) == NOON + 25 * HOUR
    assert next_job_ms(jobs, 1500, NOON, retry=True) == NOON


def test_the_whole_quota_holds_retries_too_until_jobs_are_a_day_old() -> None:
    assert next_job_ms(_counted(1500), 1500, NOON, retry=True) == NOON + 25 * HOUR


def test_jobs_count_for_a_day_and_are_then_forgotten() -> None:
    counts = _counted(3).add(NOON + 26 * HOUR)
    assert (counts.used(NOON + 26 * HOUR), dict(counts.hours)) == (1, {472_212 + 26: 1})


def test_a_warehouse_without_a_quota_never_waits() -> None:
    assert next_job_ms(_counted(5000), 0, NOON) == NOON


@given(st.integers(1, 60), st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=400), st.booleans())
def test_no_day_has_more_jobs_than_the_quota(per_day: int, pauses: list[int], retry: bool) -> None:
    counts, now, started = JobCounts(), NOON, list[int]()
    for pause in pauses:
        now = max(now + pause, next_job_ms(counts, per_day, now + pause, retry=retry))
        counts = counts.add(now)
        started.append(now)
    busiest = max(sum(begin <= at < begin + DAY for at in started) for begin in started)
    assert busiest <= per_day
    assert len(counts.hours) <= 26


# Partitions and the project -------------------------------------------------------------------------------------


def test_changes_of_partitions_are_spaced_as_jobs_are() -> None:
    assert next_change_ms(JobCounts().add(NOON, 14_000), 1_000, 30_000, NOON) == NOON
    counts = JobCounts().add(NOON, 16_000)
    spaced = next_change_ms(counts, 4_000, 30_000, NOON)
    assert NOON < spaced < NOON + 25 * HOUR
    assert next_change_ms(counts, 4_000, 30_000, spaced) <= spaced
    assert next_change_ms(counts, 4_000, 30_000, NOON, retry=True) == NOON


def test_a_job_that_would_exceed_the_days_changes_waits_until_it_fits() -> None:
    counts = JobCounts().add(NOON, 10_000).add(NOON + HOUR, 16_000)
    assert next_change_ms(counts, 4_000, 30_000, NOON + HOUR) == NOON + 25 * HOUR


@given(st.lists(st.tuples(st.integers(1, 4_000), st.integers(0, 3 * HOUR)), min_size=1, max_size=60))
def test_no_day_changes_more_partitions_than_the_quota(jobs: list[tuple[int, int]]) -> None:
    counts, now, changed = JobCounts(), NOON, list[tuple[int, int]]()
    for wanted, pause in jobs:
        now = max(now + pause, next_change_ms(counts, wanted, 30_000, now + pause))
        counts = counts.add(now, wanted)
        changed.append((now, wanted))
        assert sum(n for at, n in changed if at > now - DAY) <= 27_000


def test_days_are_kept_as_ranges() -> None:
    counts = JobCounts().add(NOON, 3, (5, 7, 6)).add(NOON, 2, (9, 8)).add(NOON, 2, (20, 6))
    assert (dict(counts.days), counts.partitions) == ({5: 10, 20: 21}, 6)


@given(st.lists(st.frozensets(st.integers(-50, 50)), max_size=8))
def test_ranges_know_each_day_once(given_days: list[frozenset[int]]) -> None:
    counts = JobCounts()
    for days in given_days:
        counts = counts.add(NOON, len(days), days)
    assert counts.partitions == len(frozenset().union(*given_days))


@pytest.mark.parametrize(("tables", "share"), [(0, 1500), (66, 1500), (400, 250)])
def test_tables_share_the_projects_jobs(tables: int, share: int) -> None:
    assert share_of(1500, 100_000, tables) == share
