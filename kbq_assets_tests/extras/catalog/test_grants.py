"""`kbq catalog apply` grants readers the access in `access.readers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.catalog.readers import DATASET, OBJECTS, TABLE, DataPlaces, ReadablePlace
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.errors import Unavailable
from kbq_assets.extras.catalog.apply import CatalogCommands
from kbq_assets.extras.catalog.grants import ReaderGrants, grants_of
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fakes.readers import FakeReaders

ENTRY = f"consumers: [archiver]\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
ROOT = """access:
  readers:
    dataset/shop: "group:sales@example.com, user:ana@example.com"
    table/shop.kbq_errors__billing: group:billing@example.com
    backup: group:audit@example.com
"""
SHOP = ReadablePlace(DATASET, "p", "shop")
ERRORS = ReadablePlace(TABLE, "p", "shop.kbq_errors__billing")
COPIES = ReadablePlace(OBJECTS, "copies", "backup/")


@pytest.fixture
def tables() -> FakeReaders:
    return FakeReaders({ERRORS})


@pytest.fixture
def objects() -> FakeReaders:
    return FakeReaders()


@pytest.fixture
def commands(tmp_path: Path, tables: FakeReaders, objects: FakeReaders) -> CatalogCommands:
    entry = tmp_path / "catalog/shop/sales/orders/prod/topic.yaml"
    entry.parent.mkdir(parents=True)
    entry.write_text(ENTRY)
    (tmp_path / "catalog/catalog.yaml").write_text(ROOT)
    world = FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")})
    places = DataPlaces((BigQueryProject("p", "EU"),), Bucket("copies", ""))
    grants = ReaderGrants(places, lambda: tables, lambda: objects)
    return replace(world.parts.catalog_commands, grants=grants)


def test_a_plan_shows_and_grants_what_is_missing_and_then_nothing(
    commands: CatalogCommands, tables: FakeReaders, objects: FakeReaders
) -> None:
    before = frozenset({"user:ana@example.com", "user:somebody@example.com"})
    tables.held = {SHOP: before}
    planned = commands.plan()
    assert planned.lines[-2:] == [
        "let group:sales@example.com read dataset p.shop",
        "let group:audit@example.com read gs://copies/backup/… (and list the bucket's names)",
    ]
    [left] = [each for each in planned.differences if "does not exist yet" in each.message]
    assert left.topic == "table p.shop.kbq_errors__billing"
    assert tables.held == {SHOP: before} and objects.held == {}  # shown, not made
    for proposal in commands.proposals(planned):
        proposal.apply()
    assert tables.held == {SHOP: before | {"group:sales@example.com"}}
    assert objects.held == {COPIES: frozenset({"group:audit@example.com"})}
    assert commands.plan().readers == ()


def test_a_table_is_granted_once_it_exists(commands: CatalogCommands, tables: FakeReaders) -> None:
    tables.absent.clear()
    for proposal in commands.proposals(commands.plan()):
        proposal.apply()
    assert tables.held[ERRORS] == {"group:billing@example.com"}


def test_a_plan_without_an_answer_is_none(commands: CatalogCommands, tables: FakeReaders) -> None:
    tables.is_away = True
    with pytest.raises(Unavailable):
        commands.plan()


def test_a_machine_without_google_is_told_so(commands: CatalogCommands, tmp_path: Path) -> None:
    planned = replace(commands, grants=grants_of(FakePlatform(tmp_path).settings)).plan()
    assert planned.readers == ()
    named = {d.topic: d.message for d in planned.differences if d.topic.startswith("access.readers.")}
    assert {key: text.split(", ")[0].split(" is a ")[1] for key, text in named.items()} == {
        "access.readers.backup": "folder",
        "access.readers.dataset/shop": "DuckDB file",
        "access.readers.table/shop.kbq_errors__billing": "DuckDB file",
    }
