"""Whether rows have the values of their records: a sample of them, or all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.again import NO_VALUES, Again, ValueReport
from kbq_assets.ports.warehouse import Warehouse

SAMPLE, ALL, NONE = CHOICES = ("sample", "all", "none")
#: A sample: so many ranges of so many positions in each partition, of so many partitions.
SAMPLE_RANGES: Final = 2
SAMPLE_POSITIONS: Final = 500
SAMPLE_PARTITIONS: Final = 100
#: Positions that are compared at once, and bytes of their values, by the partition's average.
CHUNK: Final = 20_000
CHUNK_BYTES: Final = 64 * 1024 * 1024


def compare_values(
    again: Again,
    warehouse: Warehouse,
    commits: Iterable[Commit],
    broker: dict[TopicPartition, BrokerOffsets],
    choice: str = SAMPLE,
    chance: random.Random | None = None,
) -> ValueReport:
    """Compare rows with the records that the broker still has. Each run samples other ranges."""
    commits = list(commits)
    if not warehouse.compares:
        return ValueReport(problems=(NO_VALUES,), uncompared=tuple(sorted({c.topic for c in commits})))
    report, chance = ValueReport(), chance or random.Random()
    ranges = [
        (commit, OffsetRange(tp, first, state.next))
        for commit in commits
        for partition, state in commit.partitions.items()
        if (tp := commit.topic_partition(partition)) in broker
        and (first := max(state.start, broker[tp].earliest)) < state.next
    ]
    if choice == SAMPLE and len(ranges) > SAMPLE_PARTITIONS:
        ranges = chance.sample(ranges, SAMPLE_PARTITIONS)
    for commit, whole in ranges:
        topic = commit.topic
        if why := _incomparable(again.settings.get(topic)):
            report += ValueReport(problems=(f"{topic}: {why}",)).of_topic(topic)
            continue
        for range_ in _chosen(commit, whole, choice, chance):
            report += again.compare(commit, range_, warehouse).of_topic(topic)
    return report


def _incomparable(settings: TopicSettings | None) -> str:
    """Why extraction would not make the same rows again; "" if it would."""
    if settings is None:
        return "the source list no longer selects the topic"
    if settings.privacy.decisions:
        return "keys of personal data may have changed since"
    if settings.records.format == "json_columns":
        return "its inferred columns may have grown since"
    return ""


def _chosen(commit: Commit, whole: OffsetRange, choice: str, chance: random.Random) -> Iterator[OffsetRange]:
    tp, first, until = whole.topic_partition, whole.from_offset, whole.until_offset
    state = commit.partitions[tp.partition]
    gaps, average = state.accepted_gaps, state.totals.bytes // max(1, state.totals.records)
    most = max(1, min(CHUNK, CHUNK_BYTES // max(1, average)))
    size = most if choice == ALL else min(most, SAMPLE_POSITIONS)
    starts: Sequence[int] = range(first, until, size)
    if choice == SAMPLE and len(starts) > SAMPLE_RANGES:
        starts = sorted(chance.sample(starts, SAMPLE_RANGES))
    for start in starts:
        end = min(start + size, until)
        if not any(gap.first < end and start < gap.until for gap in gaps):  # nobody reads these, or can
            yield OffsetRange(tp, start, end)
