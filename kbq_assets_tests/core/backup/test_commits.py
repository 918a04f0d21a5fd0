"""A backup's commit after a reset and after retention, and files that are no longer listed."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.backup.commits import expire, orphans, reset, windows_of
from kbq_assets.core.protocol.commits import AcceptedGap, Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition


def path(first: int, until: int, *, epoch: int = 2, partition: int = 0, attempt: str = "a") -> str:
    return BackupFileName(OffsetRange(TopicPartition("t", partition), first, until), epoch, attempt).format()


def copy(first: int, until: int, *, epoch: int = 2, attempt: str = "a", written_ms: int = 0) -> Window:
    file = StagedFile(
        path(first, until, epoch=epoch, attempt=attempt), first, until, 1, 1, 1, "", "", content="x"
    )
    return Window(first, until, Counts(), (file,), written_ms=written_ms)


A, B, C = copy(0, 10), copy(10, 20), copy(20, 30)
GAP = AcceptedGap(0, 3, "lost")
STATE = PartitionCommit(
    30, 5, 1, 7, 30, Counts(positions=30, gaps=30), (A, B, C), deaths=1, accepted_gaps=(GAP,)
)
COMMIT = Commit("t", 0, "c", "id", 2, {0: STATE, 1: PartitionCommit(4)})


def test_a_reset_begins_a_new_epoch_and_keeps_every_copy() -> None:
    after = reset(COMMIT, {0: 100, 3: 7}, {0: 9}, "c2", "id2")
    assert (after.epoch, after.cluster_id, after.topic_id) == (3, "c2", "id2")
    assert after.partitions[0] == PartitionCommit(
        100, 100, 3, 9, 100, STATE.totals, STATE.windows, accepted_gaps=STATE.accepted_gaps
    )
    assert after.partitions[1] == COMMIT.partitions[1]
    assert after.partitions[3] == PartitionCommit(7, 7, 3)


def times(*written: int) -> dict[str, int]:
    """When the files of A, B and C were written; 0: the file is gone."""
    files = zip((A, B, C), written, strict=True)
    return {window.files[0].path: when for window, when in files if when}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ((50, 60, 70), [A, B, C]),
        ((49, 50, 70), [B, C]),
        ((49, 49, 49), []),
        ((60, 10, 10), [A, B, C]),
        ((10, 60, 10), [B, C]),
        ((0, 60, 70), [A, B, C]),
        ((0, 10, 70), [C]),
        ((10, 0, 70), [B, C]),
        ((10, 0, 10), []),
        ((0, 0, 0), [A, B, C]),
    ],
    ids=[
        "none is old",
        "the first is old",
        "all are old",
        "a young one comes first",
        "an old one behind a young one",
        "the first is gone, the next is young",
        "the first is gone, the next is old",
        "one is gone before a young one",
        "one is gone between old ones",
        "all are gone",
    ],
)
def test_retention_takes_old_copies_from_the_beginning_alone(
    written: tuple[int, ...], kept: list[Window]
) -> None:
    after = expire(COMMIT, times(*written), 50)
    assert after.partitions[0] == dataclasses.replace(STATE, windows=tuple(kept))
    assert after.partitions[1] == COMMIT.partitions[1]


def test_a_merged_copy_is_as_old_as_the_newest_that_it_replaced() -> None:
    merged = copy(0, 10, written_ms=60)
    commit = COMMIT.with_partition(0, dataclasses.replace(STATE, windows=(merged, B)))
    assert expire(commit, {merged.files[0].path: 10, B.files[0].path: 10}, 50) == commit
    assert expire(commit, {merged.files[0].path: 90, B.files[0].path: 10}, 61).partitions[0].windows == ()


def test_a_commit_without_old_copies_is_the_same_object() -> None:
    assert expire(COMMIT, times(50, 60, 70), 50) is COMMIT


@pytest.mark.parametrize(
    ("found", "is_orphan"),
    [
        (path(0, 10), False),
        (path(0, 10, attempt="b"), True),
        (path(29, 31), True),
        (path(30, 40), False),
        (path(40, 50, epoch=1), True),
        (path(0, 10, epoch=3), False),
        (path(0, 4, partition=1), True),
        (path(4, 8, partition=1), False),
        (path(0, 10, partition=9), False),
        (path(0, 10).replace("/t/", "/other/"), False),
        ("backup/t/a/notes.txt", False),
        ("backup/@/commits/t.json", False),
    ],
    ids=[
        "listed",
        "another attempt",
        "below the position",
        "at the position",
        "an older epoch",
        "a later epoch",
        "below the position of another partition",
        "at the position of another partition",
        "a partition that no commit knows",
        "a topic that no commit knows",
        "a stranger's file",
        "state",
    ],
)
def test_a_file_is_an_orphan_once_no_run_can_publish_it(found: str, is_orphan: bool) -> None:
    assert orphans({found: 10}, [COMMIT], 0) == ([found] if is_orphan else [])


MERGED = copy(0, 20, attempt="merge-3-a")
PARTS = [path(0, 10, attempt="b"), path(10, 20, attempt="b")]
BEYOND = path(20, 21, attempt="b")


@pytest.mark.parametrize(
    ("merged_at", "found"),
    [(50, [BEYOND]), (49, [*PARTS, BEYOND]), (0, [*PARTS, BEYOND])],
    ids=["replaced just now", "replaced long ago", "a merged file that is gone"],
)
def test_files_that_a_merge_has_just_replaced_stay_for_their_readers(
    merged_at: int, found: list[str]
) -> None:
    commit = COMMIT.with_partition(0, dataclasses.replace(STATE, windows=(MERGED,)))
    listed = dict.fromkeys([*PARTS, BEYOND], 10)
    if merged_at:
        listed[MERGED.files[0].path] = merged_at
    assert orphans(listed, [commit], 50) == found


def test_files_that_lie_in_no_merged_one_are_orphans_at_once() -> None:
    commit = COMMIT.with_partition(0, dataclasses.replace(STATE, windows=(MERGED,)))
    listed = {MERGED.files[0].path: 50, path(0, 10, epoch=1): 10}
    assert orphans(listed, [commit], 50) == [path(0, 10, epoch=1)]


@pytest.mark.parametrize(("merges", "is_orphan"), [(3, False), (4, True), (5, True)])
def test_what_a_merge_under_way_writes_stays(merges: int, is_orphan: bool) -> None:
    commit, new = dataclasses.replace(COMMIT, merges=merges), path(0, 10, attempt="merge-3-b")
    assert orphans({new: 10}, [commit], 50) == ([new] if is_orphan else [])


def test_the_windows_of_an_epoch_are_those_of_its_files() -> None:
    older = copy(0, 50, epoch=1)
    commit = COMMIT.with_partition(0, dataclasses.replace(STATE, windows=(older, A, B)))
    assert windows_of(commit, 0, 1) == (older,)
    assert windows_of(commit, 0, 2) == (A, B)
    assert windows_of(commit, 0, 3) == windows_of(commit, 8, 2) == ()


def test_orphans_are_found_among_files_that_stay_in_the_order_of_their_paths() -> None:
    stay = [path(0, 10, attempt="x", epoch=3), path(30, 40), "backup/t/0/notes.txt", path(0, 10)]
    go = [path(0, 10, attempt="b"), path(29, 31), path(40, 50, epoch=1), path(0, 4, partition=1)]
    listed = dict.fromkeys([*stay, *go], 10)
    assert orphans(listed, [COMMIT], 0) == sorted(go)
    assert orphans({}, [COMMIT], 0) == orphans(listed, [], 0) == []
