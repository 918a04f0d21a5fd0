"""Decides which small files to merge: a pure function of a table's files, its policy and the time (PROTOCOL,
Compaction)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Final

from kbq_assets.core.compaction.model import (
    DAY_MS,
    ChosenFiles,
    CompactionPlan,
    CompactionPolicy,
    FileGroup,
    LakeFile,
    LakeView,
)

#: The most that one commit replaces. This bounds the cost of a conflict, and the files that a crash leaves behind.
ROUND_BYTES: Final = 2 << 30
ROUND_GROUPS: Final = 64
_EPOCH: Final = date(1970, 1, 1).toordinal()


def plan_compaction(
    view: LakeView,
    now_ms: int,
    without: Collection[str] = (),
    chosen: ChosenFiles | None = None,
    kept: Collection[FileGroup] = (),
) -> CompactionPlan:
    """The groups of files to merge, oldest partition first, whole days last (C9). Skips partitions in ``without``. If
    files are ``chosen``, only these are merged, and two small files of a partition are enough. ``kept`` groups of an
    earlier plan come first, if the table still has all of their files. Every commit leaves fewer files, or fewer files
    of hours, so plans eventually become empty."""
    total = sum(file.bytes for file in view.files)
    why = view.left_alone or ("" if view.policy.enabled else "compaction is off for this table")
    if why:
        return CompactionPlan(view.table, (), len(view.files), total, why, view.complete_until)
    listed = {file.path for file in view.files}
    first = [group for group in kept if listed.issuperset(group.paths)]
    taken = {path for group in first for path in group.paths}
    by_day = chosen is None or not chosen.hours
    partitions: dict[str, list[LakeFile]] = defaultdict(list)
    ended: dict[int, list[LakeFile]] = defaultdict(list)
    for file in view.files:
        if file.path in taken or (chosen is not None and not chosen.has(file)):
            continue
        if file.day is not None and (file.coarse or (by_day and _is_to_join(file.day, view, now_ms))):
            ended[file.day].append(file)
        elif file.bytes < view.policy.small_bytes:
            partitions[file.partition].append(file)
    groups = [
        group
        for partition, small in sorted(partitions.items())
        if partition not in without and (chosen is not None or _is_due(small, view, now_ms))
        for group in _packed(small, view.policy)
    ]
    groups += [
        group
        for day, files in sorted(ended.items())
        if day_name(day) not in without
        for group in _of_day(day, files, view.policy, now_ms, chosen is not None)
    ]
    groups = [*first, *groups]
    return CompactionPlan(
        view.table, tuple(groups), len(view.files), total, complete_until=view.complete_until
    )


def next_round(groups: Sequence[FileGroup]) -> tuple[FileGroup, ...]:
    """The first groups of a plan that fit in one commit. A commit only has files of one partitioning."""
    chosen: list[FileGroup] = []
    size = 0
    for group in groups[:ROUND_GROUPS]:
        size += group.bytes
        if chosen and (size > ROUND_BYTES or group.coarse != chosen[0].coarse):
            break
        chosen.append(group)
    return tuple(chosen)


def day_name(day: int) -> str:
    """The name of a whole day's files in reports."""
    return f"day {date.fromordinal(min(max(1, _EPOCH + day), date.max.toordinal()))}"


def _is_to_join(day: int, view: LakeView, now_ms: int) -> bool:
    """Whether a day ended long enough ago to merge its hours and schema versions (C9)."""
    policy = view.policy
    if not view.has_hours or not policy.days_after_ms or (day + 1) * DAY_MS + policy.days_after_ms > now_ms:
        return False
    return not policy.complete_only or view.complete_until >= (day + 1) * 24


def _of_day(
    day: int, files: Sequence[LakeFile], policy: CompactionPolicy, now_ms: int, is_chosen: bool
) -> Iterator[FileGroup]:
    """Merge small files of a day, and rewrite files of older schema versions. Late rows wait until they fill several
    files, because each merge rewrites a large file."""
    wanted = [file for file in files if file.bytes < policy.small_bytes or (file.older and not file.coarse)]
    is_first = not any(file.coarse for file in files)
    has_rested = all(file.added_ms <= now_ms - policy.min_age_ms for file in wanted)
    if is_chosen or (has_rested and (is_first or len(wanted) >= policy.min_files)):
        for group in _packed(wanted, policy, single=True):
            yield replace(group, partition=day_name(day), coarse=True)


def _is_due(small: Sequence[LakeFile], view: LakeView, now_ms: int) -> bool:
    policy = view.policy
    if len(small) < policy.min_files:
        return False
    hour = small[0].hour
    is_complete = hour is not None and hour < view.complete_until
    if policy.complete_only and hour is not None:
        return is_complete
    is_old = max(file.added_ms for file in small) <= now_ms - policy.min_age_ms
    return is_complete or is_old or len(small) >= policy.many_files


def _packed(
    chosen: Sequence[LakeFile], policy: CompactionPolicy, *, single: bool = False
) -> Iterator[FileGroup]:
    """Groups of files up to the target size, in the order of hours, then of loads. A single file is not rewritten
    unless ``single`` is set and it has the columns of an older schema."""
    taken: list[LakeFile] = []
    size = 0

    def group() -> Iterator[FileGroup]:
        if len(taken) > 1 or (single and taken and taken[0].older and not taken[0].coarse):
            paths = tuple(file.path for file in taken)
            rows, hours = sum(file.rows for file in taken), {file.hour for file in taken if not file.coarse}
            known = tuple(sorted(hour for hour in hours if hour is not None))
            yield FileGroup(taken[0].partition, paths, size, rows, taken[0].day, hours=known)

    for file in sorted(chosen, key=lambda file: (file.hour or 0, file.added_ms, file.path)):
        if taken and size + file.bytes > policy.target_bytes:
            yield from group()
            taken, size = [], 0
        taken.append(file)
        size += file.bytes
    yield from group()
