"""The catalog's descriptions reach tables, stay current, and cost a load nothing if nothing changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kbq_assets.core.catalog import CatalogFiles
from kbq_assets.core.loading.table_notes import ColumnNote, TableNotes
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.catalog.datasets import DatasetReader
from kbq_assets.pipelines.catalog.reader import CatalogReader
from kbq_assets_tests.core.catalog.documents import documents
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.pipelines.bench import TP, A, Bench

TAG = "projects/shop/locations/eu/taxonomies/12/policyTags/34"
SAID = TableNotes(
    "Events of the shop.", {"owner": "sales"}, {"x": ColumnNote("How many.", "HIGH")}, {"HIGH": "tag"}
)


ORDERS = "shop/sales/orders/prod/topic.yaml"
EMAIL = """
description: Orders.
consumers: [archiver]
kafka: {name: orders}
pii: {tags: {email: HIGH}, fields: {email: keep}}
destination: {dataset: sales, table: orders}
"""


@pytest.mark.parametrize(
    ("table", "topics", "described"),
    [("sales.orders", ["other"], True), ("sales.orders_v2", ["orders"], False)],
)
def test_tables_of_a_topic_are_protected_whatever_they_are_called(
    table: str, topics: list[str], described: bool
) -> None:
    files = CatalogFiles(documents({"catalog.yaml": f"policy_tags: {{HIGH: {TAG}}}", ORDERS: EMAIL}), {})
    datasets = DatasetReader(CatalogReader(lambda: files, TopicSettings()), "").read()
    notes = datasets.notes(TableReference.parse(table), topics)
    assert (notes.columns, notes.policy_tags) == ({"email": ColumnNote("", "HIGH")}, {"HIGH": TAG})
    assert (notes.description, bool(notes.labels)) == ("Orders." if described else "", described)


def test_an_entry_s_words_are_in_the_warehouse_after_its_first_load(tmp_path: Path) -> None:
    entry = tmp_path / "catalog" / ORDERS
    entry.parent.mkdir(parents=True)
    entry.write_text(
        f"description: Orders.\nconsumers: [archiver]\nownership: {{team: sales}}\nkafka: {{name: {TOPIC}}}\n"
        "columns: {x: How many.}\ndestination: {dataset: shop, table: orders}\n"
    )
    world = FakePlatform(tmp_path, environ={"KBQ_SOURCE_TOPICS": str(tmp_path / "catalog")})
    world.produce(3)
    world.parts.extractor.extract()
    world.parts.loader.load()
    found = world.warehouse.find_table(TableReference("shop", "orders"))
    assert found is not None
    assert (found.description, found.labels["owner"], found.labels["domain"]) == ("Orders.", "sales", "sales")
    texts = {column.name: column.description for column in found.columns}
    assert (texts["x"], texts["_kafka_topic"]) == ("How many.", "The Kafka topic of the record.")


class Calls:
    """Records the loader's calls to the warehouse."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def __call__(self, call: Call) -> Outcome:
        if call.operation in ("create_table", "update_columns", "find_table"):
            self.operations.append(call.operation)
        return Outcome.OK


def loaded(bench: Bench, *schema_ids: int, notes: TableNotes = SAID) -> list[str]:
    """Load one record of each schema; the calls that were about tables."""
    bench.produce(*schema_ids)
    bench.extract()
    bench.faults = calls = Calls()
    bench.load(options=lambda table, topics: TableOptions(notes=notes))
    return calls.operations


def test_a_table_is_described_when_it_is_created() -> None:
    bench = Bench()
    assert loaded(bench, 1) == ["find_table", "create_table", "find_table"]
    found = bench.warehouse.find_table(A)
    assert found is not None
    assert (found.description, found.labels["owner"]) == ("Events of the shop.", "sales")
    (x,) = (column for column in found.columns if column.name == "x")
    assert (x.description, x.policy_tag) == ("How many.", "tag")


def test_a_load_of_a_table_that_is_as_declared_makes_no_call_for_it() -> None:
    bench = Bench()
    loaded(bench, 1)
    assert loaded(bench, 1) == ["find_table"]


def test_a_change_of_the_catalogue_alone_is_one_call_and_moves_no_file() -> None:
    bench = Bench()
    loaded(bench, 1)
    said = replace(SAID, description="Other.", columns={"x": ColumnNote("How much.")})
    assert loaded(bench, 1, notes=said) == ["find_table", "update_columns"]
    assert loaded(bench, 1, notes=said) == ["find_table"]
    found = bench.warehouse.find_table(A)
    assert found is not None
    assert (found.description, found.columns[0].description) == ("Other.", "How much.")
    assert found.columns[0].policy_tag == "tag"  # no column loses its protection


def test_what_a_person_wrote_where_the_catalogue_is_silent_stays() -> None:
    bench = Bench()
    loaded(bench, 1, notes=TableNotes())
    theirs = replace(bench.warehouse.columns(A)[0], description="by hand")  # type: ignore[index]
    bench.warehouse.update_columns(A, [theirs], TableNotes("by hand too"))
    assert loaded(bench, 2, notes=TableNotes()) == ["find_table", "update_columns"]  # a new column
    found = bench.warehouse.find_table(A)
    assert found is not None
    assert (found.description, found.columns[0].description) == ("by hand too", "by hand")


def test_a_table_that_begins_with_tombstones_has_the_records_own_columns_first() -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="A", tombstones="row", keys=True))
    bench.kafka.produce(TP, None, key=b"k", timestamp=1000)
    bench.produce(1)
    bench.extract()
    bench.load()
    found = bench.warehouse.columns(A)
    assert found is not None
    assert [column.name for column in found][:2] == ["x", "_kafka_topic"]
    assert [column.mode for column in found][:2] == ["NULLABLE", "REQUIRED"]
    assert bench.offsets(A) == [0, 1]
    assert bench.reconcile().accounted


def test_without_values_such_a_table_has_kbqs_columns_alone_and_gets_the_others_before_them_later() -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="A", tombstones="row", keys=True))
    bench.kafka.produce(TP, None, key=b"k", timestamp=1000)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    bench.load()
    assert [column.name for column in bench.warehouse.columns(A) or ()][:2] == ["x", "_kafka_topic"]
    assert bench.offsets(A) == [0, 1]


@pytest.mark.parametrize(
    ("decision", "said"), [("pseudonym", "A pseudonym of the"), ("keep", "as it was sent")]
)
def test_the_column_of_keys_says_whether_they_are_pseudonyms(decision: str, said: str) -> None:
    bench = Bench(
        TopicSettings.of(dataset="d", table="A", keys=True, pii=f"_key:{decision}"),
        pseudonyms=Pseudonyms("k", {"k": b"k" * 32}),
    )
    bench.produce(1)
    bench.extract()
    bench.load()
    [key] = [each for each in bench.warehouse.columns(A) or () if each.name == "_kafka_key"]
    assert said in key.description
