"""Windows of `order: hour` become visible hour by hour, and none before its hour is released."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kbq_assets.core.loading.batches import LoadLimits, windows_by_partition
from kbq_assets.core.loading.completeness import HOUR_MS, SourcePartition
from kbq_assets.core.loading.table_state import TableState, begin_job, record_success
from kbq_assets.core.ordering.batches import next_batch
from kbq_assets.core.ordering.hour_order import (
    ALL_HOURS,
    Release,
    of_first_hour,
    release_of,
    released,
    why_waiting,
)
from kbq_assets.core.ordering.rules import with_rule
from kbq_assets.core.ordering.table_order import OrderRule
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import Watermark

T = TableReference("d", "t")
TEN = 1_000_000
#: In whole hours since 1970: at 10:00, 11:00, 12:00 of some day.
H10, H11, H12 = TEN, TEN + 1, TEN + 2


def window(
    number: int, *hours: int, partition: int = 0, schema: int = 1, newest: int | None = None
) -> StagedFile:
    """A window of one file, with a row of each hour."""
    name = StagedFileName(TopicPartition("t", partition), T, schema, number * 10, 1, "a")
    highest = max(hours, default=0) if newest is None else newest
    return StagedFile(
        path=name.format(),
        window=number * 10,
        until=number * 10 + 10,
        rows=len(hours),
        bytes=1,
        raw_bytes=1,
        crc32c="",
        fingerprint=str(schema),
        dates=(TEN // 24,),
        oldest_ms=number,
        events=BusinessTimes(dict.fromkeys(hours, 1), highest * HOUR_MS + 5 if highest else 0),
    )


def first_hour(*files: StagedFile, release: Release = ALL_HOURS) -> list[tuple[int, int]]:
    """Partition and number of the windows that go first."""
    queues = of_first_hour(released(windows_by_partition(list(files)), release), release)
    return [(tp.partition, w[0].window // 10) for tp, windows in sorted(queues.items()) for w in windows]


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ([window(0, H10), window(1, H11)], [(0, 0)]),
        ([window(0, H10), window(1, H10), window(2, H11)], [(0, 0), (0, 1)]),
        ([window(0, H11), window(0, H10, partition=1)], [(1, 0)]),
        # rows of both hours are in one window: 10:00 is there when 11:00 is, and so is all else of both
        ([window(0, H10, H11), window(0, H10, partition=1)], [(1, 0)]),
        ([window(0, H10, H11), window(0, H11, partition=1)], [(0, 0), (1, 0)]),
        ([window(0, H10, H12), window(0, H11, partition=1)], [(0, 0), (1, 0)]),
        # a row of 10:00 behind one of 11:00 comes with it
        ([window(0, H11), window(1, H10)], [(0, 0), (0, 1)]),
        ([window(0, H12), window(1, H10), window(0, H11, partition=1)], [(0, 0), (0, 1), (1, 0)]),
        # rows without a time wait for nothing
        ([window(0), window(0, H10, partition=1)], [(0, 0)]),
    ],
)
def test_the_first_hour_goes_first_with_all_its_rows(
    files: list[StagedFile], first: list[tuple[int, int]]
) -> None:
    assert first_hour(*files) == first


def test_a_window_waits_until_the_hours_before_it_are_passed() -> None:
    queues = windows_by_partition(
        [window(0, H10), window(1, H11), window(2, H10), window(0, H12, partition=1)]
    )
    free = released(queues, Release(H10, H12, "t[2] has passed 10:05"))
    assert [[w[0].window for w in windows] for windows in free.values()] == [[0]]
    assert why_waiting(queues, Release(H10, H12)) == ""
    why = why_waiting(queues, Release(H10 - 1, H12, "t[2] has passed 09:05"))
    assert why.endswith("wait until all partitions have passed that time: t[2] has passed 09:05")
    assert why_waiting({}, Release(H10 - 1)) == ""


def test_a_clock_that_is_ahead_neither_waits_nor_moves() -> None:
    ahead = TEN + 100_000
    assert first_hour(window(0, ahead), window(1, H10), release=Release(H10, H12)) == [(0, 0)]
    assert released(windows_by_partition([window(0, ahead)]), Release(H10, H12))


def test_the_slowest_partition_of_the_slowest_topic_decides() -> None:
    def partition(topic: str, hour: int) -> SourcePartition:
        return SourcePartition(TopicPartition(topic, 0), Watermark(event_ms=hour * HOUR_MS + 900_000))

    found = release_of([partition("a", H12), partition("b", H10)], H12 * HOUR_MS)
    assert (found.hour, found.horizon, "b[0]" in found.why) == (H10, H12 + 1, True)
    assert release_of([], 5) == ALL_HOURS


def test_without_the_rule_nothing_waits() -> None:
    for by in ("", "offset"):
        table = with_rule(TableState("u"), OrderRule(by), 0)
        assert next_batch(T, table, [window(0, H12)], LoadLimits(), release=Release(H10, H12)) is not None
    table = with_rule(TableState("u"), OrderRule("hour"), 0)
    assert next_batch(T, table, [window(0, H12)], LoadLimits(), release=Release(H10, H12)) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_row_becomes_visible_before_its_hour_is_released_or_after_rows_of_a_later_one(seed: int) -> None:
    chance = random.Random(seed)
    files = [
        window(n, *(H10 + chance.randint(0, 5) for _ in range(chance.randint(0, 3))), partition=p)
        for p in range(3)
        for n in range(chance.randint(1, 8))
    ]
    table, until = with_rule(TableState("u"), OrderRule("hour"), 0), H10 - 1
    while until < H10 + 8:
        release = Release(until, TEN * 2)
        batch = next_batch(T, table, files, LoadLimits(mixes_schemas=True), release=release)
        if batch is None:
            until += 1
            continue
        shown = max((hour for file in batch.files for hour in file.events.hours), default=0)
        assert shown <= until
        table = record_success(begin_job(table, batch.files, "", ""), batch.rows)
        left = released(windows_by_partition([f for f in files if not table.is_loaded(f)]), release)
        assert all(
            hour >= shown for windows in left.values() for [file] in windows for hour in file.events.hours
        )
    assert all(map(table.is_loaded, files))


@pytest.mark.parametrize("seed", range(30))
def test_a_mark_never_covers_an_hour_of_a_window_that_is_not_loaded(seed: int) -> None:
    """For any limits of a job, and even if the order is changed or removed in between."""
    chance, table = random.Random(seed), with_rule(TableState("u"), OrderRule("hour"), 0)
    files = [
        replace(file, path=replace(file.name, first_offset=number * 10 + place).format())
        for p in range(2)
        for number in range(chance.randint(1, 6))
        for place in range(chance.randint(1, 4))
        for file in [window(number, H10 + chance.randint(0, 4), partition=p, schema=chance.randint(1, 2))]
    ]
    limits = LoadLimits(files=chance.randint(1, 4), mixes_schemas=chance.random() < 0.5)
    loaded = set[str]()
    while any(file.path not in loaded for file in files):
        release = Release(H10 + chance.randint(0, 5), TEN * 2)
        batch = next_batch(T, table, files, limits, release=release)
        if batch is not None:
            loaded |= {file.path for file in batch.files}
            table = record_success(begin_job(table, batch.files, "p", "l"), batch.rows)
        covered = {file.path for file in files if table.is_loaded(file)}
        assert covered == loaded
        if chance.random() < 0.3:
            table = with_rule(table, OrderRule(chance.choice(["hour", "offset", ""])), 0)
