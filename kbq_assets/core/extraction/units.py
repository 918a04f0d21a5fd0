"""Units of extraction: a task's work, and its outcome."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.commits import StagedFile, Stop, Window
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.ordering_options import HOUR
from kbq_assets.core.topics.topic_settings import TopicSettings


@dataclass(frozen=True)
class WindowLimits:
    """A window ends at the first of these limits. ``bytes`` count staged files; ``file_bytes`` ends a file within
    it. ``late_before``: in a window that is read again for one file, rows of hours before this one are late (O8)."""

    bytes: int = 512 * 1024 * 1024
    records: int = 5_000_000
    seconds: float = 300.0
    file_bytes: int = 256 * 1024 * 1024
    late_before: int = 0

    def of_topic(self, settings: TopicSettings) -> WindowLimits:
        """With a topic's own limits, where it has them. A window whose files have hours ends before a file is full."""
        size = settings.extraction.window_bytes or self.bytes
        return dataclasses.replace(
            self,
            bytes=min(size, self.file_bytes) if settings.ordering.order == HOUR else size,
            records=settings.extraction.window_records or self.records,
            seconds=settings.extraction.window_seconds or self.seconds,
        )


@dataclass(frozen=True)
class Copies:
    """Files of a backup that adjoin, up to a position (PROTOCOL B9). ``leader_epoch`` is that of the backup's last
    record."""

    files: tuple[StagedFile, ...]
    leader_epoch: int
    until: int


@dataclass(frozen=True)
class TaskTime:
    """Seconds for all units of a task, from ``handed_ms`` on: units whose turn comes later are not read."""

    seconds: float = math.inf
    #: when the driver handed the task out, by its clock (0: count from the task's start)
    handed_ms: int = 0


@dataclass(frozen=True)
class Unit:
    """Consecutive windows of one partition, read by one task (PROTOCOL E3)."""

    range: OffsetRange
    epoch: int
    settings: TopicSettings
    #: that of the last record before ``epoch_until``, whose positions up to the range have no record; -1: retention
    #: deleted it, so the range may have another epoch
    leader_epoch: int = -1
    epoch_until: int = -1
    #: windows that begin below this may have any share of bad records
    accept_errors_until: int = 0
    limits: WindowLimits = field(default_factory=WindowLimits)
    #: a slice that is read while earlier slices are: no leader epoch is known to ask the broker about (PROTOCOL E4)
    ahead: bool = False
    #: how far the position is from being lost (core/extraction/backlog.py)
    headroom: float = 1.0
    #: reading ends after this long; a later unit continues there
    seconds: float = math.inf
    task: TaskTime = TaskTime()
    #: a task that read it died: it shares no task until it is read
    alone: bool = False
    #: whether its records go to tables; else to the backup alone, and everything above is that of the backup
    tables: bool = True
    #: the epoch of the backup, if a unit for tables copies its range too (PROTOCOL B1); 0: it does not
    backup_epoch: int = 0
    #: where it is read from, if not from Kafka
    copies: Copies | None = None

    @property
    def lane(self) -> tuple[TopicPartition, bool]:
        """The key of reading in order: a partition, for its tables or for its backup alone."""
        return self.range.topic_partition, self.tables

    @property
    def outputs(self) -> tuple[Unit, ...]:
        """The unit as each of its outputs sees it: tables first."""
        if not self.backup_epoch:
            return (self,)
        return self, dataclasses.replace(self, tables=False, epoch=self.backup_epoch, backup_epoch=0)

    @property
    def read_epoch(self) -> int:
        """The leader epoch that the log has where `read_range` begins, -1 if unknown."""
        return self.leader_epoch if self.epoch_until >= 0 else -1

    @property
    def read_range(self) -> OffsetRange:
        """The range to fetch. It begins where the leader epoch is known, as positions without a record may belong to a
        later epoch."""
        range_ = self.range
        if self.copies is not None or self.leader_epoch < 0 or not 0 <= self.epoch_until < range_.from_offset:
            return range_
        return OffsetRange(range_.topic_partition, self.epoch_until, range_.until_offset)


@dataclass(frozen=True)
class WorkerProcess:
    """The process that read a unit: its name, the unit's processor time, the most memory that it ever held."""

    name: str = ""
    core_seconds: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class UnitOutcome:
    """The result of a unit. Stops and failures are values, not task failures (PROTOCOL E3).

    Without windows, stop, failure or ``superseded`` nothing was read, because the task's time was up.
    """

    unit: Unit
    #: uploaded, not published yet; in order from the unit's first position
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    #: a transient error after the windows; the next run reads the rest
    failure: str = ""
    #: another attempt was further
    superseded: bool = False
    seconds: float = 0.0
    #: that of the first records; -1 if there are none or it is unknown
    first_leader_epoch: int = -1
    #: when each window's first batch arrived, by the worker's clock
    opened_ms: tuple[int, ...] = ()
    process: WorkerProcess = WorkerProcess()
    #: new schema variants
    evolved: tuple[Evolution, ...] = ()
    #: fingerprints of the schemas that it used
    schema_ids: Mapping[int, str] = field(default_factory=dict)
    #: the failure is of a remote system out of reach
    is_unavailable: bool = False
    #: the failure is of its task, which died: its worker was killed, or ran out of memory
    has_died: bool = False
    #: the version of the erasure log that it was read with
    erasures: int = 0
    #: that of the backup, if the unit had two outputs
    backup: UnitOutcome | None = None

    @property
    def epoch_until(self) -> int:
        """The position after the last record; 0 without records."""
        return max((w.epoch_until for w in self.windows), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether it ended before its range did, and not for lack of time."""
        return bool(self.stop or self.failure or self.superseded)

    @property
    def backup_follows(self) -> bool:
        """Whether the backup of a unit with two outputs is where its tables are."""
        return self.backup is not None and not self.backup.has_ended and self.backup.position == self.position

    @property
    def position(self) -> int:
        """The position after the last window."""
        return self.windows[-1].until if self.windows else self.unit.range.from_offset
