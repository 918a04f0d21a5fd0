"""Files of a lake table, and the groups of them that become one file each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference

_MIB: Final = 1 << 20
_HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * _HOUR_MS
#: Properties of a table that set its policy.
ENABLED: Final = "kbq.compaction.enabled"
MIN_FILES: Final = "kbq.compaction.min-input-files"
MIN_AGE: Final = "kbq.compaction.min-age-ms"
DAYS_AFTER: Final = "kbq.compaction.days-after-ms"
TARGET: Final = "write.target-file-size-bytes"


@dataclass(frozen=True)
class CompactionPolicy:
    """When a partition is compacted: ``min_files`` small files, and its hour is complete, or its newest file has
    ``min_age_ms``, or small files are many. A file below three quarters of ``target_bytes`` is small. With
    ``complete_only``, no age or number is enough. ``days_after_ms`` after the end of a day, its files of all hours and
    schema versions are joined too; 0 never joins them."""

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
        """So many small files are compacted, however young they are."""
        return 10 * self.min_files


@dataclass(frozen=True)
class CompactionRule:
    """The options that the topics of a table set: None and 0 leave one to the table's properties."""

    enabled: bool | None = None
    complete_only: bool = False
    target_bytes: int = 0
    min_files: int = 0
    min_age_ms: int = 0
    days_after_ms: int = 0

    def over(self, policy: CompactionPolicy) -> CompactionPolicy:
        """A table's policy with this rule."""
        return CompactionPolicy(
            policy.enabled if self.enabled is None else self.enabled,
            self.target_bytes or policy.target_bytes,
            max(2, self.min_files) if self.min_files else policy.min_files,
            self.min_age_ms or policy.min_age_ms,
            self.complete_only or policy.complete_only,
            self.days_after_ms or policy.days_after_ms,
        )


def policy_of(properties: Mapping[str, str], table: TableReference) -> CompactionPolicy:
    """The policy in a table's properties. Raises ConfigurationError for one that is no number."""
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
            f"{table}: a property of its compaction is no number: {error}",
            next_step=f"correct {TARGET}, {MIN_FILES}, {MIN_AGE} or {DAYS_AFTER} of the table",
        ) from None


@dataclass(frozen=True)
class LakeFile:
    """A data file. ``partition`` identifies its partition, ``hour`` and ``day`` are the last ones since 1970 that
    its rows may be of, None if the table has none. ``added_ms`` is the time of its snapshot, 0 if that has expired.
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
    """A table's current snapshot. ``layout`` identifies its columns and partitioning. ``number`` is that of its next
    compaction. ``left_alone`` says why no file of it may be compacted, "" if files may. ``has_hours``: its partitions
    are hours or schema versions of a day, so the files of a day can be joined."""

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
    """Files of these days, or of these hours, since 1970; of an hour no file with a whole day."""

    days: Collection[int] = ()
    hours: Collection[int] = ()

    def has(self, file: LakeFile) -> bool:
        return file.day in self.days or (file.hour in self.hours and not file.coarse)


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition, or of a day if the new one is ``coarse``, that become one. ``day`` is that of their rows,
    None if the table has none, and ``hours`` are theirs, each a day's last if the table has days alone."""

    partition: str
    paths: tuple[str, ...]
    bytes: int
    rows: int
    day: int | None = None
    coarse: bool = False
    hours: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompactionPlan:
    """The files of a table that a compaction joins."""

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
        """How many fewer files a query of the whole table opens."""
        return sum(len(group.paths) - 1 for group in self.groups)

    @property
    def joined_days(self) -> int:
        """Days whose hours and schema versions are joined."""
        return len({group.day for group in self.groups if group.coarse})

    @property
    def rewritten_bytes(self) -> int:
        """Bytes that are read, and about as many written."""
        return sum(group.bytes for group in self.groups)


@dataclass(frozen=True)
class RowsDigest:
    """How many rows there are, and the sum of their hashes: the same in any order."""

    rows: int = 0
    hash: int = 0

    def __add__(self, other: RowsDigest) -> RowsDigest:
        return RowsDigest(self.rows + other.rows, (self.hash + other.hash) % (1 << 64))


@dataclass(frozen=True)
class RewriteTask:
    """A group to rewrite: what a Spark task needs, and no secret. ``metadata`` is the file with the table's metadata;
    ``job_id`` and ``token`` name the new file, which gets no ``erased`` rows."""

    table: TableReference
    metadata: str
    job_id: str
    token: str
    group: FileGroup
    erased: RowPlaces | None = None


@dataclass(frozen=True)
class Rewritten:
    """A group's new file, "" if there is none: then ``failure`` says why. ``before`` are the rows as they were read,
    without ``erased`` ones, ``after`` as they are read back. ``gone``: an input file does not exist any more."""

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
        """Why the new file may not replace the old ones, "" if it may (PROTOCOL C4)."""
        if (rows := self.before.rows + self.erased) != self.task.group.rows:
            return f"its files have {rows} rows, but the table lists {self.task.group.rows}"
        if self.before != self.after:
            return f"{self.before.rows} rows went in and {self.after.rows} came out, or their values differ"
        return ""
