"""The state of a large installation: 160 topics of 70 partitions, 400 tables, 50,000 committed files, as objects."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import TableState, mark_key, rows_key
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import (
    TABLE_REGISTRY,
    TOPIC_REGISTRY,
    StagedFileName,
    TableReference,
    commit_path,
    shard_of,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicRegistry

TOPICS, PARTITIONS, TABLES, FILES = 160, 70, 400, 50_000
ROWS = 10_000
CLUSTER = "bench-cluster-0000000"
NOW_MS = int(time.time() * 1000)


def topics() -> list[str]:
    """Topics with realistic names."""
    return [f"shop.events.stream-{number:03}.v1" for number in range(TOPICS)]


def topic_id(topic: str) -> str:
    """The broker's id of a topic's incarnation."""
    return f"{abs(hash_of(topic)):022d}"


def hash_of(text: str) -> int:
    """A number for a text that is the same in every process."""
    return int.from_bytes(text.encode()[-8:], "big")


def positions() -> Iterator[tuple[TopicPartition, list[int]]]:
    """Each partition with the numbers of its windows that wait for a load. Each window has one file."""
    names = topics()
    each = TOPICS * PARTITIONS
    for number in range(each):
        tp = TopicPartition(names[number % TOPICS], number // TOPICS)
        yield tp, list(range(len(range(number, FILES, each))))


def table_of(tp: TopicPartition, window: int) -> TableReference:
    """The table of a window. A topic's windows go to several tables, and each table has files of a few topics."""
    return TableReference("sales", f"table_{(int(tp.topic.split('-')[1][:3]) + TOPICS * window) % TABLES:03}")


def staged(tp: TopicPartition, window: int) -> StagedFile:
    """The file of a window."""
    first = (window + 100) * ROWS
    name = StagedFileName(tp, table_of(tp, window), 100_000 + window, first, 1, f"{window:016x}")
    return StagedFile(
        name.format(), first, first + ROWS, ROWS, 2_345_678, 9_876_543, "AAAAAA==", f"{window:032x}",
        (19_675, 19_676), NOW_MS - 60_000 * window,
    )  # fmt: skip


def objects() -> Iterator[tuple[str, bytes]]:
    """Every object below the staging root: commits, table states, registries, done files."""
    shards: dict[tuple[str, int], dict[int, PartitionCommit]] = defaultdict(dict)
    marks: dict[TableReference, TableState] = {}
    for tp, windows in positions():
        files = [staged(tp, window) for window in windows]
        shards[tp.topic, shard_of(tp.partition)][tp.partition] = _partition(tp, files)
        for window, file in zip(windows, files, strict=True):
            known = marks.setdefault(file.table, TableState(f"{hash_of(str(file.table)):016x}"[:16]))
            known.marks[mark_key(file)] = file.window  # type: ignore[index]
            known.rows[rows_key(file)] = file.window if window == 0 else 0  # type: ignore[index]
            yield file.done.format(), b""
    registry = TopicRegistry()
    for (topic, shard), partitions in shards.items():
        registry = registry.announce(topic, shard).activate(topic, shard)
        yield (
            commit_path(topic, shard),
            codec.dumps(Commit(topic, shard, CLUSTER, topic_id(topic), 1, partitions)),
        )
    yield TOPIC_REGISTRY, codec.dumps(registry)
    for table, state in marks.items():
        yield table_state_path(table), codec.dumps(state)
    yield TABLE_REGISTRY, codec.dumps(TableRegistry({str(t): s.uuid for t, s in marks.items()}))


def _partition(tp: TopicPartition, files: list[StagedFile]) -> PartitionCommit:
    windows = []
    for file in files:
        counts = Counts(positions=ROWS, records=ROWS, bytes=file.raw_bytes, rows={str(file.table): ROWS})
        windows.append(Window(file.window, file.until, counts, files=(file,), leader_epoch=7))
    until = files[-1].until if files else 100 * ROWS
    rows = {str(file.table): file.until if file is files[0] else ROWS for file in files}
    totals = Counts(positions=until, records=until, bytes=until * 900, rows=rows)
    return PartitionCommit(next=until, start=0, leader_epoch=7, totals=totals, windows=tuple(windows))
