"""Which small files become one: a pure function of a table's files, its policy and the time (PROTOCOL, Compaction)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kbq_assets.core.compaction.model import CompactionPlan, CompactionPolicy, FileGroup, LakeFile, LakeView

#: One commit replaces so much at most: what a conflict costs, and what a crash leaves behind, has a bound.
ROUND_BYTES: Final = 2 << 30
ROUND_GROUPS: Final = 64


def plan_compaction(
    view: LakeView,
    now_ms: int,
    without: Collection[str] = (),
    days: Collection[int] | None = None,
    kept: Collection[FileGroup] = (),
) -> CompactionPlan:
    """The groups of a table whose files become one each, oldest partition first. ``without`` are partitions to leave
    out. With ``days``, only files of these are joined, and two small files of a partition are enough. ``kept``
    groups of an earlier plan come first, if the table still has all of their files. A group has two files or more, so
    every commit leaves fewer files, and a plan ends as empty."""
    total = sum(file.bytes for file in view.files)
    why = view.left_alone or ("" if view.policy.enabled else "compaction is off for this table")
    if why:
        return CompactionPlan(view.table, (), len(view.files), total, why)
    listed = {file.path for file in view.files}
    first = [group for group in kept if listed.issuperset(group.paths)]
    taken = {path for group in first for path in group.paths}
    partitions: dict[str, list[LakeFile]] = defaultdict(list)
    for file in view.files:
        if file.path in taken or (days is not None and file.day not in days):
            continue
        if file.bytes < view.policy.small_bytes and file.partition not in without:
            partitions[file.partition].append(file)
    groups = [
        group
        for _, small in sorted(partitions.items())
        if days is not None or _is_due(small, view, now_ms)
        for group in _packed(small, view.policy)
    ]
    return CompactionPlan(view.table, (*first, *groups), len(view.files), total)


def next_round(groups: Sequence[FileGroup]) -> tuple[FileGroup, ...]:
    """The first groups of a plan, as many as one commit replaces."""
    chosen: list[FileGroup] = []
    size = 0
    for group in groups[:ROUND_GROUPS]:
        size += group.bytes
        if chosen and size > ROUND_BYTES:
            break
        chosen.append(group)
    return tuple(chosen)


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


def _packed(small: Sequence[LakeFile], policy: CompactionPolicy) -> Iterator[FileGroup]:
    """Files in the order in which they were added, up to the target size together."""
    taken: list[LakeFile] = []
    size = 0
    for file in sorted(small, key=lambda file: (file.added_ms, file.path)):
        if taken and size + file.bytes > policy.target_bytes:
            yield from _group(taken)
            taken, size = [], 0
        taken.append(file)
        size += file.bytes
    yield from _group(taken)


def _group(files: Sequence[LakeFile]) -> Iterator[FileGroup]:
    if len(files) > 1:
        yield FileGroup(
            files[0].partition,
            tuple(file.path for file in files),
            sum(file.bytes for file in files),
            sum(file.rows for file in files),
            files[0].day,
        )
