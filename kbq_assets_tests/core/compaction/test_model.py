"""Policies, plans and results of compactions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.compaction.model import (
    ChosenFiles,
    CompactionPlan,
    CompactionPolicy,
    CompactionRule,
    FileGroup,
    LakeFile,
    RewriteTask,
    Rewritten,
    RowsDigest,
    policy_of,
)
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference

TABLE = TableReference("d", "t")
USUAL = CompactionPolicy()


@pytest.mark.parametrize(
    ("properties", "changed"),
    [
        ({}, {}),
        ({"owner": "x"}, {}),
        ({"kbq.compaction.enabled": "false"}, {"enabled": False}),
        ({"kbq.compaction.enabled": " TRUE "}, {}),
        ({"write.target-file-size-bytes": "1000"}, {"target_bytes": 1000}),
        ({"write.target-file-size-bytes": "0"}, {"target_bytes": 1}),
        ({"kbq.compaction.min-input-files": "9"}, {"min_files": 9}),
        ({"kbq.compaction.min-input-files": "1"}, {"min_files": 2}),
        ({"kbq.compaction.min-age-ms": "7"}, {"min_age_ms": 7}),
        ({"kbq.compaction.min-age-ms": "0"}, {"min_age_ms": 0}),
        ({"kbq.compaction.days-after-ms": "5"}, {"days_after_ms": 5}),
    ],
)
def test_a_table_sets_its_policy_by_properties(properties: dict[str, str], changed: dict[str, Any]) -> None:
    assert policy_of(properties, TABLE) == dataclasses.replace(USUAL, **changed)


@pytest.mark.parametrize(
    "name",
    [
        "write.target-file-size-bytes",
        "kbq.compaction.min-input-files",
        "kbq.compaction.min-age-ms",
        "kbq.compaction.days-after-ms",
    ],
)
@pytest.mark.parametrize("value", ["", "256MB", "1.5"])
def test_a_property_that_is_no_number_is_refused_with_its_table(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"d\.t: a compaction property is not a number") as refused:
        policy_of({name: value}, TABLE)
    assert repr(value) in refused.value.message
    assert name in refused.value.next_step


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        (CompactionRule(), {}),
        (CompactionRule(enabled=False), {"enabled": False}),
        (CompactionRule(target_bytes=9), {"target_bytes": 9}),
        (CompactionRule(min_files=3), {"min_files": 3}),
        (CompactionRule(min_files=1), {"min_files": 2}),
        (CompactionRule(min_age_ms=9), {"min_age_ms": 9}),
        (CompactionRule(complete_only=True), {"complete_only": True}),
        (CompactionRule(days_after_ms=9), {"days_after_ms": 9}),
    ],
)
def test_topics_win_over_properties_where_they_say_something(
    rule: CompactionRule, changed: dict[str, Any]
) -> None:
    assert rule.over(USUAL) == dataclasses.replace(USUAL, **changed)


def test_a_topic_can_turn_on_what_a_property_turned_off() -> None:
    off = dataclasses.replace(USUAL, enabled=False, complete_only=True)
    assert CompactionRule(enabled=True).over(off) == dataclasses.replace(off, enabled=True)
    assert CompactionRule().over(off) == off


@pytest.mark.parametrize(("target", "small"), [(4, 3), (5, 3), (1, 0), (256 << 20, 192 << 20)])
def test_a_file_below_three_quarters_of_the_target_is_small(target: int, small: int) -> None:
    assert CompactionPolicy(target_bytes=target).small_bytes == small


def test_ten_times_the_least_number_of_files_is_many() -> None:
    assert CompactionPolicy(min_files=5).many_files == 50


@pytest.mark.parametrize(
    ("chosen", "fine", "coarse"),
    [
        (ChosenFiles(), False, False),
        (ChosenFiles(days={2}), True, True),
        (ChosenFiles(days={3}), False, False),
        (ChosenFiles(hours={50}), True, False),
        (ChosenFiles(hours={51}), False, False),
        (ChosenFiles({2}, {51}), True, True),
    ],
    ids=["nothing", "the day", "another day", "the hour", "another hour", "the day and another hour"],
)
def test_files_are_chosen_by_day_or_hour_and_whole_days_by_day_alone(
    chosen: ChosenFiles, fine: bool, coarse: bool
) -> None:
    file = LakeFile("a", 1, 1, "p", 0, hour=50, day=2)
    found = [chosen.has(each) for each in (file, dataclasses.replace(file, coarse=True))]
    assert found == [fine, coarse]


def group(*paths: str, day: int | None = None, coarse: bool = False) -> FileGroup:
    return FileGroup("p", paths, 10 * len(paths), 5, day, coarse)


@pytest.mark.parametrize(
    ("groups", "after", "saved", "days", "rewritten"),
    [
        ((), 9, 0, 0, 0),
        ((group("a", "b"),), 8, 1, 0, 20),
        ((group("a", "b", "c", day=1, coarse=True), group("d", "e", day=1, coarse=True)), 6, 3, 1, 50),
        ((group("a", "b", day=1, coarse=True), group("c", "d", day=2)), 7, 2, 1, 40),
        ((group("a"),), 9, 0, 0, 10),
    ],
    ids=["nothing", "two files", "two groups of one day", "a day and hours of another", "one file"],
)
def test_a_plan_counts_what_it_saves(
    groups: tuple[FileGroup, ...], after: int, saved: int, days: int, rewritten: int
) -> None:
    plan = CompactionPlan(TABLE, groups, 9, 900)
    assert (plan.files_after, plan.reads_saved) == (after, saved)
    assert (plan.joined_days, plan.rewritten_bytes) == (days, rewritten)


def test_a_digest_does_not_depend_on_order_and_never_overflows() -> None:
    one, two = RowsDigest(1, (1 << 64) - 1), RowsDigest(2, 5)
    assert one + two == two + one == RowsDigest(3, 4)
    assert one + RowsDigest() == one


TASK = RewriteTask(TABLE, "m", "j", "t", group("a", "b"))


@pytest.mark.parametrize(
    ("before", "after", "erased", "words"),
    [
        (RowsDigest(5, 7), RowsDigest(5, 7), 0, ""),
        (RowsDigest(3, 7), RowsDigest(3, 7), 2, ""),
        (RowsDigest(4, 7), RowsDigest(4, 7), 0, "its files have 4 rows, but the table lists 5"),
        (RowsDigest(5, 7), RowsDigest(5, 7), 1, "its files have 6 rows, but the table lists 5"),
        (RowsDigest(5, 7), RowsDigest(4, 7), 0, "5 rows went in and 4 came out, or their values differ"),
        (RowsDigest(5, 7), RowsDigest(5, 8), 0, "5 rows went in and 5 came out, or their values differ"),
    ],
    ids=[
        "the same",
        "without erased rows",
        "a row too few",
        "a row too many",
        "a row was lost",
        "other values",
    ],
)
def test_a_new_file_replaces_the_old_ones_only_with_the_same_rows(
    before: RowsDigest, after: RowsDigest, erased: int, words: str
) -> None:
    assert Rewritten(TASK, "new", 1, before, after, erased=erased).difference == words
