"""Small files of a partition are merged. Files that are young, large, alone or not KBQ's stay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kbq_assets.core.compaction.model import (
    DAY_MS,
    DAYS_AFTER,
    ENABLED,
    MIN_AGE,
    MIN_FILES,
    TARGET,
    ChosenFiles,
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
from kbq_assets.core.compaction.planning import (
    ROUND_BYTES,
    ROUND_GROUPS,
    day_name,
    next_round,
    plan_compaction,
)
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
        ([file(i, added=NOW - 1) for i in range(30)], [10, 10, 10]),  # enough that age does not count
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
    assert CompactionRule(False, False, 7, 1, 5, 9).over(POLICY) == CompactionPolicy(
        False, 7, 2, 5, days_after_ms=9
    )
    assert CompactionRule(True).over(replace(POLICY, enabled=False)).enabled


def test_files_are_joined_in_the_order_in_which_they_were_added() -> None:
    shown = view(*(file(i, 40, added=100 - i) for i in range(4)))
    assert [group.paths for group in plan_compaction(shown, NOW).groups] == [
        ("p/00003", "p/00002"),
        ("p/00001", "p/00000"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_compaction_again_and_again_comes_to_an_end(seed: int) -> None:
    """Each group leaves fewer files, for any size of the new file."""
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
    groups = plan_compaction(shown, NOW, chosen=ChosenFiles({1, 7})).groups
    assert [(group.partition, group.day, len(group.paths)) for group in groups] == [("p1", 1, 2)]


def test_chosen_hours_are_compacted_in_their_partitions_alone() -> None:
    """For any policy, and without files of whole days."""
    policy = replace(POLICY, days_after_ms=1)
    files = [replace(file(i, added=NOW, partition=f"p{i % 3}", hour=i % 3), day=0) for i in range(6)]
    whole_days = [replace(file(9, hour=1), day=0, coarse=True), replace(file(8, hour=1), day=0, coarse=True)]
    shown = replace(view(*files, *whole_days), policy=policy, has_hours=True)
    groups = plan_compaction(shown, NOW + 30 * DAY_MS, chosen=ChosenFiles(hours={1, 7})).groups
    assert [(group.partition, group.hours, len(group.paths), group.coarse) for group in groups] == [
        ("p1", (1,), 2, False)
    ]
    [joined] = plan_compaction(shown, NOW + 30 * DAY_MS, chosen=ChosenFiles({0})).groups
    assert (joined.coarse, joined.hours, len(joined.paths)) == (True, (0, 1, 2), 8)


def test_a_group_that_is_written_stays_while_the_table_has_its_files() -> None:
    """Else a partition that is loaded all the time would never be compacted."""
    [written] = plan_compaction(view(*(file(i) for i in range(3))), NOW).groups
    later = [file(i) for i in range(7)]
    groups = plan_compaction(view(*later), NOW, kept=[written]).groups
    assert groups[0] == written
    assert [path for group in groups for path in group.paths] == [each.path for each in later]
    assert written not in plan_compaction(view(*later[1:]), NOW, kept=[written]).groups


# Whole days (C9)

DAILY = replace(POLICY, days_after_ms=1000)
#: The first day ended long enough ago.
NEXT_DAY = DAY_MS + 1000


def hourly(hour: int, size: int = 10, added: int = 0, **fields: object) -> LakeFile:
    """A file of an hour."""
    made = LakeFile(f"h{hour}/{size}/{added}", size, size, f"h{hour}", added, hour, hour // 24)
    return replace(made, **fields)  # type: ignore[arg-type]


def whole(number: int, size: int = 50) -> LakeFile:
    """A file of the whole first day."""
    return LakeFile(f"day/{number}", size, size, "d", 0, 23, 0, coarse=True)


def daily(*files: LakeFile, complete_until: int = 0, **policy: object) -> LakeView:
    shown = replace(view(*files, complete_until=complete_until), has_hours=True)
    return replace(shown, policy=replace(DAILY, **policy))  # type: ignore[arg-type]


HOURS = [hourly(hour) for hour in range(4)]
LATE = [hourly(9, added=i) for i in range(2)]


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        (HOURS, [4]),  # one file of an hour each: too few for their partitions, enough for a day
        ([hourly(0), hourly(1, 80)], []),  # only one small file
        ([hourly(0), hourly(1, 40), hourly(2, 60)], [2]),
        ([hourly(0), hourly(0, 11)], [2]),
        ([hourly(0), hourly(24)], []),  # never across days
        ([hourly(0, 400, older=True)], [1]),  # written again with the newest columns
        ([replace(whole(0, 80), older=True)], []),  # but once: a new column does not write the lake again
        ([whole(0), *LATE[:1]], []),  # late rows wait until they are worth a large file
        ([whole(0), *LATE], [3]),
        ([whole(0, 80), *LATE], []),
        ([whole(0, 80), *LATE, hourly(9, added=5)], [3]),
        ([whole(0, 60), whole(1, 60), hourly(3, 5)], [2]),
        ([hourly(0), hourly(1, added=NEXT_DAY - 1)], []),  # still loaded
    ],
)
def test_what_becomes_a_file_of_a_day(files: list[LakeFile], groups: list[int]) -> None:
    plan = plan_compaction(daily(*files), NEXT_DAY)
    assert [len(group.paths) for group in plan.groups] == groups
    assert all((group.coarse, group.partition) == (True, "day 1970-01-01") for group in plan.groups)
    assert plan.joined_days == bool(groups)


def test_rows_of_a_day_are_in_the_order_of_its_hours() -> None:
    [group] = plan_compaction(daily(*(hourly(hour, added=9 - hour) for hour in (5, 1, 7))), NEXT_DAY).groups
    assert [path.partition("/")[0] for path in group.paths] == ["h1", "h5", "h7"]


@pytest.mark.parametrize(
    "shown",
    [
        daily(*HOURS, days_after_ms=0),
        daily(*HOURS, days_after_ms=1001),
        replace(daily(*HOURS), has_hours=False),  # a table by day
        daily(*HOURS, complete_until=23, complete_only=True),
        daily(*(replace(each, day=None) for each in HOURS)),
    ],
)
def test_a_day_keeps_its_hours_until_it_is_time(shown: LakeView) -> None:
    assert plan_compaction(shown, NEXT_DAY).groups == ()


def test_a_day_may_wait_until_it_is_complete() -> None:
    assert planned(daily(*HOURS, complete_until=24, complete_only=True), NEXT_DAY) == [4]


def test_files_of_one_hour_are_joined_once_if_their_day_is_due() -> None:
    young = [hourly(30, added=i) for i in range(3)]
    plan = plan_compaction(daily(*HOURS, *(hourly(0, 11 + i) for i in range(3)), *young), NEXT_DAY)
    assert [(group.partition, group.coarse, len(group.paths)) for group in plan.groups] == [
        ("h30", False, 3),
        ("day 1970-01-01", True, 7),
    ]
    assert len(next_round(plan.groups)) == 1  # a commit has files of one partitioning
    assert plan.files_after == len(plan.groups)


def test_a_day_that_failed_is_left_out_and_a_chosen_one_need_not_rest() -> None:
    assert plan_compaction(daily(*HOURS), NEXT_DAY, {"day 1970-01-01"}).groups == ()
    late = daily(whole(0), hourly(9, added=NEXT_DAY))
    assert planned(late, NEXT_DAY) == []
    assert [
        len(group.paths) for group in plan_compaction(late, NEXT_DAY, chosen=ChosenFiles({0})).groups
    ] == [2]


@pytest.mark.parametrize("seed", range(20))
def test_joining_days_comes_to_an_end(seed: int) -> None:
    chance = random.Random(seed)
    files = [
        hourly(chance.randrange(72), chance.randrange(1, 120), added=i, older=chance.random() < 0.3)
        for i in range(60)
    ]
    shown = daily(*files)
    for number in range(2 * len(files) + 1):
        plan = plan_compaction(shown, 4 * DAY_MS)
        chosen = next_round(plan.groups)
        gone = {path for group in chosen for path in group.paths}
        if not gone:
            break
        new = [
            LakeFile(f"{number}/{i}", group.bytes, group.rows, group.partition, 0, day=group.day, coarse=True)
            for i, group in enumerate(chosen)
        ]
        shown = replace(shown, files=(*(f for f in shown.files if f.path not in gone), *new))
        assert sum(each.rows for each in shown.files) == sum(each.rows for each in files)
    assert not plan.groups
    assert not any(each.older and not each.coarse for each in shown.files)


def test_an_absurd_day_has_a_name() -> None:
    assert [day_name(day) for day in (-(10**7), 0, 10**7)] == [
        "day 0001-01-01",
        "day 1970-01-01",
        "day 9999-12-31",
    ]


def test_a_round_has_a_bound() -> None:
    small = [FileGroup("p", (str(i),), 1, 1) for i in range(ROUND_GROUPS + 1)]
    assert len(next_round(small)) == ROUND_GROUPS
    large = [FileGroup("p", (str(i),), ROUND_BYTES, 1) for i in range(3)]
    assert next_round(large) == (large[0],)  # one group at least
    assert next_round([]) == ()


def test_the_tables_properties_are_the_policy() -> None:
    assert policy_of({}, TABLE) == CompactionPolicy()
    found = policy_of(
        {ENABLED: "false", TARGET: "1000", MIN_FILES: "9", MIN_AGE: "5", DAYS_AFTER: "7"}, TABLE
    )
    assert found == CompactionPolicy(False, 1000, 9, 5, days_after_ms=7)
    assert found.small_bytes == 750
    with pytest.raises(ConfigurationError, match="is not a number"):
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
