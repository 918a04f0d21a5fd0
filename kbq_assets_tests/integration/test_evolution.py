"""Schemas that change while producers are at work: on the real broker, registry, store and DuckDB."""

from __future__ import annotations

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets_tests.integration.world import Registered, World

pytestmark = pytest.mark.kafka

ROW = "row:shop.orders"


def schemas(world: World, topic: str) -> tuple[Registered, Registered]:
    """Two schemas of one subject, the second with a field more."""
    subject = f"{topic}-value"
    old = world.producers.register(("x", "long"), subject=subject)
    return old, world.producers.register(("x", "long"), ("note", ["null", "string"]), subject=subject)


def test_a_new_schema_id_has_its_column_in_the_cycle_that_first_sees_it(world: World) -> None:
    tp = world.topic()
    old, new = schemas(world, tp.topic)
    world.producers.produce(tp, [old.value(x=1)], ROW)
    world.extract()
    world.load()
    world.producers.produce(tp, [new.value(x=2, note="n"), old.value(x=3)], ROW)
    world.extract()
    world.load()
    assert world.query("SELECT x, note FROM shop.orders ORDER BY x") == [(1, None), (2, "n"), (3, None)]


def test_interleaved_producers_lose_nothing_and_make_a_file_per_schema_id(world: World) -> None:
    """Old and new ids alternate on every partition, and a third comes that contradicts them (E8)."""
    first = world.topic("dataset=shop table=orders on_incompatible=variant_column", partitions=3)
    old, new = schemas(world, first.topic)
    text = world.producers.register(("x", "string"))
    partitions = [TopicPartition(first.topic, number) for number in range(3)]
    for turns in ((old, new), (new, text, old)):
        values = [each.value(x=f"t{n}" if each is text else n) for n in range(100) for each in turns]
        for tp in partitions:
            world.producers.produce(tp, values, ROW)
        world.extract()
        for tp in partitions:
            files = [[f.name.schema_id for f in window.files] for window in world.partition(tp).windows]
            assert [sorted(ids) for ids in files] == [sorted({each.schema_id for each in turns})] * len(files)
        world.load()
    assert world.finish().totals()["loaded"] == 1500
    assert world.query("SELECT count(x), count(x__string) FROM shop.orders") == [(1200, 300)]


def test_a_parked_table_loads_what_waits_once_its_topic_has_a_policy(world: World) -> None:
    tp = world.topic()
    old, _ = schemas(world, tp.topic)
    text = world.producers.register(("x", "string"))
    world.producers.produce(tp, [old.value(x=1), text.value(x="t"), old.value(x=2)], ROW)
    world.extract()
    assert [table.state for table in world.parts.loader.load().tables] == ["parked"]
    world.extract()
    world.sources = f"{tp.topic} dataset=shop table=orders on_incompatible=variant_column\n"
    propose_resume_table(world.parts.deployment.load_store, TableReference("shop", "orders")).apply()
    world.producers.produce(tp, [text.value(x="u")], ROW)
    assert world.finish().totals()["loaded"] == 4
    assert world.query("SELECT x, x__string FROM shop.orders ORDER BY _kafka_offset") == [
        (1, None),
        (None, "t"),
        (2, None),
        (None, "u"),
    ]
