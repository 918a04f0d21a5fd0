"""BigQuery reads a lake's tables through their newest metadata. Unreadable tables are reported, others are left
alone."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.lake_tables import (
    ExternalTable,
    KnownTable,
    LakeInBigQuery,
    PointAtMetadata,
    external_tables,
    plan_lake_tables,
)
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.core.catalog.documents import catalog_of

ORDERS = TableReference("shop", "orders")
OLD, NEW = (f"gs://lake/shop/orders/metadata/{n}.metadata.json" for n in ("00001-a", "00002-b"))
RULES = LakeInBigQuery("my-project.eu.lake")
WANTED = ExternalTable("my-project", TableReference("shop_lake", "orders"), "my-project.eu.lake", NEW)


def rules_of(text: str) -> LakeInBigQuery:
    catalog = catalog_of({"catalog.yaml": f"lake_in_bigquery: {{{text}}}"})
    assert not catalog.problems
    found = catalog.convention.lake_in_bigquery
    assert found is not None
    return found


def test_the_section_says_where_tables_are_and_who_reads() -> None:
    assert rules_of("connection: my-project.eu.lake") == RULES
    assert RULES.place == BigQueryProject("my-project", "eu")
    other = rules_of("connection: 'example.com:p1.europe-west3.lake', dataset: '{dataset}', project: data")
    assert other.place == BigQueryProject("data", "europe-west3")
    assert catalog_of({"catalog.yaml": "envs: [prod]"}).convention.lake_in_bigquery is None


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("project: my-project", "lake_in_bigquery.connection"),
        ("connection: my-project.lake", "lake_in_bigquery.connection"),
        ("connection: 'p1.eu.`x`'", "lake_in_bigquery.connection"),
        ("connection: my-project.eu.lake, dataset: lake", "lake_in_bigquery.dataset"),
        ("connection: my-project.eu.lake, dataset: 'a-{dataset}'", "lake_in_bigquery.dataset"),
        ("connection: my-project.eu.lake, project: A B", "lake_in_bigquery.project"),
        ("connection: my-project.eu.lake, bucket: b", "lake_in_bigquery.bucket"),
    ],
)
def test_mistakes_are_named(text: str, where: str) -> None:
    problems = catalog_of({"catalog.yaml": f"lake_in_bigquery: {{{text}}}"}).problems
    assert [problem.where for problem in problems] == [where]


def test_each_table_of_a_lake_gets_one_that_bigquery_can_read() -> None:
    here = {TableReference("shop", "carts"): "file:///lake/shop/carts/metadata/1.metadata.json"}
    wanted, refused = external_tables(RULES, [{ORDERS: NEW, **here}, {ORDERS: OLD}])
    assert wanted == [WANTED]
    assert [(each.place, each.message.split(":")[0]) for each in refused] == [
        ("shop.carts", "BigQuery cannot read file"),
        ("shop.orders", "gs"),
    ]
    assert "shop_lake.orders already reads a table of another lake" in refused[1].message


def test_a_missing_table_is_created_and_one_that_is_behind_is_moved() -> None:
    [created], left = plan_lake_tables([WANTED], {})
    assert left == []
    assert str(created) == f"create external table my-project.shop_lake.orders in BigQuery, which reads {NEW}"
    assert created.ddl == (
        "CREATE EXTERNAL TABLE IF NOT EXISTS `my-project.shop_lake.orders`\n"
        "WITH CONNECTION `my-project.eu.lake`\n"
        f"OPTIONS (format = 'ICEBERG', uris = [\"{NEW}\"]);"
    )
    known = KnownTable(True, (OLD,), "my-project.eu.lake")
    [moved], left = plan_lake_tables([WANTED], {WANTED.name: known})
    assert left == []
    assert str(moved) == f"my-project.shop_lake.orders in BigQuery is behind: move it from {OLD} to {NEW}"
    assert moved.ddl.startswith("CREATE OR REPLACE EXTERNAL TABLE `my-project.shop_lake.orders`\n")
    assert NEW in moved.ddl
    assert OLD not in moved.ddl


def test_a_path_cannot_end_its_string() -> None:
    table = ExternalTable("p", ORDERS, "p.eu.lake", 'gs://b/"]); DROP TABLE x; --\\')
    assert r'uris = ["gs://b/\"]); DROP TABLE x; --\\"]' in PointAtMetadata(table).ddl


@pytest.mark.parametrize(
    "connection",
    ["my-project.eu.lake", "1234567.EU.lake", "projects/1234567/locations/eu/connections/lake"],
)
def test_a_table_that_reads_the_newest_file_needs_nothing(connection: str) -> None:
    assert plan_lake_tables([WANTED], {WANTED.name: KnownTable(True, (NEW,), connection)}) == ([], [])


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (KnownTable(False), "exists but is not an external Iceberg table"),
        (KnownTable(True, (NEW,), "my-project.eu.other"), "uses the connection my-project.eu.other"),
        (KnownTable(True, (NEW,), ""), "uses the connection of its readers"),
    ],
)
def test_other_tables_and_connections_are_left_to_people(known: KnownTable, why: str) -> None:
    changes, [left] = plan_lake_tables([WANTED], {WANTED.name: known})
    assert changes == []
    assert left.place == WANTED.name
    assert why in left.message
