"""Units of extraction (the work of a task), and their outcomes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kbq_assets.core.protocol.commits import StagedFile, Stop, Window
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.ordering_options import HOUR
from kbq_assets.core.topics.topic_settings import TopicSettings


@dataclass(frozen=True)
class WindowLimits:
    """A window ends at the first of these limits. ``bytes`` count staged files. ``file_bytes`` ends a file within a
    window. ``late_before``: if a window is read again for one file, rows before this hour are late (O8)."""

    bytes: int = 512 * 1024 * 1024
    records: int = 5_000_000
    seconds: float = 300.0
    file_bytes: int = 256 * 1024 * 1024
    late_before: int = 0

    def of_topic(self, settings: TopicSettings) -> WindowLimits:
        """These limits, overridden by the topic's own. A window whose files have hours ends before a file is full."""
        size = settings.extraction.window_bytes or self.bytes
        return dataclasses.replace(
            self,
            bytes=min(size, self.file_bytes) if settings.ordering.order == HOUR else size,
            records=settings.extraction.window_records or self.records,
            seconds=settings.extraction.window_seconds or self.seconds,
        )


@dataclass(frozen=True)
class Copies:
    """Adjacent files of a backup, up to a position (PROTOCOL B9). ``leader_epoch`` is the epoch of the backup's last
    record."""

    files: tuple[StagedFile, ...]
    leader_epoch: int
    until: int


@dataclass(frozen=True)
class TaskTime:
    """Seconds for all units of a task, counted from ``handed_ms``. Units that would start later are not read."""

    seconds: float = math.inf
    #: when the driver handed out the task, by the driver's clock (0: count from the task's start)
    handed_ms: int = 0


@dataclass(frozen=True)
class Unit:
    """Consecutive windows of one partition, read by one task (PROTOCOL E3)."""

    range: OffsetRange
    epoch: int
    settings: TopicSettings
    #: the leader epoch of the last record, which is the one before ``epoch_until``; the positions from there to the
    #: range have no record. -1: retention deleted that record, so the range may have another epoch
    leader_epoch: int = -1
    epoch_until: int = -1
    #: windows that begin below this may have any share of bad records
    accept_errors_until: int = 0
    limits: WindowLimits = field(default_factory=WindowLimits)
    #: a slice read at the same time as earlier slices: the leader epoch before it is not known yet (PROTOCOL E4)
    ahead: bool = False
    #: how far the position is from being lost (core/extraction/backlog.py)
    headroom: float = 1.0
    #: reading ends after these seconds; a later unit continues there
    seconds: float = math.inf
    task: TaskTime = TaskTime()
    #: a task that read it died, so it shares no task until it is read
    alone: bool = False
    #: whether its records go to tables; if not, they go to the backup only, and all fields above describe the backup
    tables: bool = True
    #: the backup's epoch, if a unit for tables also copies its range to the backup (PROTOCOL B1); else 0
    backup_epoch: int = 0
    #: backup files to read instead of Kafka
    copies: Copies | None = None

    @property
    def lane(self) -> tuple[TopicPartition, bool]:
        """The key within which units are read in order: a partition, for its tables or for its backup only."""
        return self.range.topic_partition, self.tables

    @property
    def outputs(self) -> tuple[Unit, ...]:
        """The unit split by output: tables first."""
        if not self.backup_epoch:
            return (self,)
        return self, dataclasses.replace(self, tables=False, epoch=self.backup_epoch, backup_epoch=0)

    @property
    def read_epoch(self) -> int:
        """The log's leader epoch at the beginning of `read_range`, -1 if unknown."""
        return self.leader_epoch if self.epoch_until >= 0 else -1

    @property
    def read_range(self) -> OffsetRange:
        """The range to fetch. It begins where the leader epoch is known, because positions without a record may belong
        to a later epoch."""
        range_ = self.range
        if self.copies is not None or self.leader_epoch < 0 or not 0 <= self.epoch_until < range_.from_offset:
            return range_
        return OffsetRange(range_.topic_partition, self.epoch_until, range_.until_offset)


@dataclass(frozen=True)
class WorkerProcess:
    """The process that read a unit: its name, the unit's CPU seconds, and the process's peak memory."""

    name: str = ""
    core_seconds: float = 0.0
    memory_bytes: int = 0


class Outage(StrEnum):
    """Why a remote system failed a unit."""

    NONE = ""
    #: It was out of reach, so other units would fail too.
    UNAVAILABLE = "unavailable"
    #: It refuses this unit, which only a person can end.
    REFUSED = "refused"


@dataclass(frozen=True)
class UnitOutcome:
    """The result of a unit. Stops and failures are values, not task failures (PROTOCOL E3).

    An outcome without windows, stop, failure or ``superseded`` means that the task ran out of time and read nothing.
    """

    unit: Unit
    #: uploaded, not published yet; in order from the unit's first position
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    #: an error after the windows; the next run reads the rest
    failure: str = ""
    #: another attempt got further
    superseded: bool = False
    seconds: float = 0.0
    #: the first records' leader epoch; -1 if there are no records or it is unknown
    first_leader_epoch: int = -1
    #: when each window's first batch arrived, by the worker's clock
    opened_ms: tuple[int, ...] = ()
    process: WorkerProcess = WorkerProcess()
    #: new schema variants
    evolved: tuple[Evolution, ...] = ()
    #: fingerprints of the schemas that it used, by schema id
    schema_ids: Mapping[int, str] = field(default_factory=dict)
    outage: Outage = Outage.NONE
    #: whether its task died: the worker was killed or ran out of memory
    has_died: bool = False
    #: the version of the erasure log under which it was read
    erasures: int = 0
    #: the backup's outcome, if the unit had two outputs
    backup: UnitOutcome | None = None

    @property
    def epoch_until(self) -> int:
        """The position after the last record; 0 without records."""
        return max((w.epoch_until for w in self.windows), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether it ended before the end of its range for another reason than time."""
        return bool(self.stop or self.failure or self.superseded)

    @property
    def backup_follows(self) -> bool:
        """Whether the backup of a unit with two outputs reached the same position as its tables."""
        return self.backup is not None and not self.backup.has_ended and self.backup.position == self.position

    @property
    def position(self) -> int:
        """The position after the last window."""
        return self.windows[-1].until if self.windows else self.unit.range.from_offset
