"""Each table's own page in Dagster's catalog."""

from __future__ import annotations

import json
from collections.abc import Mapping

import dagster as dg

from kbq_assets.core.catalog.datasets import Dataset, by_table, dataset_of_entry, error_datasets
from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import SourceEntry, parse_source_list, select_entries
from kbq_assets.defs.loading.datasets import dataset_spec
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of
from kbq_assets_tests.defs.world import PlatformWorld

FLIGHTS = dg.AssetKey(["nyc", "flights"])
TEXT = """
description: Orders of the shop.
typology: event
ownership: {team: sales, email: sales@example.com, slack: "#sales", cost_center: c42}
consumers: [archiver, fraud]
kafka: {name: orders}
destination: {dataset: sales, table: orders}
pii: {level: LOW, tags: {email: LOW}}
"""
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "email", "type": "string", "doc": "Where to write to."}],
    }
)


def spec_of(text: str, **environ: str) -> dg.AssetSpec:
    (entry,) = catalog_of({ENTRY: text}).entries
    datasets = by_table([dataset_of_entry(entry, SCHEMA)])
    return spec_in(parse_settings(environ), datasets, (entry.source,), "orders")


def spec_in(
    settings: Settings,
    datasets: Mapping[TableReference, Dataset],
    sources: tuple[SourceEntry, ...],
    *topics: str,
) -> dg.AssetSpec:
    """The asset of the only table."""
    (table,) = datasets
    pages = Pages(AssetTranslator(), sources, select_entries(sources, topics), datasets)
    return dataset_spec(settings, pages, table)


def test_a_page_says_whose_and_what_a_table_is() -> None:
    spec = spec_of(TEXT)
    assert (spec.key, spec.group_name) == (dg.AssetKey(["sales", "orders"]), "sales")
    assert (list(spec.owners), spec.kinds) == (["team:sales", "sales@example.com"], {"duckdb", "table"})
    tags = {key: value for key, value in spec.tags.items() if key.startswith("kbq/")}
    assert tags == {
        "kbq/company": "shop", "kbq/domain": "sales", "kbq/typology": "event", "kbq/pii": "LOW",
        "kbq/cost_center": "c42",
    }  # fmt: skip
    for words in (
        "Orders of the shop.",
        "`orders`",
        "**LOW**",
        "#sales",
        '```sql\nSELECT *\nFROM "sales"."orders"',
    ):
        assert words in (spec.description or "")
    assert {dep.asset_key for dep in spec.deps} == {dg.AssetKey(["staged", "orders"])}


def test_words_that_dagster_refuses_cost_no_page() -> None:
    text = TEXT.replace("sales@example.com", "sales@example.solutions").replace("c42", "'Büro / 42 '")
    spec = spec_of(text.replace("team: sales,", "team: 'team:',"))
    assert list(spec.owners) == ["team:sales@example.solutions"]
    assert spec.tags["kbq/cost_center"] == "B_ro___42"


def test_a_page_shows_the_columns_before_anything_is_loaded() -> None:
    (column,) = spec_of(TEXT).metadata["dagster/column_schema"].columns
    assert (column.name, column.type, column.description) == ("email", "STRING", "Where to write to.")
    assert column.tags == {"kbq/pii": "LOW"}


def test_a_page_on_bigquery_leads_to_the_console() -> None:
    spec = spec_of(TEXT, KBQ_WAREHOUSE="bigquery://shop-prod?location=EU", KBQ_STAGING="gs://my-bucket/kbq")
    assert spec.metadata["dagster/table_name"] == "shop-prod.sales.orders"
    assert "d=sales&t=orders" in str(spec.metadata["console"].value)
    assert "FROM `shop-prod.sales.orders`" in str(spec.metadata["sample_query"].value)


def test_no_table_s_page_is_a_topic_s() -> None:
    sources = parse_source_list("orders", "topics")  # of the dataset kafka
    translator = AssetTranslator()
    assert translator.dataset_key(
        sources[0].settings.destination.table_for("orders")
    ) != translator.topic_key("orders")


def test_tables_of_bad_records_have_pages_with_their_columns() -> None:
    sources = parse_source_list("orders dataset=sales", "topics")
    spec = spec_in(parse_settings({}), error_datasets(sources), sources, "orders")
    staged = dg.AssetKey(["staged", "orders"])
    assert (spec.key.path, [dep.asset_key for dep in spec.deps]) == (["sales", "kbq_errors"], [staged])
    assert "reason" in {column.name for column in spec.metadata["dagster/column_schema"].columns}


def test_what_was_loaded_is_reported_once_to_the_page_of_its_table(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(3)
    world.run("extract_and_load", instance)
    world.run("extract_and_load", instance)
    (event,) = instance.fetch_materializations(FLIGHTS, limit=10).records
    metadata = event.asset_materialization.metadata  # type: ignore[union-attr]
    assert (metadata["rows"].value, metadata["dagster/row_count"].value) == (3, 3)
    assert metadata["dagster/last_updated_timestamp"].value == world.clock.now_ms() / 1000
    columns = {column.name: column.description for column in metadata["dagster/column_schema"].schema.columns}  # type: ignore[union-attr]
    assert columns["_kafka_topic"] == "The Kafka topic of the record."


def test_tables_that_only_records_name_have_a_page_once_they_are_loaded(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.kafka.create_topic("other.a", 1)
    world.produce(2, topic="other.a")
    world.run("extract_and_load", instance)
    page = dg.AssetKey(["nyc", "Flight"])
    assert page in instance.get_asset_keys()
    assert page not in world.definitions.resolve_asset_graph().get_all_asset_keys()
    assert page in world.reopened().definitions.resolve_asset_graph().materializable_asset_keys


def test_a_page_names_what_materializes_it(world: PlatformWorld) -> None:
    node = world.definitions.resolve_asset_graph().get(FLIGHTS)
    assert "`done_file_sensor` materializes it" in str(node.description)
    assert node.metadata["materialized_by"] == "done_file_sensor"
