"""`kbq catalog apply` lets BigQuery read a lake, as the section `lake_in_bigquery` says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbq_assets.core.catalog.lake_tables import ExternalTable, KnownTable, PointAtMetadata
from kbq_assets.core.config.locations import Bucket, LakeAddress
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.catalog.apply import CatalogCommands
from kbq_assets.extras.catalog.cli import apply, diff
from kbq_assets.extras.catalog.lake_tables import LakeTables, lake_tables_of
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

ENTRY = f"consumers: [archiver]\nkafka: {{name: {TOPIC}, partitions: 2}}\n"
ROOT = "names: {dataset: '{company}'}\nlake_in_bigquery: {connection: my-project.eu.lake}\n"
ORDERS, CARTS = TableReference("shop", "orders"), TableReference("shop", "carts")
NAME = "my-project.shop_lake.orders"


class Lake:
    """A lake in a bucket: each table has a number of commits."""

    def __init__(self) -> None:
        self.commits = {ORDERS: 1, TableReference("ads", "clicks"): 1}

    def files(self, datasets: Collection[str]) -> Mapping[TableReference, str]:
        return {
            table: f"gs://lake/{table}/{number}.metadata.json"
            for table, number in self.commits.items()
            if table.dataset in datasets
        }


class BigQuery:
    """External tables in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, KnownTable] = {}

    def known(self, table: ExternalTable) -> KnownTable | None:
        return self.stored.get(table.name)

    def point(self, change: PointAtMetadata) -> None:
        table = change.table
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


class Parts:
    """What the command asks for."""

    def __init__(self, commands: CatalogCommands) -> None:
        self.catalog_commands = commands
