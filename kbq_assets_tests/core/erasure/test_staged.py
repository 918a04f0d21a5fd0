"""A file without the erased rows replaces the old one, for one warehouse, in windows and given-up paths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.erasure.model import RewrittenFile
from kbq_assets.core.erasure.staged import for_warehouse, with_rewritten
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets_tests.strategies import staged_file, window

OLD, OTHER = staged_file(0, 5), staged_file(5, 9)
NEW = replace(staged_file(0, 5, attempt="b", rows=3), restaged=1)
REWRITTEN = RewrittenFile(OLD.path, NEW, 2)


def commit_of(*files: StagedFile, partition: int = 0, given_up: tuple[str, ...] = ()) -> Commit:
    windows = tuple(window(file.window, file.until, file) for file in files)
    parts = {0: PartitionCommit(9), partition: PartitionCommit(9, windows=windows)}
    return Commit("t", 0, "c", "id", 1, parts, given_up=given_up)


@pytest.mark.parametrize("partition", [0, 1])
def test_the_new_file_stands_where_the_old_one_stood(partition: int) -> None:
    after = with_rewritten(commit_of(OTHER, OLD, OTHER, partition=partition), REWRITTEN, "")
    assert [file.path for file in after.files] == [OTHER.path, NEW.path, OTHER.path]
    assert with_rewritten(after, REWRITTEN, "") == after


def test_a_commit_that_does_not_list_the_old_file_is_the_same_object() -> None:
    commit = commit_of(OTHER)
    assert with_rewritten(commit, REWRITTEN, "") is commit


@pytest.mark.parametrize(
    ("given_up", "after"),
    [
        ((), ()),
        ((OTHER.path,), (OTHER.path,)),
        ((OLD.path,), (OLD.path, NEW.path)),
        ((OLD.path, NEW.path), (OLD.path, NEW.path)),
    ],
    ids=["nothing given up", "another file", "the old file", "both"],
)
def test_a_copy_of_a_file_that_a_reset_gave_up_is_given_up_too(
    given_up: tuple[str, ...], after: tuple[str, ...]
) -> None:
    assert with_rewritten(commit_of(OTHER, given_up=given_up), REWRITTEN, "").given_up == after


@pytest.mark.parametrize(("warehouse", "listed"), [("", ()), ("lake", ("lake",))])
def test_a_file_for_the_first_warehouse_alone_lists_none(warehouse: str, listed: tuple[str, ...]) -> None:
    both = replace(NEW, warehouses=("", "lake"))
    assert for_warehouse(both, warehouse) == replace(NEW, warehouses=listed)
