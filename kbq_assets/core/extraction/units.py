"""Units of extraction: what a task is told, and what it returns."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from kbq_assets.core.protocol.commits import Stop, Window
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.topic_settings import TopicSettings


@dataclass(frozen=True)
class WindowLimits:
    """A window ends at the first of these. ``bytes`` are of staged files; ``file_bytes`` ends a file within it."""

    bytes: int = 512 * 1024 * 1024
    records: int = 5_000_000
    seconds: float = 300.0
    file_bytes: int = 256 * 1024 * 1024

    def of_topic(self, settings: TopicSettings) -> WindowLimits:
        """With what a topic says about its own windows."""
        return dataclasses.replace(
            self,
            bytes=settings.extraction.window_bytes or self.bytes,
            records=settings.extraction.window_records or self.records,
            seconds=settings.extraction.window_seconds or self.seconds,
        )


@dataclass(frozen=True)
class Unit:
    """A chain of windows of one partition, read by one task (PROTOCOL E3).

    Windows that begin before ``accept_errors_until`` may hold any share of bad records. ``ahead``: a slice that is read
    while those before it are, so that no leader epoch is known to ask the broker about (PROTOCOL E4). ``headroom`` is
    how far the position is from being lost (`core.backlog.headroom`). ``leader_epoch`` is that of the last record
    before ``epoch_until``; what lies between there and the range held no record. After ``seconds`` of reading it ends
    early, behind what it has: a later unit goes on there. ``task_seconds``: how long its task has for all its units
    from ``handed_ms`` on, when the driver's clock handed it out (0: from its start on); those whose turn comes after
    that are not read.
    """

    range: OffsetRange
    epoch: int
    settings: TopicSettings
    leader_epoch: int = -1
    epoch_until: int = 0
    accept_errors_until: int = 0
    limits: WindowLimits = field(default_factory=WindowLimits)
    ahead: bool = False
    headroom: float = 1.0
    seconds: float = math.inf
    task_seconds: float = math.inf
    handed_ms: int = 0

    @property
    def read_range(self) -> OffsetRange:
        """What to ask the broker for. It judges where the log of a leader epoch ends, and positions without a record
        may belong to a later one: so reading begins where the epoch is known."""
        range_ = self.range
        if self.leader_epoch < 0 or not 0 < self.epoch_until < range_.from_offset:
            return range_
        return OffsetRange(range_.topic_partition, self.epoch_until, range_.until_offset)


@dataclass(frozen=True)
class UnitOutcome:
    """What became of a unit. Lost and bad partitions are values, not task failures (PROTOCOL E3).

    ``windows`` are uploaded and wait to be published, in order from the unit's first position. ``failure`` is a
    transient error after them: the rest is read by the next run. ``superseded``: another attempt was further. With none
    of these nothing was read, as the task's time was up: a later unit does it. ``is_unavailable``: the failure is of
    something out of reach.
    ``first_leader_epoch`` is that of the first records, -1 where none are or it is unknown. ``core_seconds`` are
    processor time of the task. ``opened_ms``: when each window's first batch came, by the worker's clock. ``worker`` is
    the process that read it, ``memory_bytes`` the most that one ever held. ``evolved``: new columns and tables for
    schemas that contradict theirs.
    """

    unit: Unit
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    failure: str = ""
    superseded: bool = False
    seconds: float = 0.0
    first_leader_epoch: int = -1
    core_seconds: float = 0.0
    opened_ms: tuple[int, ...] = ()
    worker: str = ""
    memory_bytes: int = 0
    evolved: tuple[Evolution, ...] = ()
    is_unavailable: bool = False

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch that is known where the unit got to."""
        return max((self.unit.leader_epoch, *(w.leader_epoch for w in self.windows)))

    @property
    def epoch_until(self) -> int:
        """The position after the last record; 0 without any."""
        return max((w.epoch_until for w in self.windows), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether something other than the range's end ended it."""
        return bool(self.stop or self.failure or self.superseded)

    @property
    def position(self) -> int:
        """Where the unit got to."""
        return self.windows[-1].until if self.windows else self.unit.range.from_offset
