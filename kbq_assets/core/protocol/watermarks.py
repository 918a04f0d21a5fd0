"""Watermarks: the business time up to which a partition was read (docs/completeness.md).

The swap that publishes windows also stores the watermark, so the commit has all records that the watermark covers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import shard_of
from kbq_assets.core.protocol.offsets import TopicPartition

if TYPE_CHECKING:  # commits carry what is defined here
    from kbq_assets.core.protocol.commits import Commit, Window

#: Maximum age of the mark of a partition without new records. After that, a swap renews only the mark.
END_MARK_MS: Final = 600_000
_HOUR_MS: Final = 3_600_000

Shard = tuple[str, int]


@dataclass(frozen=True)
class Watermark(Stored):
    """Times in ms since 1970; 0 if unknown, as in commits of older versions."""

    #: highest business time committed, capped by the Kafka time, so that a producer's fast clock cannot complete hours
    event_ms: int = 0
    #: when the last run with rows that have a business time (or the first run with any rows) queried the log end
    rows_ms: int = 0
    #: when the last run that left nothing unread queried the log end
    end_ms: int = 0

    def with_window(self, window: Window, asked_ms: int) -> Watermark:
        """The watermark after one more window. A window without business times (no rows, only error rows or tombstones)
        changes nothing, because its Kafka time may be far ahead of the next records. Only the first such rows set
        ``rows_ms``, so that the log end decides for a partition without other rows."""
        newest = max((file.events.newest_ms for file in window.files), default=0)
        if not window.files or (newest <= 0 and self.rows_ms):
            return self
        highest = min(newest, window.newest_ms or newest, asked_ms or newest)
        return dataclasses.replace(
            self, event_ms=max(self.event_ms, highest), rows_ms=max(self.rows_ms, asked_ms)
        )

    def passed_ms(self, patience_ms: int, not_after_ms: int) -> int:
        """The business time that the partition has passed, 0 if unknown. If there were no new rows for ``patience_ms``,
        the log end decides. ``not_after_ms`` is when the mark was written, by the store's time. It caps times from a
        fast clock.
        """
        ended_ms = min(self.end_ms, not_after_ms)
        return max(self.event_ms, ended_ms) if ended_ms - self.rows_ms >= patience_ms else self.event_ms

    def next_hour_ms(self, patience_ms: int) -> int:
        """The expected time at which the partition passes the end of its hour by ``patience_ms``; 0 if unknown. Assumes
        that business time advances as fast as the clock."""
        passed_ms = self.passed_ms(patience_ms, self.end_ms)
        known_ms = self.end_ms if self.end_ms - self.rows_ms >= patience_ms else self.rows_ms
        return known_ms + _HOUR_MS - (passed_ms - patience_ms) % _HOUR_MS if passed_ms else 0


class LogEnd(NamedTuple):
    """A partition's position, the broker's end, and when the partition was last marked as read to its end."""

    position: int
    until: int
    marked_ms: int = 0


def mark_ends(commit: Commit, ends: Mapping[TopicPartition, LogEnd], asked_ms: int) -> Commit:
    """Mark partitions that are read to the ends that the broker reported at ``asked_ms``."""
    changed = dict(commit.partitions)
    for number, state in commit.partitions.items():
        end, mark = ends.get(commit.topic_partition(number)), state.watermark
        if end is not None and end.until == state.next and state.stop is None and mark.end_ms < asked_ms:
            marked = dataclasses.replace(mark, end_ms=asked_ms)
            changed[number] = dataclasses.replace(state, watermark=marked)
    return dataclasses.replace(commit, partitions=changed) if asked_ms else commit


def due_shards(ends: Mapping[TopicPartition, LogEnd], asked_ms: int) -> Iterable[Shard]:
    """Commits with partitions that have nothing to read and whose mark is old."""
    return sorted(
        {
            (tp.topic, shard_of(tp.partition))
            for tp, end in ends.items()
            if end.position == end.until and asked_ms - end.marked_ms >= END_MARK_MS
        }
    )
