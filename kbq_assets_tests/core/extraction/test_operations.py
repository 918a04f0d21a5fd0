"""The Cloud Storage operations of a plan, and their price."""

from __future__ import annotations

import pytest

from kbq_assets.core.extraction.operations import (
    CLASS_A_REGIONS,
    Operations,
    commits_of,
    of_extraction,
    of_load,
    per_month,
    tables_of,
)
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.units import Unit, WindowLimits
from kbq_assets.core.loading.batches import LoadBatch, SchemaKey
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file

WINDOW = WindowLimits(records=100)


def plan(*partitions: tuple[int, int]) -> ExtractionPlan:
    """Units of the given numbers of positions, by partition."""
    units = (
        Unit(OffsetRange(TopicPartition("t", number), 7, 7 + positions), 1, TopicSettings())
        for number, positions in partitions
    )
    return ExtractionPlan(units=tuple(units))


def batch(table: str, files: int) -> LoadBatch:
    return LoadBatch(
        TableReference("d", table), SchemaKey(1, "f"), tuple(staged_file(n, n + 1) for n in range(files))
    )


@pytest.mark.parametrize(
    ("planned", "files"),
    [
        (plan(), 0),
        (plan((0, 1)), 1),
        (plan((0, 100)), 1),
        (plan((0, 101)), 2),
        (plan((0, 100), (1, 250)), 4),
    ],
    ids=["nothing", "one record", "a full window", "one record more", "two partitions"],
)
def test_each_window_writes_a_file_and_a_done_file(planned: ExtractionPlan, files: int) -> None:
    found = of_extraction(planned, 1, 0, WINDOW)
    assert found.done_files == files
    bare = of_extraction(planned, 1, 0, WINDOW, done_files=False)
    assert found.writes - bare.writes == files
    assert bare.writes == files + (4 if files else 0) + 1
    assert (bare.lists, bare.done_files) == (0, 0)


@pytest.mark.parametrize(("positions", "lists"), [(1, 1), (99_900, 1), (100_000, 2), (200_000, 3)])
def test_done_files_are_listed_by_pages_of_1000(positions: int, lists: int) -> None:
    assert of_extraction(plan((0, positions)), 1, 0, WINDOW).lists == lists


def test_partitions_of_one_commit_object_share_its_swaps() -> None:
    one, two = (of_extraction(plan((0, 1), (other, 1)), 2, 3, WINDOW) for other in (63, 64))
    assert two.writes - one.writes == 4
    assert (one.reads, two.reads) == (4 * 2 + 1 + 3 + 4, 4 * 2 + 2 + 3 + 4)


@pytest.mark.parametrize(
    ("batches", "writes", "lists"),
    [
        ([], 0, 7),
        ([batch("a", 1)], 2, 8),
        ([batch("a", 999)], 2, 8),
        ([batch("a", 1000), batch("b", 1)], 4, 10),
    ],
    ids=["nothing", "one job", "a page of files", "two pages and another job"],
)
def test_a_load_writes_twice_for_each_job(batches: list[LoadBatch], writes: int, lists: int) -> None:
    found = of_load(batches, 2, 3)
    assert found == Operations(writes, lists, 2 * 2 + 2 * 3 + 6 * len(batches) + 4)


def test_commits_and_tables_are_counted_once() -> None:
    assert commits_of(plan((0, 1), (63, 1), (64, 1))) == 2
    ends = ExtractionPlan(log_ends={TopicPartition("t", 0): None, TopicPartition("u", 0): None})  # type: ignore[dict-item]
    assert commits_of(ends) == 2
    assert tables_of([batch("a", 1), batch("a", 2), batch("b", 1)]) == 2


def test_operations_add_up_and_are_multiplied() -> None:
    one, two = Operations(1, 2, 3, 4), Operations(10, 20, 30, 40)
    assert one + two == Operations(11, 22, 33, 44)
    assert one * 2.5 == Operations(2, 5, 8, 10)
    assert one.class_a == 3


def test_the_price_follows_the_list() -> None:
    million = Operations(writes=500_000, lists=500_000, reads=1_000_000)
    assert million.dollars() == pytest.approx(5.0 + 0.4)
    assert million.dollars(CLASS_A_REGIONS) == pytest.approx(10.0 + 0.4)


@pytest.mark.parametrize(
    ("seconds", "cycles"), [(86_400, 30.4), (3_600, 729.6), (1, 2_626_560), (0, 2_626_560)]
)
def test_a_month_has_30_days_and_no_cycle_is_shorter_than_a_second(seconds: float, cycles: float) -> None:
    assert per_month(Operations(writes=10), seconds) == Operations(writes=round(10 * cycles))
