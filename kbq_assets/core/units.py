"""Units of extraction: what a task is told, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbq_assets.core.commits import Stop, Window
from kbq_assets.core.offsets import OffsetRange
from kbq_assets.core.topics import TopicSettings


@dataclass(frozen=True)
class WindowLimits:
    """A window ends at the first of these. ``bytes`` are of staged files; ``file_bytes`` ends a file within it."""

    bytes: int = 512 * 1024 * 1024
    records: int = 5_000_000
    seconds: float = 300.0
    file_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True)
class Unit:
    """A chain of windows of one partition, read by one task (PROTOCOL E3).

    Windows that begin before ``accept_errors_until`` may hold any share of bad records.
    """

    range: OffsetRange
    epoch: int
    settings: TopicSettings
    leader_epoch: int = -1
    accept_errors_until: int = 0
    limits: WindowLimits = field(default_factory=WindowLimits)


@dataclass(frozen=True)
class UnitOutcome:
    """What became of a unit. Lost and bad partitions are values, not task failures (PROTOCOL E3).

    ``windows`` are uploaded and wait to be published, in order from the unit's first position. ``failure`` is a
    transient error after them: the rest is read by the next run. ``superseded``: another attempt was further.
    """

    unit: Unit
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    failure: str = ""
    superseded: bool = False
    seconds: float = 0.0

    @property
    def position(self) -> int:
        """Where the unit got to."""
        return self.windows[-1].until if self.windows else self.unit.range.from_offset

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the unit is left to read in this run."""
        ended = bool(self.stop or self.failure or self.superseded)
        return ended or self.position >= self.unit.range.until_offset
