"""Files of a lake table, and groups of files to merge into one file each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference

_MIB: Final = 1 << 20
_HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * _HOUR_MS
#: Table properties that set the policy.
ENABLED: Final = "kbq.compaction.enabled"
MIN_FILES: Final = "kbq.compaction.min-input-files"
MIN_AGE: Final = "kbq.compaction.min-age-ms"
DAYS_AFTER: Final = "kbq.compaction.days-after-ms"
TARGET: Final = "write.target-file-size-bytes"


@dataclass(frozen=True)
class CompactionPolicy:
    """When a partition is compacted: it has ``min_files`` small files and either its hour is complete, its newest file
    is ``min_age_ms`` old, or it has many small files. With ``complete_only``, only complete hours are compacted. A file
    below three quarters of ``target_bytes`` is small. ``days_after_ms`` after the end of a day, its files are also
    merged across hours and schema versions; 0: never."""

    enabled: bool = True
    target_bytes: int = 256 * _MIB
    min_files: int = 5
    min_age_ms: int = _HOUR_MS
    complete_only: bool = False
    days_after_ms: int = 0

    @property
    def small_bytes(self) -> int:
        """A file below this size is small."""
        return self.target_bytes * 3 // 4

    @property
    def many_files(self) -> int:
        """The number of small files that are compacted whatever their age."""
        return 10 * self.min_files


@dataclass(frozen=True)
class CompactionRule:
    """The options set by a table's topics. None and 0 leave an option to the table's properties."""

    enabled: bool | None = None
    complete_only: bool = False
    target_bytes: int = 0
    min_files: int = 0
    min_age_ms: int = 0
    days_after_ms: int = 0

    def over(self, policy: CompactionPolicy) -> CompactionPolicy:
        """A table's policy, overridden by this rule."""
        return CompactionPolicy(
            policy.enabled if self.enabled is None else self.enabled,
            self.target_bytes or policy.target_bytes,
            max(2, self.min_files) if self.min_files else policy.min_files,
            self.min_age_ms or policy.min_age_ms,
            self.complete_only or policy.complete_only,
            self.days_after_ms or policy.days_after_ms,
        )


def policy_of(properties: Mapping[str, str], table: TableReference) -> CompactionPolicy:
    """The policy from a table's properties. Raises ConfigurationError if one is not a number."""
    usual = CompactionPolicy()
    try:
        return CompactionPolicy(
            properties.get(ENABLED, "true").strip().lower() == "true",
            max(1, int(properties.get(TARGET, usual.target_bytes))),
            max(2, int(properties.get(MIN_FILES, usual.min_files))),
            int(properties.get(MIN_AGE, usual.min_age_ms)),
            days_after_ms=int(properties.get(DAYS_AFTER, usual.days_after_ms)),
        )
    except ValueError as error:
        raise ConfigurationError(
            f"{table}: a compaction property is not a number: {error}",
            next_step=f"correct {TARGET}, {MIN_FILES}, {MIN_AGE} or {DAYS_AFTER} of the table",
        ) from None


@dataclass(frozen=True)
class LakeFile:
    """A data file. ``partition`` identifies its partition. ``hour`` and ``day``, since 1970, are the last ones that its
    rows may have, None if the table has none. ``added_ms`` is the time of its snapshot, 0 if that has expired.
    ``coarse``: it has rows of all hours and schema versions of its day. ``older``: it lacks columns of the table."""

    path: str
    bytes: int
    rows: int
    partition: str
    added_ms: int
    hour: int | None = None
    day: int | None = None
    coarse: bool = False
    older: bool = False


@dataclass(frozen=True)
class LakeView:
    """A table's current snapshot. ``layout`` identifies its columns and partitioning. ``number`` is the number of its
    next compaction. ``left_alone`` is the reason that its files must not be compacted, "" if they may. ``has_hours``:
    its partitions are hours or schema versions of a day, so the files of a day can be merged."""

    table: TableReference
    snapshot: int
    layout: str
    number: int
    files: tuple[LakeFile, ...]
    policy: CompactionPolicy
    complete_until: int = 0
    left_alone: str = ""
    metadata: str = ""
    has_hours: bool = False


@dataclass(frozen=True)
class ChosenFiles:
    """Selects files of these days or hours since 1970. Hours do not select files of a whole day."""

    days: Collection[int] = ()
    hours: Collection[int] = ()

    def has(self, file: LakeFile) -> bool:
        return file.day in self.days or (file.hour in self.hours and not file.coarse)


@dataclass(frozen=True)
class FileGroup:
    """Files to merge into one, from one partition or, if the new file is ``coarse``, from one day. ``day`` is the day
    of their rows, None if the table has none. ``hours`` are their hours; in a table with only days, the last hour of
    the day."""

    partition: str
    paths: tuple[str, ...]
    bytes: int
    rows: int
    day: int | None = None
    coarse: bool = False
    hours: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompactionPlan:
    """The files of a table to merge."""

    table: TableReference
    groups: tuple[FileGroup, ...]
    files: int
    bytes: int
    left_alone: str = ""
    complete_until: int = 0

    @property
    def files_after(self) -> int:
        return self.files - self.reads_saved

    @property
    def reads_saved(self) -> int:
        """The number of files that a query of the whole table saves."""
        return sum(len(group.paths) - 1 for group in self.groups)

    @property
    def joined_days(self) -> int:
        """The number of days whose hours and schema versions are merged."""
        return len({group.day for group in self.groups if group.coarse})

    @property
    def rewritten_bytes(self) -> int:
        """Bytes to read; about as many are written."""
        return sum(group.bytes for group in self.groups)


@dataclass(frozen=True)
class RowsDigest:
    """The number of rows, and the sum of their hashes, which does not depend on their order."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: RowsDigest) -> RowsDigest:
        return RowsDigest(self.rows + other.rows, (self.hash + other.hash) % (1 << 64))


@dataclass(frozen=True)
class RewriteTask:
    """A group to rewrite, with all that a Spark task needs but no secrets. ``metadata`` is the file with the table's
    metadata. ``job_id`` and ``token`` name the new file, which leaves out ``erased`` rows."""

    table: TableReference
    metadata: str
    job_id: str
    token: str
    group: FileGroup
    erased: RowPlaces | None = None


@dataclass(frozen=True)
class Rewritten:
    """A group's new file; if ``path`` is "", ``failure`` is the reason. ``before`` digests the rows as read, without
    ``erased`` ones, ``after`` the rows as read back. ``gone``: an input file no longer exists."""

    task: RewriteTask
    path: str = ""
    bytes: int = 0
    before: RowsDigest = RowsDigest()
    after: RowsDigest = RowsDigest()
    failure: str = ""
    gone: bool = False
    erased: int = 0

    @property
    def difference(self) -> str:
        """The reason that the new file must not replace the old ones, "" if it may (PROTOCOL C4)."""
        if (rows := self.before.rows + self.erased) != self.task.group.rows:
            return f"its files have {counted(rows, 'row')}, but the table lists {self.task.group.rows}"
        if self.before != self.after:
            return f"{counted(self.before.rows, 'row')} went in and {self.after.rows} came out, or their values differ"
        return ""
