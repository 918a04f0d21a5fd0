"""Small files of a partition become few; whatever is young, large, alone or not KBQ's to touch stays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kbq_assets.core.compaction.model import (
    ENABLED,
    MIN_AGE,
    MIN_FILES,
    TARGET,
    CompactionPolicy,
    CompactionRule,
    FileGroup,
    LakeFile,
    LakeView,
    RewriteTask,
    Rewritten,
    RowsDigest,
    policy_of,
)
from kbq_assets.core.compaction.planning import ROUND_BYTES, ROUND_GROUPS, next_round, plan_compaction
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference

TABLE = TableReference("shop", "orders")
POLICY = CompactionPolicy(target_bytes=100, min_files=3, min_age_ms=1000)
NOW = 10_000


def file(
    number: int, size: int = 10, partition: str = "p", added: int = 0, hour: int | None = None
) -> LakeFile:
    return LakeFile(f"{partition}/{number:05}", size, size, partition, added, hour)


def view(*files: LakeFile, complete_until: int = 0, left_alone: str = "") -> LakeView:
    return LakeView(TABLE, 1, "layout", 0, files, POLICY, complete_until, left_alone)


def planned(shown: LakeView, now_ms: int = NOW) -> list[int]:
    """How many files each group has."""
    return [len(group.paths) for group in plan_compaction(shown, now_ms).groups]


def test_5000_small_files_become_at_most_20() -> None:
    files = tuple(file(i, 200_000, f"day {i % 4}") for i in range(5000))
    plan = plan_compaction(replace(view(*files), policy=CompactionPolicy()), NOW + 3_600_000)
    assert (plan.files, plan.bytes) == (5000, 1_000_000_000)
    assert plan.files_after <= 20
    assert plan.reads_saved == 5000 - plan.files_after
    assert plan.rewritten_bytes == plan.bytes


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        ([file(i) for i in range(2)], []),  # too few
        ([file(i) for i in range(3)], [3]),
        ([file(i, added=NOW - 1) for i in range(3)], []),  # too young
        ([file(i, added=NOW - 1) for i in range(29)], []),
        ([file(i, added=NOW - 1) for i in range(30)], [10, 10, 10]),  # so many that age does not count
        ([file(i, added=NOW - 1, hour=7) for i in range(3)], [3]),  # the hour is complete
        ([file(i, added=NOW - 1, hour=8) for i in range(3)], []),
        ([file(i, 75) for i in range(9)], []),  # large enough
        ([file(i, 74) for i in range(9)], []),  # no two fit into one
        ([file(0, 60), file(1, 60), file(2, 30), file(3, 5)], [3]),
        ([file(i, partition=f"p{i % 2}") for i in range(6)], [3, 3]),  # never across partitions
        ([file(i, partition=f"p{i}") for i in range(6)], []),
    ],
)
def test_what_is_compacted(files: list[LakeFile], groups: list[int]) -> None:
    assert planned(view(*files, complete_until=8)) == groups


@pytest.mark.parametrize(
    ("hour", "groups"), [(7, [3]), (8, []), (None, [3])]
)  # a table without hours has none that are complete
def test_a_rule_may_wait_for_complete_hours_whatever_number_and_age(
    hour: int | None, groups: list[int]
) -> None:
    files = [file(i, 3, hour=hour) for i in range(40 if hour == 8 else 3)]
    shown = view(*files, complete_until=8)
    rule = CompactionRule(complete_only=True)
    assert planned(replace(shown, policy=rule.over(POLICY))) == groups


def test_a_rule_wins_over_a_tables_policy_where_it_says_something() -> None:
    assert CompactionRule().over(POLICY) == POLICY
    assert CompactionRule(False, False, 7, 1, 5).over(POLICY) == CompactionPolicy(False, 7, 2, 5)
    assert CompactionRule(True).over(replace(POLICY, enabled=False)).enabled


def test_files_are_joined_in_the_order_in_which_they_were_added() -> None:
    shown = view(*(file(i, 40, added=100 - i) for i in range(4)))
    assert [group.paths for group in plan_compaction(shown, NOW).groups] == [
        ("p/00003", "p/00002"),
        ("p/00001", "p/00000"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_compaction_again_and_again_comes_to_an_end(seed: int) -> None:
    """Each group leaves fewer files, whatever size the new file has."""
    chance = random.Random(seed)
    files = tuple(file(i, chance.randrange(1, 120), f"p{chance.randrange(3)}") for i in range(60))
    shown = view(*files)
    for number in range(len(files) + 1):
        plan = plan_compaction(shown, NOW)
        gone = {path for group in plan.groups for path in group.paths}
        if not gone:
            break
        new = [
            file(1000 * (number + 1) + i, max(1, group.bytes - chance.randrange(20)), group.partition)
            for i, group in enumerate(plan.groups)
        ]
        assert sum(each.rows for each in shown.files if each.path in gone) == sum(g.rows for g in plan.groups)
        shown = view(*(each for each in shown.files if each.path not in gone), *new)
        assert len(shown.files) == plan.files_after
    assert not plan.groups


def test_a_table_that_is_left_alone_says_why() -> None:
    files = [file(i) for i in range(9)]
    assert plan_compaction(view(*files, left_alone="deletes"), NOW).left_alone == "deletes"
    off = replace(view(*files), policy=replace(POLICY, enabled=False))
    plan = plan_compaction(off, NOW)
    assert plan.left_alone
    assert (plan.groups, plan.files_after) == ((), 9)


def test_a_partition_that_failed_is_left_out() -> None:
    shown = view(*(file(i, partition=f"p{i % 2}") for i in range(6)))
    assert [group.partition for group in plan_compaction(shown, NOW, {"p0"}).groups] == ["p1"]


def test_chosen_days_are_compacted_whatever_the_policy_says() -> None:
    files = [replace(file(i, added=NOW, partition=f"p{i % 3}"), day=i % 3) for i in range(6)]
    shown = view(*files, file(9), file(10))
    assert planned(shown) == []
    groups = plan_compaction(shown, NOW, days={1, 7}).groups
    assert [(group.partition, group.day, len(group.paths)) for group in groups] == [("p1", 1, 2)]


def test_a_group_that_is_written_stays_while_the_table_has_its_files() -> None:
    """Else a partition that is loaded all the time would never be compacted."""
    [written] = plan_compaction(view(*(file(i) for i in range(3))), NOW).groups
    later = [file(i) for i in range(7)]
    groups = plan_compaction(view(*later), NOW, kept=[written]).groups
    assert groups[0] == written
    assert [path for group in groups for path in group.paths] == [each.path for each in later]
    assert written not in plan_compaction(view(*later[1:]), NOW, kept=[written]).groups


def test_a_round_has_a_bound() -> None:
    small = [FileGroup("p", (str(i),), 1, 1) for i in range(ROUND_GROUPS + 1)]
    assert len(next_round(small)) == ROUND_GROUPS
    large = [FileGroup("p", (str(i),), ROUND_BYTES, 1) for i in range(3)]
    assert next_round(large) == (large[0],)  # one group at least
    assert next_round([]) == ()


def test_the_tables_properties_are_the_policy() -> None:
    assert policy_of({}, TABLE) == CompactionPolicy()
    found = policy_of({ENABLED: "false", TARGET: "1000", MIN_FILES: "9", MIN_AGE: "5"}, TABLE)
    assert found == CompactionPolicy(False, 1000, 9, 5)
    assert found.small_bytes == 750
    with pytest.raises(ConfigurationError, match="no number"):
        policy_of({MIN_FILES: "many"}, TABLE)


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        (RowsDigest(5, 7), RowsDigest(5, 7), True),
        (RowsDigest(4, 7), RowsDigest(4, 7), False),  # not what the table lists
        (RowsDigest(5, 7), RowsDigest(4, 7), False),
        (RowsDigest(5, 7), RowsDigest(5, 8), False),
    ],
)
def test_different_rows_replace_nothing(before: RowsDigest, after: RowsDigest, equal: bool) -> None:
    task = RewriteTask(TABLE, "", "kbq-compact-0", "", FileGroup("p", ("a", "b"), 2, 5))
    assert (Rewritten(task, "new", 2, before, after).difference == "") == equal
