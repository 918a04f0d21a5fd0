"""What every lake's compaction promises (`kbq_assets.ports.compaction`). Subclass it and give the fixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import pytest

from kbq_assets.core.compaction.model import FileGroup, LakeView, RewriteTask, Rewritten
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import Compaction, TableMoved
from kbq_assets_tests.contracts.warehouse import TABLE


class CompactedLake(Protocol):
    """A lake with `TABLE`. ``load`` is a load job with a row per offset, ``replace_all`` one that replaces the table's
    rows; ``offsets`` are those of all rows, sorted. ``reader`` reads the rows of now when it is iterated over."""

    compaction: Compaction

    def load(self, *offsets: int) -> None: ...

    def replace_all(self, *offsets: int) -> None: ...

    def offsets(self) -> list[int]: ...

    def reader(self) -> Sequence[int]: ...


def view_of(lake: CompactedLake) -> LakeView:
    """The lake's table."""
    found = lake.compaction.view(TABLE)
    assert found is not None
    return found


def all_files(view: LakeView, token: str = "0123456789ab") -> RewriteTask:
    """A task that makes one file of a table's."""
    paths = tuple(file.path for file in view.files)
    group = FileGroup(
        view.files[0].partition,
        paths,
        sum(file.bytes for file in view.files),
        sum(file.rows for file in view.files),
    )
    return RewriteTask(TABLE, view.metadata, f"kbq-compact-{view.number}", token, group)


def rewritten(lake: CompactedLake, view: LakeView, token: str = "0123456789ab") -> Rewritten:
    """All files of a view as one."""
    result = lake.compaction.rewrite(all_files(view, token))
    assert result.path, result.failure
    return result


class CompactionContract:
    """Give a ``lake`` fixture."""

    def test_many_files_become_one_with_equal_rows(self, lake: CompactedLake) -> None:
        for offset in range(4):
            lake.load(offset, 10 + offset)
        view = view_of(lake)
        assert [file.rows for file in view.files] == [2] * 4
        result = rewritten(lake, view)
        assert not result.difference
        assert (result.before.rows, len(view_of(lake).files)) == (8, 4)  # nothing is visible yet
        before = lake.offsets()
        lake.compaction.replace_files(view, [result])
        after = view_of(lake)
        assert [file.path for file in after.files] == [result.path]
        assert (lake.offsets(), after.number) == (before, view.number + 1)

    @pytest.mark.parametrize("what", ["load", "replace", "another compaction", "the same again"])
    def test_a_table_that_moved_takes_no_files(self, lake: CompactedLake, what: str) -> None:
        lake.load(1)
        lake.load(2)
        view = view_of(lake)
        late = rewritten(lake, view)
        if what == "load":
            lake.load(3)
        elif what == "replace":
            lake.replace_all(7)
        elif what == "another compaction":
            lake.compaction.replace_files(view, [rewritten(lake, view, "ba9876543210")])
        else:
            lake.compaction.replace_files(view, [late])
        before = lake.offsets()
        with pytest.raises(TableMoved):
            lake.compaction.replace_files(view, [late])
        assert lake.offsets() == before

    def test_loads_go_on_after_a_compaction(self, lake: CompactedLake) -> None:
        lake.load(1)
        lake.load(2)
        view = view_of(lake)
        lake.compaction.replace_files(view, [rewritten(lake, view)])
        lake.load(3)
        assert lake.offsets() == [1, 2, 3]
        again = view_of(lake)
        lake.compaction.replace_files(again, [rewritten(lake, again)])
        assert (lake.offsets(), len(view_of(lake).files)) == ([1, 2, 3], 1)

    def test_a_reader_that_began_before_finishes(self, lake: CompactedLake) -> None:
        lake.load(1)
        lake.load(2)
        reader, view = lake.reader(), view_of(lake)
        lake.compaction.replace_files(view, [rewritten(lake, view)])
        lake.load(3)
        assert sorted(reader) == [1, 2]

    def test_files_of_a_day_are_joined_beside_its_partitions(self, lake: CompactedLake) -> None:
        lake.load(1)
        lake.load(2)
        for number, files in ((3, 2), (4, 3)):
            reader, view, before = lake.reader(), view_of(lake), lake.offsets()
            assert len(view.files) == 2
            task = all_files(view, f"{number:012x}")
            result = lake.compaction.rewrite(replace(task, group=replace(task.group, coarse=True)))
            assert not result.difference
            lake.compaction.replace_files(view, [result])
            assert [(file.coarse, file.rows) for file in view_of(lake).files] == [(True, files)]
            assert lake.offsets() == sorted(reader) == before
            lake.load(number)  # goes to its partition
            assert sorted(file.coarse for file in view_of(lake).files) == [False, True]
        assert lake.offsets() == [1, 2, 3, 4]

    def test_dropped_files_are_gone_at_once_or_not_at_all(self, lake: CompactedLake) -> None:
        for offset in range(3):
            lake.load(offset)
        reader, view = lake.reader(), view_of(lake)
        assert lake.compaction.drop_files(view, [view.files[0].path])
        left = lake.offsets()
        assert (len(left), sorted(reader)) == (2, [0, 1, 2])
        assert not lake.compaction.drop_files(view, [view.files[1].path])  # the table moved
        assert lake.offsets() == left

    def test_missing_inputs_are_reported(self, lake: CompactedLake) -> None:
        lake.load(1)
        lake.load(2)
        view = view_of(lake)
        task = all_files(view)
        lake.compaction.discard(TABLE, task.group.paths[:1])
        result = lake.compaction.rewrite(task)
        assert (result.path, result.gone) == ("", True)
        assert result.failure

    def test_discarded_files_are_gone_and_may_be_discarded_again(self, lake: CompactedLake) -> None:
        lake.load(1)
        lake.load(2)
        view = view_of(lake)
        result = rewritten(lake, view)
        for _ in range(2):
            lake.compaction.discard(TABLE, [result.path])
        assert lake.offsets() == [1, 2]

    def test_there_is_no_view_of_no_table(self, lake: CompactedLake) -> None:
        assert lake.compaction.view(TableReference("shop", "missing")) is None
