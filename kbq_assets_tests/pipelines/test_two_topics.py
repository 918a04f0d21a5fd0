"""Two topics that feed one table: the same partition and offset in both are two rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.fakes.platform import POISON, FakePlatform

A, B = "north.orders", "south.orders"
SOURCES = f"{A} dataset=shop table=orders\n{B} dataset=shop table=orders\n"


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    world = FakePlatform(tmp_path, sources=SOURCES)
    for topic in (A, B):
        world.kafka.create_topic(topic, 1)
    return world


def rows(world: FakePlatform, table: str = "orders") -> list[tuple[str, int, int]]:
    found = world.warehouse.stored[TableReference("shop", table)].rows
    return sorted((row.topic, row.partition, row.offset) for row in found)


def test_the_same_partition_and_offset_in_two_topics_are_two_rows(world: FakePlatform) -> None:
    for topic in (A, B):
        world.produce(2, topic=topic)
        world.produce(topic=topic, value=POISON)
    for _ in range(2):  # the second time, nothing is left to do
        world.parts.extractor.extract()
        world.parts.loader.load()
    assert rows(world) == [(A, 0, 0), (A, 0, 1), (B, 0, 0), (B, 0, 1)]
    assert rows(world, "kbq_errors") == [(A, 0, 2), (B, 0, 2)]
    assert world.parts.reconciler.reconcile().accounted


def test_a_row_missing_of_one_topic_is_not_made_good_by_the_other(world: FakePlatform) -> None:
    for topic in (A, B):
        world.produce(2, topic=topic)
    world.parts.extractor.extract()
    world.parts.loader.load()
    stored = world.warehouse.stored[TableReference("shop", "orders")].rows
    stored.remove(next(row for row in stored if (row.topic, row.offset) == (B, 1)))
    assert not world.parts.reconciler.reconcile().accounted
