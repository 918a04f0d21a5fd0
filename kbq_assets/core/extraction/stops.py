"""Stops as a plan reports them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction import restarts
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import StopReason, stop_commands
from kbq_assets.core.topics.source_list import SourceEntry, SourceLines
from kbq_assets.core.topics.topic_settings import TopicSettings

_RANGE: Final = re.compile(r"\[\d+, \d+\): (.*)", re.DOTALL)


@dataclass(frozen=True)
class PartitionStop:
    """A partition, or a whole topic (partition -1), that waits for an operator."""

    topic_partition: TopicPartition
    reason: str
    message: str
    #: each of them resumes it
    commands: tuple[str, ...]
    #: automatic retries that failed
    tries: int = 0
    #: when the next automatic retry is due, by the store's time (0: never)
    next_try_ms: int = 0

    @property
    def text(self) -> str:
        """The message without the partition at its beginning."""
        return self.message.removeprefix(f"{self.topic_partition} ")

    @property
    def cause(self) -> str:
        """The text without the range, to group partitions that stopped for the same cause."""
        found = _RANGE.fullmatch(self.text)
        return found[1] if found else self.text


def commit_stop(topic: str, problem: KbqError | None, missing: Collection[int]) -> PartitionStop | None:
    """The stop of a topic if its commit cannot be read (``problem``) or lacks shards (E1); None if it is fine."""
    if problem is not None:
        reason, message = StopReason.COMMIT_UNREADABLE, problem.message
        step = problem.next_step or "restore the commit object, then kbq extract"
    elif missing:
        reason = StopReason.COMMIT_MISSING
        message = f"the commit of {topic} is registered but missing (shards {list(missing)})"
        step = "restore commits/ from a backup or an earlier version"
    else:
        return None
    return PartitionStop(TopicPartition(topic, -1), reason, message, (step,))


def entry_stops(entries: Iterable[SourceEntry], topics: Collection[str]) -> Iterator[PartitionStop]:
    """A stop for each of the ``topics`` whose entry has a mistake. If a wrong entry applies to none of them, its stop
    has the entry's own name."""
    lines = SourceLines(entries)
    if not lines.mistaken:
        return
    decided = {topic: entry for topic, entry in lines.entries_of(topics).items() if entry.mistake is not None}
    idle = {entry.pattern: entry for entry in lines.mistaken if entry not in decided.values()}
    for topic, entry in sorted({**idle, **decided}.items()):
        if entry.mistake is not None:
            tp, fix = TopicPartition(topic, -1), (entry.mistake.next_step,)
            yield PartitionStop(tp, StopReason.WRONG_ENTRY, entry.mistake.message, fix)


def gone_stops(
    entries: Iterable[SourceEntry], read: Collection[str], described: Collection[str]
) -> Iterator[PartitionStop]:
    """A stop for each topic that was ``read`` before and still has an entry, but that the broker no longer
    ``described``: it was deleted, or KBQ lost its permission."""
    if not (missing := set(read).difference(described)):
        return
    for topic, entry in SourceLines(entries).entries_of(missing).items():
        if entry.mistake is None:
            message = (
                f"the broker shows no topic {topic}, which was read before: it was deleted, or is not allowed"
            )
            on_purpose = f"kbq resume --topic {topic} --gone"
            if entry.pattern == topic:
                on_purpose = f"remove the entry of {topic}"
            steps = ("create it or allow it again, then kbq extract", on_purpose)
            yield PartitionStop(TopicPartition(topic, -1), StopReason.TOPIC_GONE, message, steps)


def refused_stop(topic: str, what: str, error: KbqError) -> PartitionStop:
    """The stop of a topic while the store refuses one of its objects."""
    step = error.next_step or "see the log of this run"
    return PartitionStop(TopicPartition(topic, -1), StopReason.FAILED, f"{what}: {error.message}", (step,))


def stop_of(settings: TopicSettings, stop: Stop, tp: TopicPartition) -> PartitionStop:
    """A recorded stop, with its commands and its next retry."""
    next_ms = restarts.next_try_ms(stop.tries, stop.last_ms) if restarts.may_restart(stop, settings) else 0
    return PartitionStop(tp, stop.reason, stop.message, stop_commands(stop.reason, tp), stop.tries, next_ms)
