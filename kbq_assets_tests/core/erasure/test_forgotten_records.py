"""A backup forgets the offsets of its own log, and a merge that an erasure overtook changes nothing."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure.forgotten_records import copied_offsets, epochs_of_log, is_present, rewritten
from kbq_assets.core.erasure.model import CopiedEpochs, ErasedPartition, Erasure
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

IDS = ("c", "id")


def file(
    first: int = 0, *, epoch: int = 3, partition: int = 0, rows: int = 10, attempt: str = "a"
) -> StagedFile:
    range_ = OffsetRange(TopicPartition("t", partition), first, first + 10)
    path = BackupFileName(range_, epoch, attempt).format()
    return StagedFile(path, first, first + 10, rows, 1, 1, "", "", content="x")


def commit_of(
    *files: StagedFile, since: int = 2, epoch: int = 3, topic_id: str = "id", merges: int = 4
) -> Commit:
    windows = tuple(
        Window(f.window, f.until, Counts(positions=10, records=10, rows={"backup": f.rows}), (f,))
        for f in files
    )
    totals = sum((window.counts for window in windows), Counts())
    state = PartitionCommit(40, since=since, windows=windows, totals=totals)
    return Commit("t", 0, "c", topic_id, epoch, {0: state}, merges=merges)


@pytest.mark.parametrize(
    ("commit", "found", "is_own"),
    [
        (commit_of(), file(epoch=3), True),
        (commit_of(), file(epoch=2), True),
        (commit_of(), file(epoch=1), False),
        (commit_of(topic_id="other"), file(epoch=3), False),
        (commit_of(), file(partition=1), False),
    ],
    ids=["the present epoch", "its first epoch", "an older epoch", "another log", "an unknown partition"],
)
def test_a_copy_is_of_a_log_if_its_epoch_began_with_it(
    commit: Commit, found: StagedFile, is_own: bool
) -> None:
    assert is_present(IDS, commit, found) == is_own


def test_the_epochs_of_a_log_are_none_in_a_backup_without_a_copy_of_it() -> None:
    commits = {0: commit_of(), 1: commit_of(topic_id="other")}
    assert epochs_of_log(IDS, [0, 5, 64, 128], commits) == {
        0: CopiedEpochs(2, 3),
        5: CopiedEpochs(3, 3),
        64: CopiedEpochs(4, 3),
        128: CopiedEpochs(1, 0),
    }


PRESENT, OLDER = (4, 6), (8, 9)


def erasure(copied: CopiedEpochs | None, number: int = 0) -> Erasure:
    return Erasure(
        7,
        "t",
        *IDS,
        {number: ErasedPartition(2, 3, 9, PRESENT)},
        copies={"0/1": OLDER, "0/4": OLDER},
        copied={0: copied} if copied else {},
    )


@pytest.mark.parametrize(
    ("copied", "commit", "epoch", "offsets"),
    [
        (CopiedEpochs(2, 3), commit_of(), 2, PRESENT),
        (CopiedEpochs(2, 3), commit_of(), 3, PRESENT),
        (CopiedEpochs(2, 3), commit_of(), 1, OLDER),
        (CopiedEpochs(2, 3), commit_of(epoch=4), 4, PRESENT),
        (CopiedEpochs(2, 3), commit_of(epoch=4, topic_id="other"), 4, OLDER),
        (CopiedEpochs(2, 3), commit_of(epoch=4, since=4, topic_id="other"), 3, PRESENT),
        (CopiedEpochs(4, 3), commit_of(epoch=4), 4, PRESENT),
        (CopiedEpochs(4, 3), commit_of(epoch=3), 3, PRESENT),
        (CopiedEpochs(4, 3), commit_of(epoch=3, topic_id="other"), 3, ()),
        (None, commit_of(), 3, PRESENT),
        (None, commit_of(), 1, OLDER),
        (None, commit_of(topic_id="other"), 3, ()),
    ],
    ids=[
        "the first epoch of the log",
        "the last that the search knew",
        "before the log",
        "the log goes on in a new epoch",
        "another log came since",
        "a reset made the epoch a former one",
        "no copy when searched, one since",
        "a commit without a copy that has one of the log",
        "a copy of another log",
        "nobody noted epochs: the present one",
        "nobody noted epochs: an older one",
        "nobody noted epochs: another log",
    ],
)
def test_a_file_forgets_the_offsets_of_its_own_log(
    copied: CopiedEpochs | None, commit: Commit, epoch: int, offsets: tuple[int, ...]
) -> None:
    assert copied_offsets(erasure(copied), commit, file(epoch=epoch)) == offsets


def test_a_partition_without_erased_records_forgets_nothing() -> None:
    assert copied_offsets(erasure(None, number=1), commit_of(), file()) == ()


def test_a_file_without_the_records_takes_the_place_of_the_old_one_and_is_counted() -> None:
    old, other = file(), file(10)
    new = file(rows=7, attempt="b")
    before = commit_of(old, other)
    after = rewritten(before, old=old, new=new, erased=3, number=4)
    first, second = after.partitions[0].windows
    assert (first.files, first.counts.rows, first.counts.erased) == ((new,), {"backup": 7}, 3)
    assert second == before.partitions[0].windows[1]
    totals = after.partitions[0].totals
    assert (totals.records, totals.rows, totals.erased) == (20, {"backup": 17}, 3)
    totals.check("here")
    assert rewritten(after, old=old, new=new, erased=3, number=4) == after


@pytest.mark.parametrize(
    ("commit", "number"),
    [(commit_of(file()), 3), (commit_of(file()), 5), (commit_of(file(10)), 4), (commit_of(), 4)],
    ids=["an older merge", "a newer merge", "no longer listed", "no files"],
)
def test_a_commit_that_went_on_stays_as_it_is(commit: Commit, number: int) -> None:
    new = file(rows=7, attempt="b")
    assert rewritten(commit, old=file(), new=new, erased=3, number=number) is commit


def test_a_file_of_another_partition_is_found() -> None:
    old = file(partition=1)
    state = dataclasses.replace(commit_of(old).partitions[0], since=1)
    commit = commit_of(file()).with_partition(1, state)
    after = rewritten(commit, old=old, new=file(partition=1, rows=9, attempt="b"), erased=1, number=4)
    assert after.partitions[0] == commit.partitions[0]
    assert after.partitions[1].totals.erased == 1
