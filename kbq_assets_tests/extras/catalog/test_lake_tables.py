"""`kbq catalog apply` lets BigQuery read a lake as configured in the section `lake_in_bigquery`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbq_assets.core.catalog.lake_tables import ExternalTable, KnownTable, PointAtMetadata, files_of
from kbq_assets.core.config.locations import Bucket, LakeAddress
from kbq_assets.core.errors import ConfigurationError, KbqError, PreconditionFailed, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.catalog.apply import CatalogCommands
from kbq_assets.extras.catalog.cli import apply, diff
from kbq_assets.extras.catalog.lake_tables import LakeTables, lake_tables_of
from kbq_assets.pipelines.observation.lake_readers import (
    SECONDS,
    TICK_SECONDS,
    follow_lake,
    readers_behind,
)
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake as LakeOfFiles
from kbq_assets_tests.contracts.compaction import view_of
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fakes.script import Script

ENTRY = f"consumers: [archiver]\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
ROOT = "names: {dataset: '{company}'}\nlake_in_bigquery: {connection: my-project.eu.lake}\n"
ORDERS, CARTS = TableReference("shop", "orders"), TableReference("shop", "carts")
NAME = "my-project.shop_lake.orders"


class Lake:
    """A lake in a bucket: each table has a number of commits."""

    def __init__(self) -> None:
        self.commits = {ORDERS: 1, TableReference("ads", "clicks"): 1}

    def files(
        self, datasets: Collection[str], only: Collection[TableReference] | None = None
    ) -> Mapping[TableReference, str]:
        return {
            table: f"gs://lake/{table}/{number}.metadata.json"
            for table, number in self.commits.items()
            if table.dataset in datasets and (only is None or table in only)
        }


class BigQuery:
    """External tables in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, KnownTable] = {}
        #: raised by the next calls about a table
        self.fails: dict[str, KbqError] = {}
        self.asked = 0

    def known(self, table: ExternalTable) -> KnownTable | None:
        self.asked += 1
        return self.stored.get(table.name)

    def point(self, change: PointAtMetadata) -> None:
        table = change.table
        if table.name in self.fails:
            raise self.fails[table.name]
        self.stored[table.name] = KnownTable(True, (table.metadata,), table.connection)


@pytest.fixture
def lake() -> Lake:
    return Lake()


@pytest.fixture
def bigquery() -> BigQuery:
    return BigQuery()


@pytest.fixture
def commands(tmp_path: Path, lake: Lake, bigquery: BigQuery) -> CatalogCommands:
    entry = tmp_path / "catalog/shop/sales/orders/prod/topic.yaml"
    entry.parent.mkdir(parents=True)
    entry.write_text(ENTRY)
    (tmp_path / "catalog/catalog.yaml").write_text(ROOT)
    world = FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")})
    places = (LakeAddress(bucket=Bucket("lake", "")),)
    return replace(
        world.parts.catalog_commands, lake_tables=LakeTables(places, lambda _: lake, lambda _: bigquery)
    )


def applied(commands: CatalogCommands) -> list[str]:
    """Apply the plan; return its steps about the lake."""
    planned = commands.plan()
    for proposal in commands.proposals(planned):
        proposal.apply()
    return [str(change) for change in planned.lake]


def test_a_plan_follows_the_lake_and_then_does_nothing(
    commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    first, second = (f"gs://lake/shop.orders/{n}.metadata.json" for n in (1, 2))
    assert applied(commands) == [f"create external table {NAME} in BigQuery, which reads {first}"]
    assert applied(commands) == []
    lake.commits[ORDERS] = 2
    assert applied(commands) == [f"{NAME} in BigQuery is behind: move it from {first} to {second}"]
    assert applied(commands) == []
    assert bigquery.stored == {NAME: KnownTable(True, (second,), "my-project.eu.lake")}


def test_a_table_in_the_way_is_named_and_stays(
    commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    bigquery.stored[NAME] = KnownTable(is_iceberg=False)
    planned = commands.plan()
    assert planned.lake == ()
    assert NAME in {difference.topic for difference in planned.differences}
    for proposal in commands.proposals(planned):
        proposal.apply()
    assert bigquery.stored == {NAME: KnownTable(is_iceberg=False)}


def test_the_command_says_what_is_behind_and_prints_statements(
    commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    applied(commands)
    lake.commits |= {ORDERS: 2, CARTS: 1}
    seen = dict(bigquery.stored)
    ran = CliRunner().invoke(diff, obj=lambda: Parts(commands))
    assert ran.exit_code == 1
    assert f"to do: {NAME} in BigQuery is behind" in ran.output
    ran = CliRunner().invoke(apply, ["--ddl"], obj=lambda: Parts(commands))
    assert ran.exit_code == 0
    statements = [line for line in ran.output.splitlines() if line.startswith("CREATE")]
    assert statements == [
        "CREATE EXTERNAL TABLE IF NOT EXISTS `my-project.shop_lake.carts`",
        f"CREATE OR REPLACE EXTERNAL TABLE `{NAME}`",
    ]
    assert bigquery.stored == seen


def test_a_machine_without_buckets_is_told_so(commands: CatalogCommands, tmp_path: Path) -> None:
    here = FakePlatform(tmp_path, environ={"KBQ_WAREHOUSE": f"iceberg:{tmp_path}/lake"}).settings
    for settings, why in (
        (here, f"{tmp_path}/lake is a folder"),
        (FakePlatform(tmp_path).settings, "no lake"),
    ):
        planned = replace(commands, lake_tables=lake_tables_of(settings)).plan()
        assert planned.lake == ()
        [left] = [each for each in planned.differences if each.topic == "lake_in_bigquery"]
        assert why in str(left)


# After loads


@dataclass
class Follower:
    """What a load does in its end."""

    world: FakePlatform
    commands: CatalogCommands

    def after(self, *changed: TableReference, seconds: int = SECONDS) -> Mapping[str, str]:
        """What is behind after a load that changed these tables."""
        follow_lake(self.world.reopened().deployment, lambda: self.commands, changed, seconds)
        return readers_behind(self.world.store)


@pytest.fixture
def follower(commands: CatalogCommands, tmp_path: Path) -> Follower:
    environ = {"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog"), "KBQ_WAREHOUSE": f"iceberg:{tmp_path}/lake"}
    return Follower(FakePlatform(tmp_path, environ=environ), commands)


def shown(bigquery: BigQuery) -> list[str]:
    """The files that BigQuery's tables read."""
    return [file.rpartition("/")[2] for each in bigquery.stored.values() for file in each.files]


def test_tables_that_exist_follow_what_a_load_changed(
    follower: Follower, commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    assert follower.after(ORDERS) == {}
    assert shown(bigquery) == [], "a load creates none"
    applied(commands)
    lake.commits[ORDERS] = 2
    bigquery.asked = 0
    assert follower.after(CARTS) == {}
    assert (shown(bigquery), bigquery.asked) == (["1.metadata.json"], 0)
    assert follower.after(ORDERS) == {}
    assert shown(bigquery) == ["2.metadata.json"]


def test_a_table_that_cannot_be_moved_is_remembered_and_tried_again(
    follower: Follower, commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    lake.commits[CARTS] = 1
    applied(commands)
    lake.commits |= {ORDERS: 2, CARTS: 2}
    bigquery.fails[NAME] = Unavailable("it is away")
    assert follower.after(ORDERS, CARTS) == {"shop.orders": "it is away"}
    assert sorted(shown(bigquery)) == ["1.metadata.json", "2.metadata.json"]
    bigquery.fails[NAME] = PreconditionFailed("another loader was faster")
    assert follower.after() == {"shop.orders": "other loaders are moving it"}
    del bigquery.fails[NAME]
    bigquery.fails[NAME] = ConfigurationError("it lacks bigquery.tables.update")
    assert follower.after(ORDERS) == {"shop.orders": "it lacks bigquery.tables.update"}
    del bigquery.fails[NAME]
    assert follower.after() == {}
    assert shown(bigquery) == ["2.metadata.json"] * 2


def test_a_loader_that_planned_before_the_newest_commit_leaves_no_table_behind(
    follower: Follower, commands: CatalogCommands, lake: Lake, bigquery: BigQuery
) -> None:
    """It moves the table after this load has planned, which then finds another file than it expects."""
    applied(commands)
    lake.commits[ORDERS] = 3
    late, point = ["gs://lake/shop.orders/2.metadata.json"], bigquery.point

    def moving(change: PointAtMetadata) -> None:
        if late:
            bigquery.stored[NAME] = KnownTable(True, (late.pop(),), change.table.connection)
        if files_of(bigquery.stored[NAME].files) != change.before:
            raise PreconditionFailed("it was changed meanwhile")
        point(change)

    bigquery.point = moving  # type: ignore[method-assign]
    assert follower.after(ORDERS) == {}
    assert shown(bigquery) == ["3.metadata.json"]


def test_loads_at_the_same_time_lose_no_note_of_each_other(
    follower: Follower, commands: CatalogCommands, lake: Lake, bigquery: BigQuery, tmp_path: Path
) -> None:
    lake.commits[CARTS] = 1
    applied(commands)
    lake.commits |= {ORDERS: 2, CARTS: 2}
    bigquery.fails[NAME] = Unavailable("it is away")
    assert follower.after(ORDERS) == {"shop.orders": "it is away"}
    root, known = tmp_path / "catalog/catalog.yaml", bigquery.known

    def while_another_load_ends(table: ExternalTable) -> KnownTable | None:
        bigquery.known = known  # type: ignore[method-assign]
        root.write_text("nmaes: {}\n")
        assert "mistakes" in follower.after(CARTS)["shop.carts"]
        root.write_text(ROOT)
        return known(table)

    del bigquery.fails[NAME]
    bigquery.known = while_another_load_ends  # type: ignore[method-assign]
    assert follower.after(ORDERS).keys() == {"shop.carts"}
    assert follower.after() == {}
    assert shown(bigquery) == ["2.metadata.json"] * 2


def test_nothing_that_fails_reaches_the_load(
    follower: Follower, commands: CatalogCommands, lake: Lake, bigquery: BigQuery, tmp_path: Path
) -> None:
    applied(commands)
    lake.commits[ORDERS] = 2
    bigquery.fails[NAME] = Unavailable("it is away")
    store = follower.world.store
    store.faults = Script("create", "metrics/", Outcome.UNAVAILABLE)
    follow_lake(
        follower.world.reopened(load_store=lambda: store.view("loader")).deployment,
        lambda: commands,
        (ORDERS,),
    )
    assert readers_behind(store) == {}
    assert follower.after(ORDERS) == {"shop.orders": "it is away"}
    (tmp_path / "catalog/catalog.yaml").unlink()
    assert follower.after() == {}, "nobody asks for it any more"


@pytest.mark.parametrize("seconds", [SECONDS, TICK_SECONDS])
def test_nobody_waits_for_long(
    seconds: int,
    follower: Follower,
    commands: CatalogCommands,
    lake: Lake,
    bigquery: BigQuery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake.commits[CARTS] = 1
    applied(commands)
    lake.commits |= {ORDERS: 2, CARTS: 2}

    def slow(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(argument: object) -> object:
            follower.world.clock.sleep(seconds + 1)
            return call(argument)

        return called

    monkeypatch.setattr(bigquery, "point", slow(bigquery.point))
    [(late, why)] = follower.after(ORDERS, CARTS, seconds=seconds).items()
    assert (late, "no time" in why) == ("shop.orders", True)
    monkeypatch.setattr(bigquery, "known", slow(bigquery.known))
    assert follower.after(CARTS, seconds=seconds).keys() == {"shop.orders", "shop.carts"}


class Told:
    """Notes the tables that it is to move."""

    def __init__(self) -> None:
        self.tables: list[set[TableReference]] = []

    def move_readers(
        self, changed: Collection[TableReference], is_late: Callable[[], bool]
    ) -> Mapping[TableReference, str]:
        self.tables.append(set(changed))
        return {}


def test_loads_and_compactions_and_expiries_name_what_they_changed(
    follower: Follower, tmp_path: Path
) -> None:
    world, told = follower.world, Told()
    world.produce(3)
    world.parts.extractor.extract()
    loader = replace(world.parts.loader, open_readers=lambda: told)
    loader.load()
    assert [{str(table) for table in tables} for tables in told.tables] == [{"shop.orders"}]
    loader.load()
    assert len(told.tables) == 1
    lake = LakeOfFiles(tmp_path)
    for offset in range(5):
        lake.load(offset)
    newest = max(file.added_ms for file in view_of(lake).files)
    world.clock.skew_ms = newest + 3_600_001 - world.clock.now_ms()
    parts = world.reopened(warehouse=lambda: lake.warehouse)
    compactor = replace(parts.compactor, open_readers=lambda: told)
    assert compactor.compact(lake.reference).commits == 1
    assert compactor.compact(lake.reference).commits == 0
    assert told.tables[1:] == [{lake.reference}]
    with lake.table.transaction() as change:
        change.set_properties(
            {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
        )
    assert compactor.expire(lake.reference).tidied.snapshots
    assert told.tables[2:] == [{lake.reference}]


def test_only_a_lake_with_a_catalog_has_readers_to_move(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    place = {"KBQ_WAREHOUSE": f"iceberg:{tmp_path}/lake"}
    catalog = {"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")}
    told = Told()
    for environ, moved in ((place | catalog, 1), (place, 1), (catalog, 1)):
        follow_lake(FakePlatform(tmp_path, environ=environ).parts.deployment, lambda: told, (ORDERS,))
        assert len(told.tables) == moved


class Parts:
    """What the command asks for."""

    def __init__(self, commands: CatalogCommands) -> None:
        self.catalog_commands = commands
