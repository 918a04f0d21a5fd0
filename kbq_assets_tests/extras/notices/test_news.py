"""What is new is told once, by whatever process looks, and no crash loses it."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.evolution import VARIANTS
from kbq_assets.extras.notices import pipeline as notices
from kbq_assets.extras.notices.model import CONTRADICTION, NEW_COLUMNS, NEW_TABLE, Notice
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.notifier import FakeNotifier
from kbq_assets_tests.fakes.platform import GOOD, SCHEMAS, TOPIC, FakePlatform
from kbq_assets_tests.fakes.script import Script

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
#: x = 1, n = "a".
WITH_N = struct.pack(">bI", 0, 2) + b"\x02\x02a"
NEW = "shop.orders is a new table"
ORDERS = table_state_path(TableReference("shop", "orders"))
CHANGED = "Columns of shop.orders have changed"


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A platform with somebody to tell, and nothing in it."""
    made = FakePlatform(tmp_path)
    made.notifiers = [FakeNotifier()]
    return made


def move(world: FakePlatform, value: bytes = GOOD) -> None:
    world.produce(value=value)
    world.reopened().extractor.extract()
    world.reopened().loader.load()


def heard(world: FakePlatform) -> list[Notice]:
    """What the notifier is told by one look, of a process of its own."""
    [notifier] = world.notifiers
    assert isinstance(notifier, FakeNotifier)
    notifier.taken.clear()
    notices.tell(world.reopened().notices)
    return list(notifier.taken)


def titles(world: FakePlatform) -> list[str]:
    return [notice.title for notice in heard(world)]


def test_a_new_table_is_told_once_and_never_resolved(world: FakePlatform) -> None:
    move(world)
    [notice] = heard(world)
    assert (notice.kind, notice.phase, notice.severity, notice.title) == (NEW_TABLE, "new", "info", NEW)
    assert "schema id 1" in notice.items[0].text
    for days in (0, 1, 5, 30):
        world.store.time_ms += days * DAY
        move(world)
        assert titles(world) == []


def test_new_columns_are_told_with_types_and_schema(world: FakePlatform) -> None:
    move(world)
    assert titles(world) == [NEW]
    world.store.time_ms += MINUTE
    move(world, WITH_N)
    [notice] = heard(world)
    assert (notice.kind, notice.title) == (NEW_COLUMNS, CHANGED)
    assert notice.items[0].text == "new: n STRING; schema id 2"
    assert titles(world) == []


def test_a_change_within_minutes_of_another_is_told_too(world: FakePlatform) -> None:
    world.registry.schemas[3] = SCHEMAS[2].replace('"n"', '"m"')
    move(world)
    world.store.time_ms += 1
    move(world, WITH_N)
    assert sorted(titles(world)) == sorted([NEW, CHANGED])
    world.store.time_ms += 1
    move(world, struct.pack(">bI", 0, 3) + b"\x02\x02a")
    [notice] = heard(world)
    assert notice.items[0].text == "new: m STRING; schema id 3"
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
    loader = world.reopened(store=lambda: world.store.view("loader")).loader
    with contextlib.suppress(Crash):
        loader.load()
    world.store.faults = None
    told = titles(world)
    world.reopened().loader.load()
    assert [*told, *titles(world)] == [CHANGED]


def test_news_is_no_news_while_a_state_cannot_be_read(world: FakePlatform) -> None:
    move(world)
    assert titles(world) == [NEW]
    kept = world.store.objects.pop(ORDERS)
    assert NEW not in titles(world)
    world.store.objects[ORDERS] = kept
    assert NEW not in titles(world)


def contradicted(tmp_path: Path, policy: str) -> FakePlatform:
    """A table with rows, and schema 3, which contradicts it."""
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders on_incompatible={policy}\n")
    world.notifiers = [FakeNotifier()]
    world.registry.schemas[3] = SCHEMAS[1].replace("long", "string")
    move(world)
    return world


def test_what_a_contradicting_schema_was_given_is_told_once(tmp_path: Path) -> None:
    world = contradicted(tmp_path, "variant_column")
    assert titles(world) == [NEW]
    world.store.time_ms += MINUTE
    move(world, struct.pack(">bI", 0, 3) + b"\x02a")
    told = {notice.kind: notice for notice in heard(world)}
    assert told.keys() == {NEW_COLUMNS, CONTRADICTION}
    assert told[CONTRADICTION].title == "A schema contradicts shop.orders"
    assert told[CONTRADICTION].items[0].text == "shop.orders: x__string STRING is a variant of x"
    assert titles(world) == []


def test_a_contradiction_stays_told_while_its_placement_cannot_be_read(tmp_path: Path) -> None:
    world = contradicted(tmp_path, "new_table_version")
    move(world, struct.pack(">bI", 0, 3) + b"\x02a")
    assert "A schema contradicts shop.orders__v2" in titles(world)
    path = f"{VARIANTS}shop.orders.json"
    kept = world.store.objects[path]
    world.store.objects[path] = dataclasses.replace(kept, data=b"{", generation=kept.generation + 1)
    assert titles(world) == []
    world.store.objects[path] = dataclasses.replace(kept, generation=kept.generation + 2)
    assert titles(world) == []


# Topics ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def catalogued(tmp_path: Path) -> FakePlatform:
    """A platform that is driven by a catalogue, with its one topic in it."""
    folder = tmp_path / "catalog"
    place = folder / "shop/sales/orders/prod"
    place.mkdir(parents=True)
    (place / "topic.yaml").write_text(f"consumers: [archiver]\nkafka: {{name: {TOPIC}}}\n")
    (folder / "catalog.yaml").write_text("names: {topic: '{company}.{domain}.{topic}'}\nignore: [tmp.*]\n")
    made = FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(folder), "KBQ_ENV": "prod"})
    made.notifiers = [FakeNotifier()]
    return made


def test_a_topic_that_nobody_catalogued_is_told_once_with_the_command(catalogued: FakePlatform) -> None:
    assert titles(catalogued) == []
    catalogued.kafka.create_topic("shop.sales.clicks", 1)
    [notice] = heard(catalogued)
    assert (notice.title, notice.severity) == ("shop.sales.clicks is not in the catalogue", "info")
    folder = catalogued.settings.catalog.source_topics
    assert notice.items[0].commands == (
        f"kbq catalog init {folder} --company shop --domain sales --env prod --topic shop.sales.clicks",
    )
    catalogued.store.time_ms += 30 * DAY
    assert titles(catalogued) == []


@pytest.mark.parametrize("topic", ["tmp.x", "_schemas", "__internal"])
def test_internal_topics_and_those_to_be_ignored_are_no_news(catalogued: FakePlatform, topic: str) -> None:
    catalogued.kafka.create_topic(topic, 1)
    assert titles(catalogued) == []


def test_a_topic_that_is_not_archived_or_of_another_environment_is_no_news(catalogued: FakePlatform) -> None:
    place = catalogued.settings.catalog.source_topics / "shop/sales/clicks/dev"
    place.mkdir(parents=True)
    (place / "topic.yaml").write_text("kafka: {name: clicks}\n")
    catalogued.kafka.create_topic("clicks", 1)
    assert titles(catalogued) == []


def test_a_broker_that_is_away_makes_no_topic_new_again(catalogued: FakePlatform) -> None:
    catalogued.kafka.create_topic("clicks", 1)
    assert titles(catalogued) == ["clicks is not in the catalogue"]
    catalogued.kafka.down = True
    titles(catalogued)
    catalogued.kafka.down = False
    assert titles(catalogued) == []


def test_a_list_of_topics_leaves_others_alone(world: FakePlatform) -> None:
    world.kafka.create_topic("clicks", 1)
    world.kafka.produce(TopicPartition("clicks", 0), GOOD)
    assert titles(world) == []
