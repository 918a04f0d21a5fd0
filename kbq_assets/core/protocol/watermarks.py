"""How far a partition was read, in time (docs/completeness.md).

Kept in the commit, in the swap that publishes: what a watermark says was read is in the commit beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kbq_assets.core.protocol.names import shard_of
from kbq_assets.core.protocol.offsets import TopicPartition

if TYPE_CHECKING:  # commits carry what is defined here
    from kbq_assets.core.protocol.commits import Commit, Window

#: How old a mark of a partition without new records may become. Its commit is swapped for this alone.
END_MARK_MS: Final = 600_000

Shard = tuple[str, int]


@dataclass(frozen=True)
class Watermark:
    """Times in ms since 1970, 0 where unknown, as in commits of older versions.

    ``event_ms`` is the highest business time committed, but no higher than the Kafka time of what came with it: a
    producer whose clock is ahead must not complete hours. ``rows_ms``: when the log end was asked for by the run that
    brought rows with a business time last, or the first ones. ``end_ms``: when it was asked for by the last run after
    which nothing was left to read.
    """

    event_ms: int = 0
    rows_ms: int = 0
    end_ms: int = 0

    def with_window(self, window: Window, asked_ms: int) -> Watermark:
        """After one more window. One without rows says nothing of business time, nor does one of error rows or of
        others that told none: their Kafka time may be far ahead of what is read next. Such rows alone are as good as
        none, so that a partition that has no others is judged by its log end."""
        newest = max((file.newest_event_ms for file in window.files), default=0)
        if not window.files or (newest <= 0 and self.rows_ms):
            return self
        highest = min(newest, window.newest_ms or newest, asked_ms or newest)
        return dataclasses.replace(
            self, event_ms=max(self.event_ms, highest), rows_ms=max(self.rows_ms, asked_ms)
        )

    def passed_ms(self, patience_ms: int, not_after_ms: int) -> int:
        """The business time that the partition has passed, 0 where unknown.

        Without new rows for ``patience_ms`` it is judged by its log end. ``not_after_ms`` is when the store says that
        the mark was written, at the latest: the clock of whoever asked may be ahead.
        """
        ended_ms = min(self.end_ms, not_after_ms)
        return max(self.event_ms, ended_ms) if ended_ms - self.rows_ms >= patience_ms else self.event_ms


class LogEnd(NamedTuple):
    """Where a partition of a plan ended: its position, the broker's end, and when it was last marked as read."""

    position: int
    until: int
    marked_ms: int = 0


def mark_ends(commit: Commit, ends: Mapping[TopicPartition, LogEnd], asked_ms: int) -> Commit:
    """Note for a commit's partitions that they are read to the ends that the broker told at ``asked_ms``."""
    changed = dict(commit.partitions)
    for number, state in commit.partitions.items():
        end, mark = ends.get(commit.topic_partition(number)), state.watermark
        if end is not None and end.until == state.next and state.stop is None and mark.end_ms < asked_ms:
            marked = dataclasses.replace(mark, end_ms=asked_ms)
            changed[number] = dataclasses.replace(state, watermark=marked)
    return dataclasses.replace(commit, partitions=changed) if asked_ms else commit


def due_shards(ends: Mapping[TopicPartition, LogEnd], asked_ms: int) -> Iterable[Shard]:
    """Commits with partitions that have nothing to read, and whose mark is old."""
    return sorted(
        {
            (tp.topic, shard_of(tp.partition))
            for tp, end in ends.items()
            if end.position == end.until and asked_ms - end.marked_ms >= END_MARK_MS
        }
    )
