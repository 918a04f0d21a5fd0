"""Small contiguous files of a backup are merged, and the commit changes only if no newer merge exists."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.backup.backup_names import FILE_HASH, MOST_SCHEMAS, BackupFileName
from kbq_assets.core.backup.merging import (
    LEAST_FILES,
    SMALL_BYTES,
    TARGET_BYTES,
    MergeRun,
    begun,
    ended,
    plan_merges,
    voided,
)
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

TP = TopicPartition("t", 0)
MIB = 1 << 20


def copy(first: int, until: int, size: int = MIB, *, epoch: int = 1, content: str = FILE_HASH) -> Window:
    """A window of a backup: one file of as many rows as positions."""
    path = BackupFileName(OffsetRange(TP, first, until), epoch, "a").format()
    rows = until - first
    file = StagedFile(path, first, until, rows, size, 2 * size, "", "", oldest_ms=first, content=content)
    counts = Counts(positions=rows, records=rows, rows={"backup": rows})
    return Window(first, until, counts, (file,), 4, until, newest_ms=until)


def copies(*sizes: int, first: int = 0) -> list[Window]:
    return [copy(first + 10 * n, first + 10 * n + 10, size) for n, size in enumerate(sizes)]


def commit_of(*windows: Window, partition: int = 0, merges: int = 0) -> Commit:
    state = PartitionCommit(windows[-1].until if windows else 0, windows=windows)
    return Commit("t", 0, "c", "id", 1, {partition: state}, merges=merges)


def runs(*windows: Window, apart: tuple[str, ...] = ()) -> list[list[int]]:
    """The first positions of the windows of each run."""
    return [[w.first for w in run.windows] for run in plan_merges(commit_of(*windows), apart)]


def firsts(start: int, count: int) -> list[int]:
    return list(range(start, start + 10 * count, 10))


TEN = [MIB] * 10


@pytest.mark.parametrize(
    ("windows", "found"),
    [
        ([], []),
        (copies(*TEN), [firsts(0, 10)]),
        (copies(*TEN[1:]), []),
        ([*copies(*TEN), *copies(*TEN, first=101)], [firsts(0, 10), firsts(101, 10)]),
        ([*copies(*TEN), copy(100, 110, epoch=2)], [firsts(0, 10)]),
        ([*copies(*TEN), copy(100, 110, SMALL_BYTES)], [firsts(0, 10)]),
        ([*copies(*TEN), copy(100, 110, content="of a former release")], [firsts(0, 10)]),
        (copies(*[SMALL_BYTES // 10] * 13), [firsts(0, 13)]),
        (copies(*[TARGET_BYTES // 10] * 20), [firsts(0, 10), firsts(100, 10)]),
        (copies(*[TARGET_BYTES // 10] * 10, TARGET_BYTES % 10), [firsts(0, 11)]),
        (copies(*[0] * 10), [firsts(0, 10)]),
    ],
    ids=[
        "nothing",
        "ten",
        "nine",
        "a gap of one position",
        "another epoch",
        "a large file",
        "a hash of former releases",
        "thirteen to the target",
        "two of the target's size",
        "exactly the target",
        "empty files",
    ],
)
def test_small_files_that_adjoin_are_merged_ten_at_least(
    windows: list[Window], found: list[list[int]]
) -> None:
    assert runs(*windows) == found


@pytest.mark.parametrize("place", [0, 5, 12])
@pytest.mark.parametrize("size", [SMALL_BYTES, TARGET_BYTES - 8 * MIB, 4 * TARGET_BYTES])
def test_a_large_file_divides_runs_and_takes_no_room_from_them(size: int, place: int) -> None:
    sizes = [MIB] * 24
    sizes.insert(place, size)
    before, after = firsts(0, place), firsts(10 * place + 10, 24 - place)
    assert runs(*copies(*sizes)) == [run for run in (before, after) if len(run) >= LEAST_FILES]


def test_a_file_that_stands_apart_begins_a_run() -> None:
    windows = copies(*[MIB] * 20)
    assert runs(*windows, apart=(windows[10].files[0].path,)) == [firsts(0, 10), firsts(100, 10)]
    assert runs(*windows, apart=(windows[0].files[0].path,)) == [firsts(0, 20)]


def test_a_window_of_two_files_is_not_merged() -> None:
    windows = copies(*[MIB] * 11)
    twice = dataclasses.replace(windows[5], files=windows[5].files * 2)
    assert runs(*windows[:5], twice, *windows[6:]) == []


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([10, *TEN], [firsts(0, 11)]),
        ([10 * MIB, *TEN], [firsts(0, 11)]),
        ([10 * MIB + 1, *TEN], [firsts(10, 10)]),
        ([*TEN, 21 * MIB, *TEN], [firsts(0, 10), firsts(110, 10)]),
        ([*TEN, 50 * MIB, *TEN[1:]], [firsts(0, 10)]),
    ],
    ids=["tiny", "as large as the others", "larger than the others", "between two runs", "a rest too short"],
)
def test_no_file_is_copied_that_is_larger_than_the_others_together(
    sizes: list[int], found: list[list[int]]
) -> None:
    assert runs(*copies(*sizes)) == found


def test_each_partition_is_merged_by_itself() -> None:
    commit = commit_of(*copies(*TEN), partition=3).with_partition(1, PartitionCommit(0))
    assert [run.topic_partition for run in plan_merges(commit)] == [TopicPartition("t", 3)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, TARGET_BYTES), max_size=60), st.integers(1, 2**20))
def test_merged_files_are_bounded_and_disjoint(sizes: list[int], unit: int) -> None:
    windows = copies(*(size % unit if place % 7 else size for place, size in enumerate(sizes)))
    found = list(plan_merges(commit_of(*windows)))
    merged = [window.first for run in found for window in run.windows]
    assert merged == sorted(set(merged))
    for run in found:
        assert len(run.windows) >= LEAST_FILES
        assert run.bytes <= TARGET_BYTES
        assert 2 * max(file.bytes for file in run.files) <= run.bytes
        assert all(a.until == b.first for a, b in zip(run.windows, run.windows[1:], strict=False))


def run_of(*windows: Window) -> MergeRun:
    return MergeRun(TP, windows)


NEW = StagedFile("new", 0, 0, 0, 7, 0, "crc", "", content="sha256:new")


def test_the_name_of_a_merged_file_covers_all_positions_of_the_run() -> None:
    run = run_of(copy(5, 9, epoch=2), copy(9, 30, epoch=2))
    name = run.name(7, "9f2c")
    assert name == BackupFileName(OffsetRange(TP, 5, 30), 2, "merge-7-9f2c")
    assert (BackupFileName.parse(name.format()), name.merge) == (name, 7)


def test_a_merged_window_counts_what_its_windows_counted() -> None:
    run = run_of(copy(5, 9), copy(9, 30))
    merged = run.merged(NEW, 99)
    assert merged.counts == Counts(positions=25, records=25, rows={"backup": 25})
    [file] = merged.files
    assert (merged.first, merged.until, merged.written_ms) == (5, 30, 99)
    assert (file.window, file.until, file.rows, file.raw_bytes, file.oldest_ms) == (5, 30, 25, 4 * MIB, 5)
    assert (file.path, file.bytes, file.crc32c, file.content) == ("new", 7, "crc", "sha256:new")
    assert (merged.leader_epoch, merged.epoch_until, merged.newest_ms) == (4, 30, 30)


def without_rows(window: Window) -> Window:
    """The same window, whose records were all erased or aborted."""
    file = dataclasses.replace(window.files[0], rows=0, oldest_ms=0)
    return dataclasses.replace(window, files=(file,), leader_epoch=-1, epoch_until=0, newest_ms=0)


def test_windows_without_records_say_nothing_about_times_and_leader_epochs() -> None:
    full, empty = copy(5, 9), without_rows(copy(9, 30))
    merged = run_of(full, empty).merged(NEW, 0)
    assert (merged.leader_epoch, merged.epoch_until, merged.newest_ms) == (4, 9, 9)
    assert merged.files[0].oldest_ms == 5
    nothing = run_of(empty, without_rows(copy(30, 40))).merged(NEW, 0)
    assert (nothing.leader_epoch, nothing.epoch_until, nothing.newest_ms) == (-1, 0, 0)
    assert nothing.files[0].oldest_ms == 0


def test_a_leader_epoch_that_no_broker_named_ends_an_older_one() -> None:
    unknown = dataclasses.replace(copy(9, 30), leader_epoch=-1)
    merged = run_of(copy(5, 9), unknown).merged(NEW, 0)
    assert (merged.leader_epoch, merged.epoch_until) == (-1, 30)


def test_if_the_newest_time_of_one_window_is_unknown_so_is_that_of_all() -> None:
    unknown = dataclasses.replace(copy(5, 9), newest_ms=0)
    assert run_of(unknown, copy(9, 30)).merged(NEW, 0).newest_ms == 0


def test_a_merged_file_lists_each_schema_once_and_not_too_many() -> None:
    def naming(window: Window, *ids: int) -> Window:
        return dataclasses.replace(window, files=(dataclasses.replace(window.files[0], schema_ids=ids),))

    few = run_of(naming(copy(0, 5), 9, 3), naming(copy(5, 9), 3, 4)).merged(NEW, 0)
    assert few.files[0].schema_ids == (3, 4, 9)
    many = run_of(naming(copy(0, 5), *range(70)), naming(copy(5, 9), *range(60, 150))).merged(NEW, 0)
    assert many.files[0].schema_ids == tuple(range(MOST_SCHEMAS))


@pytest.mark.parametrize(
    ("merges", "after_begin", "after_void"), [(0, 1, 0), (1, 3, 2), (2, 3, 2), (5, 7, 6)]
)
def test_the_number_of_a_merge_under_way_is_odd_and_never_used_again(
    merges: int, after_begin: int, after_void: int
) -> None:
    commit = commit_of(merges=merges)
    assert (begun(commit).merges, voided(commit).merges) == (after_begin, after_void)


WINDOWS = copies(*[MIB] * 4)
RUN = run_of(*WINDOWS[1:3])
MERGED = RUN.merged(NEW, 0)


def windows_after(commit: Commit) -> tuple[Window, ...]:
    return ended(commit, 7, [(RUN, MERGED)]).partitions[0].windows


def test_one_window_takes_the_place_of_its_run() -> None:
    commit = commit_of(*WINDOWS, merges=7)
    after = ended(commit, 7, [(RUN, MERGED)])
    assert after.partitions[0].windows == (WINDOWS[0], MERGED, WINDOWS[3])
    assert (after.merges, after.totals) == (8, commit.totals)
    assert ended(after, 7, [(RUN, MERGED)]) == after


@pytest.mark.parametrize("merges", [6, 8, 9])
def test_a_merge_that_was_voided_or_overtaken_changes_nothing(merges: int) -> None:
    commit = commit_of(*WINDOWS, merges=merges)
    assert ended(commit, 7, [(RUN, MERGED)]) == commit


@pytest.mark.parametrize(
    "windows",
    [WINDOWS[2:], WINDOWS[:2], [], [WINDOWS[1], copy(20, 30, 5), WINDOWS[3]]],
    ids=["its first window expired", "its last window is gone", "all are gone", "a file was written again"],
)
def test_a_run_that_changed_meanwhile_stays_as_it_is(windows: list[Window]) -> None:
    assert windows_after(commit_of(*windows, merges=7)) == tuple(windows)


def test_windows_that_expired_before_a_run_do_not_matter() -> None:
    assert windows_after(commit_of(*WINDOWS[1:], merges=7)) == (MERGED, WINDOWS[3])


def test_two_runs_of_a_partition_end_together() -> None:
    windows = copies(*[MIB] * 5)
    pairs = [run_of(*windows[:2]), run_of(*windows[3:])]
    merged = [(run, run.merged(NEW, 0)) for run in pairs]
    after = ended(commit_of(*windows, merges=7), 7, merged)
    assert after.partitions[0].windows == (merged[0][1], windows[2], merged[1][1])
