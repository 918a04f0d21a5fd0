"""News is reported once, whichever process polls, and no crash loses it."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from pathlib import Path

import pytest

from kbq_assets.core.observation.lake_readers import PATH, LakeReaders
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.evolution import VARIANTS
from kbq_assets.extras.notices.model import Condition
from kbq_assets.extras.notices.send import send_changes
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import GOOD, SCHEMAS, TOPIC, FakePlatform
from kbq_assets_tests.fakes.script import Script

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
#: x = 1, n = "a".
WITH_N = struct.pack(">bI", 0, 2) + b"\x02\x02a"
#: Of schema 3, in which x is a string.
CONTRADICTING = struct.pack(">bI", 0, 3) + b"\x02a"
NEW = "info: new_table: shop.orders"
CHANGED = "info: new_columns: shop.orders"
ORDERS = table_state_path(TableReference("shop", "orders"))


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


def move(world: FakePlatform, value: bytes = GOOD) -> None:
    world.produce(value=value)
    world.reopened().extractor.extract()
    world.reopened().loader.load()


def reported(world: FakePlatform) -> list[Condition]:
    """The notices from one poll by a separate process."""
    notifier = FakeNotifier()
    world.notifiers = [notifier.port]
    send_changes(world.reopened().notices)
    return [item for message in notifier.taken for item in message.items]


def titles(world: FakePlatform) -> list[str]:
    return [item.title for item in reported(world)]


def test_a_table_that_bigquery_reads_as_it_was_is_reported_until_it_follows(world: FakePlatform) -> None:
    state.create(world.store, PATH, LakeReaders({"shop.orders": "it is away"}))
    [item] = reported(world)
    assert item.title == "warn: lake_table_behind: shop.orders"
    assert (item.text.endswith("it is away"), item.commands) == (True, ("kbq catalog apply",))
    assert titles(world) == []
    world.store.delete(PATH)
    assert titles(world) == ["resolved: lake_table_behind: shop.orders"]


def test_a_new_table_is_reported_once_and_never_resolved(world: FakePlatform) -> None:
    move(world)
    [item] = reported(world)
    assert item.title == NEW
    assert "schema id 1" in item.text
    for days in (0, 1, 5, 30):
        world.store.time_ms += days * DAY
        move(world)
        assert titles(world) == []


def test_new_columns_are_reported_with_types_and_schema(world: FakePlatform) -> None:
    move(world)
    assert titles(world) == [NEW]
    world.store.time_ms += MINUTE
    move(world, WITH_N)
    [item] = reported(world)
    assert (item.title, item.text) == (CHANGED, "new: n STRING; schema id 2")
    assert titles(world) == []


def test_a_change_within_minutes_of_another_is_reported_too(world: FakePlatform) -> None:
    world.registry.schemas[3] = SCHEMAS[2].replace('"n"', '"m"')
    move(world)
    world.store.time_ms += 1
    move(world, WITH_N)
    assert sorted(titles(world)) == sorted([NEW, CHANGED])
    world.store.time_ms += 1
    move(world, struct.pack(">bI", 0, 3) + b"\x02\x02a")
    [item] = reported(world)
    assert item.text == "new: m STRING; schema id 3"
    assert titles(world) == []


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.LOST_REPLY])
@pytest.mark.parametrize("nth", [1, 2], ids=["the note", "the batch"])
def test_a_loader_that_dies_around_a_change_loses_no_news(
    world: FakePlatform, outcome: Outcome, nth: int
) -> None:
    move(world)
    assert titles(world) == [NEW]
    world.store.time_ms += MINUTE
    world.produce(value=WITH_N)
    world.reopened().extractor.extract()
    world.store.faults = Script("swap", ORDERS, outcome, nth)
    with contextlib.suppress(Crash):
        world.reopened(store=lambda: world.store.view("loader")).loader.load()
    world.store.faults = None
    found = titles(world)
    world.reopened().loader.load()
    assert [*found, *titles(world)] == [CHANGED]


def test_news_stays_reported_while_a_state_cannot_be_read(world: FakePlatform) -> None:
    move(world)
    assert titles(world) == [NEW]
    kept = world.store.objects.pop(ORDERS)
    assert NEW not in titles(world)
    world.store.objects[ORDERS] = kept
    assert NEW not in titles(world)


def contradicted(tmp_path: Path, policy: str) -> FakePlatform:
    """A table with rows, and schema 3, which contradicts it."""
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders on_incompatible={policy}\n")
    world.registry.schemas[3] = SCHEMAS[1].replace("long", "string")
    move(world)
    return world


def test_the_variant_of_a_contradicting_schema_is_reported_once(tmp_path: Path) -> None:
    world = contradicted(tmp_path, "variant_column")
    assert titles(world) == [NEW]
    world.store.time_ms += MINUTE
    move(world, CONTRADICTING)
    found = {item.title: item.text for item in reported(world)}
    contradicts = "warn: contradicting_schema: shop.orders"
    assert found.keys() == {CHANGED, contradicts}
    assert found[contradicts] == "shop.orders: x__string STRING is a variant of x"
    assert titles(world) == []


def test_a_variant_stays_reported_while_its_state_cannot_be_read(tmp_path: Path) -> None:
    world = contradicted(tmp_path, "new_table_version")
    move(world, CONTRADICTING)
    assert "warn: contradicting_schema: shop.orders__v2" in titles(world)
    path = f"{VARIANTS}shop.orders.json"
    kept = world.store.objects[path]
    world.store.objects[path] = dataclasses.replace(kept, data=b"{", generation=kept.generation + 1)
    assert titles(world) == []
    world.store.objects[path] = dataclasses.replace(kept, generation=kept.generation + 2)
    assert titles(world) == []


# Topics ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def catalogued(tmp_path: Path) -> FakePlatform:
    """A platform with a catalog that has one topic."""
    folder = tmp_path / "catalog"
    place = folder / "shop/sales/orders/prod"
    place.mkdir(parents=True)
    (place / "topic.yaml").write_text(f"consumers: [archiver]\nkafka: {{name: {TOPIC}}}\n")
    (folder / "catalog.yaml").write_text("names: {topic: '{company}.{domain}.{topic}'}\nignore: [tmp.*]\n")
    return FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(folder), "KBQ_ENV": "prod"})


def test_a_topic_without_an_entry_is_reported_once_with_the_command(catalogued: FakePlatform) -> None:
    assert titles(catalogued) == []
    catalogued.kafka.create_topic("shop.sales.clicks", 1)
    [item] = reported(catalogued)
    assert item.title == "info: new_topic: shop.sales.clicks"
    folder = catalogued.settings.catalog.source_topics
    assert item.commands == (
        f"kbq catalog init {folder} --company shop --domain sales --env prod --topic shop.sales.clicks",
    )
    catalogued.store.time_ms += 30 * DAY
    assert titles(catalogued) == []


@pytest.mark.parametrize("topic", ["tmp.x", "_schemas", "__internal"])
def test_internal_and_ignored_topics_are_no_news(catalogued: FakePlatform, topic: str) -> None:
    catalogued.kafka.create_topic(topic, 1)
    assert titles(catalogued) == []


def test_a_topic_of_another_environment_is_no_news(catalogued: FakePlatform) -> None:
    place = catalogued.settings.catalog.source_topics / "shop/sales/clicks/dev"
    place.mkdir(parents=True)
    (place / "topic.yaml").write_text("kafka: {name: clicks}\n")
    catalogued.kafka.create_topic("clicks", 1)
    assert titles(catalogued) == []


def test_a_broker_that_is_away_makes_no_topic_new_again(catalogued: FakePlatform) -> None:
    catalogued.kafka.create_topic("clicks", 1)
    assert titles(catalogued) == ["info: new_topic: clicks"]
    catalogued.kafka.down = True
    titles(catalogued)
    catalogued.kafka.down = False
    assert "info: new_topic: clicks" not in titles(catalogued)


def test_a_list_of_topics_leaves_others_alone(world: FakePlatform) -> None:
    world.kafka.create_topic("clicks", 1)
    world.kafka.produce(TopicPartition("clicks", 0), GOOD)
    assert titles(world) == []
