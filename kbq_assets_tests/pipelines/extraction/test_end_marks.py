"""Partitions with nothing to read are marked in parallel, in bounded time, longest wait first."""

from __future__ import annotations

import threading
import time

from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import END_MARK_MS, LogEnd, Watermark
from kbq_assets.pipelines.extraction.end_marks import mark_idle
from kbq_assets.pipelines.protocol.state import read
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

NOW_MS = 100 * END_MARK_MS


class SlowStore(FaultyMemoryStore):
    """Each swap takes a second of the fake clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def swap(self, path: str, data: bytes, generation: int) -> int:
        self._clock.seconds += 1
        return super().swap(path, data, generation)


class MeetingStore(FaultyMemoryStore):
    """The first swap is slow; each other one waits until another is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(2)
        self._has_begun = False

    def swap(self, path: str, data: bytes, generation: int) -> int:
        if self._has_begun:
            self._meeting.wait(60)
        else:
            self._has_begun = True
            time.sleep(0.05)  # as long as a bucket takes: only then the others need threads
        return super().swap(path, data, generation)


def topic(number: int) -> str:
    return f"t{number:02}"


def idle(store: FaultyMemoryStore, topics: int) -> dict[TopicPartition, LogEnd]:
    """Topics of a partition that is read to its end; the later by name, the older its mark."""
    ends = {}
    for number in range(topics):
        marked_ms = NOW_MS - (2 + number) * END_MARK_MS
        partition = PartitionCommit(7, watermark=Watermark(end_ms=marked_ms))
        commit = Commit(topic(number), 0, "cluster", "", 1, {0: partition})
        store.create(commit_path(commit.topic, 0), codec.dumps(commit))
        ends[TopicPartition(commit.topic, 0)] = LogEnd(7, 7, marked_ms)
    return ends


def marked(store: FaultyMemoryStore, topics: int) -> list[int]:
    """Numbers of the topics that are marked now."""

    def end_ms(number: int) -> int:
        commit = read(store, Commit, commit_path(topic(number), 0)).value
        return commit.partitions[0].watermark.end_ms

    return [number for number in range(topics) if end_ms(number) == NOW_MS]


def test_what_cannot_be_marked_in_time_is_left_to_the_next_poll_and_the_oldest_go_first() -> None:
    clock = FakeClock()
    store = SlowStore(clock)
    ends = idle(store, 10)
    mark_idle(store, clock, ends, NOW_MS, seconds=4)
    assert marked(store, 10) == [6, 7, 8, 9]
    left = {tp: end for tp, end in ends.items() if tp.topic < topic(6)}
    mark_idle(store, clock, left, NOW_MS, seconds=4)
    assert marked(store, 10) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_many_commits_are_marked_side_by_side() -> None:
    store = MeetingStore()
    mark_idle(store, FakeClock(), idle(store, 41), NOW_MS)
    assert marked(store, 41) == list(range(41))
