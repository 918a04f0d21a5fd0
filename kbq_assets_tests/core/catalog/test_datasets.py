"""Facts about a dataset, the same for every caller."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from pathlib import Path

import duckdb
import pytest

from kbq_assets.core.catalog import CatalogEntry
from kbq_assets.core.catalog.datasets import (
    DatasetColumn,
    by_table,
    dataset_of_entry,
    dataset_of_source,
    error_datasets,
    notes_of,
    sample_query,
)
from kbq_assets.core.catalog.json_columns import rows_of_json
from kbq_assets.core.config.locations import BigQueryProject, DuckDbFile
from kbq_assets.core.loading.table_notes import ColumnNote, TableNotes
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of

ORDERS = """
description: Orders of the shop.
typology: event
ownership: {team: Sales & co, email: sales@example.com, cost_center: c42}
consumers: [archiver]
kafka: {name: orders}
destination: {dataset: sales, table: orders}
labels: {Tier: Gold}
columns: {email: "Where to write to, as a pseudonym.", home.zip: Five digits.}
pii:
  level: HIGH
  tags: {email: HIGH}
  fields: {email: "pseudonym:customer", name: drop, born: "generalise:year", country: keep}
"""
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "email", "type": ["null", "string"], "doc": "An address."},
            {"name": "name", "type": "string"},
            {"name": "born", "type": {"type": "int", "logicalType": "date"}, "doc": "On that day."},
            {"name": "country", "type": "string"},
            {
                "name": "home",
                "pii": "low",
                "type": {
                    "type": "record",
                    "name": "Address",
                    "fields": [{"name": "zip", "type": "string", "doc": "of the post"}],
                },
            },
        ],
    }
)
TABLE = TableReference("sales", "orders")


def entry_of(text: str) -> CatalogEntry:
    catalog = catalog_of({ENTRY: text})
    assert catalog.problems == ()
    return catalog.entries[0]


def test_columns_are_those_of_the_table_with_the_catalogue_s_words_and_levels() -> None:
    assert dataset_of_entry(entry_of(ORDERS), SCHEMA).columns == (
        DatasetColumn(
            "email", "STRING", "NULLABLE", "Where to write to, as a pseudonym.", "HIGH", "pseudonym:customer"
        ),
        DatasetColumn("born", "DATE", "REQUIRED", "On that day.", "HIGH", "generalise:year"),
        DatasetColumn("country", "STRING", "REQUIRED", "", "", "keep"),
        DatasetColumn("home", "STRUCT", "REQUIRED", "", "LOW"),
        DatasetColumn("home.zip", "STRING", "REQUIRED", "Five digits.", "LOW"),
    )


def test_without_a_schema_the_entry_s_own_words_are_the_columns() -> None:
    columns = dataset_of_entry(entry_of(ORDERS)).columns
    assert [(c.name, c.description, c.pii, c.action) for c in columns] == [
        ("born", "", "HIGH", "generalise:year"),
        ("country", "", "", "keep"),
        ("email", "Where to write to, as a pseudonym.", "HIGH", "pseudonym:customer"),
        ("home.zip", "Five digits.", "", ""),
    ]


def test_a_tag_of_a_type_protects_the_column() -> None:
    type_ = ["null", {"type": "string", "pii": "HIGH"}]
    schema = {"type": "record", "name": "Order", "fields": [{"name": "phone", "type": type_}]}
    found = {
        column.name: column.pii for column in dataset_of_entry(entry_of(ORDERS), json.dumps(schema)).columns
    }
    assert found["phone"] == "HIGH"


def test_columns_that_a_json_schema_declares_have_its_descriptions_and_levels() -> None:
    item = {"type": "object", "properties": {"sku": {"type": "string", "description": "Which."}}}
    properties = {"email": {"type": "string", "pii": "HIGH"}, "items": {"type": "array", "items": item}}
    schema = rows_of_json(json.dumps({"type": "object", "properties": properties}))
    text = "encoding: json\nrecords: {json: columns}\nkafka: {name: orders}"
    assert dataset_of_entry(entry_of(text), schema).columns == (
        DatasetColumn("email", "STRING", pii="HIGH"),
        DatasetColumn("items", "STRUCT", "REPEATED"),
        DatasetColumn("items.sku", "STRING", description="Which."),
        DatasetColumn("_kbq_rest", "JSON", pii="HIGH"),
    )


def test_a_decision_about_an_avro_field_with_other_letters_is_one_about_its_column() -> None:
    fields = [{"name": "größe", "type": "string"}, {"name": "straße", "type": "string"}]
    said = "pii: {tags: {größe: HIGH}, fields: {größe: 'truncate:3', straße: drop}}"
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    [size] = dataset_of_entry(entry_of(f"kafka: {{name: orders}}\n{said}"), schema).columns
    assert (size.name, size.pii, size.action) == ("gr_u00f6_u00dfe", "HIGH", "truncate:3")


def test_a_decision_about_a_key_is_one_about_its_column() -> None:
    properties = {name: {"type": "string"} for name in ("e-mail", "user name", "to.all")}
    schema = rows_of_json(json.dumps({"type": "object", "properties": properties}))
    said = "pii: {tags: {e-mail: HIGH}, fields: {e-mail: 'truncate:3', user name: drop, a-b: keep}}"
    text = f"encoding: json\nrecords: {{json: columns}}\nkafka: {{name: orders}}\n{said}"
    assert dataset_of_entry(entry_of(text), schema).columns == (
        DatasetColumn("e_mail", "STRING", pii="HIGH", action="truncate:3"),
        DatasetColumn("to_all", "STRING"),
        DatasetColumn("_kbq_rest", "JSON"),
        DatasetColumn("a-b", action="keep"),
    )


def test_who_and_what_are_the_entry_s() -> None:
    found = dataset_of_entry(entry_of(ORDERS))
    assert (found.topics, found.table, found.target) == (("orders",), TABLE, "sales.orders")
    assert (found.description, found.classification.typology, found.pii) == (
        "Orders of the shop.",
        "event",
        "HIGH",
    )
    assert (found.contacts.teams, found.contacts.emails, found.classification.cost_center) == (
        ("Sales & co",),
        ("sales@example.com",),
        "c42",
    )
    assert (found.classification.company, found.classification.domain, found.entries) == (
        "shop",
        "sales",
        (ENTRY,),
    )
    for word in ("orders", "sales & co", "pseudonym", "gold", "born"):
        assert word in found.words


def test_labels_are_such_as_bigquery_takes() -> None:
    notes = notes_of(dataset_of_entry(entry_of(ORDERS), SCHEMA), {"HIGH": "tag"})
    assert notes == TableNotes(
        "Orders of the shop.",
        {
            "owner": "sales___co", "cost_center": "c42", "domain": "sales", "typology": "event", "pii": "high",
            "tier": "gold",
        },
        {
            "email": ColumnNote("Where to write to, as a pseudonym.", "HIGH"),
            "born": ColumnNote("On that day.", "HIGH"),
            "country": ColumnNote(),
            "home": ColumnNote("", "LOW"),
            "home.zip": ColumnNote("Five digits.", "LOW"),
        },
        {"HIGH": "tag"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "table"),
    [
        ("orders dataset=sales", "sales.orders"),
        ("shop.orders dataset=sales table={topic.2}", "sales.orders"),
        ("audit-* dataset=sales", None),
        ("audit-* dataset=sales table=audit", "sales.audit"),
        ("orders dataset=sales route=record_name", None),
        ("orders dataset=sales table={field.kind}", None),
    ],
)
def test_a_dataset_has_a_table_where_its_name_does_not_depend_on_records(
    line: str, table: str | None
) -> None:
    (source,) = parse_source_list(line, "topics")
    assert dataset_of_source(source).table == (TableReference.parse(table) if table else None)


def test_a_topic_that_is_not_archived_has_no_table() -> None:
    found = dataset_of_entry(entry_of("kafka: {name: orders}\ndescription: Orders."))
    assert (found.table, found.target, by_table([found])) == (None, "", {})


def test_a_table_of_several_topics_has_the_words_of_all_of_them() -> None:
    text = "consumers: [archiver]\ndestination: {dataset: sales, table: orders}\ndescription: From"
    shared = "ownership: {team: sales, cost_center: c1}\npii: {level: "
    catalog = catalog_of(
        {
            "shop/sales/web/prod/topic.yaml": f"{text} the web.\n{shared}LOW}}\nkafka: {{name: web}}",
            "shop/sales/app/prod/topic.yaml": f"{text} the app.\n{shared}MEDIUM}}\nkafka: {{name: app}}",
        }
    )
    (found,) = by_table(dataset_of_entry(entry) for entry in catalog.entries).values()
    assert (found.topics, found.description) == (("app", "web"), "From the app. From the web.")
    assert (found.contacts.teams, found.classification.cost_center, found.pii) == (("sales",), "c1", "MEDIUM")


def test_tables_of_bad_records_are_datasets_where_there_may_be_some() -> None:
    sources = parse_source_list(
        "a dataset=sales\nb dataset=quiet errors=skip tombstones=skip\nc dataset=sales", "topics"
    )
    assert list(error_datasets(sources)) == [TableReference("sales", "kbq_errors")]


def test_a_sample_query_is_in_the_warehouse_s_words() -> None:
    google = sample_query(TABLE, BigQueryProject("p", "EU"))
    assert "FROM `p.sales.INFORMATION_SCHEMA.PARTITIONS`\n  WHERE table_name = 'orders'" in google
    assert google.endswith("FROM `p.sales.orders`\nWHERE event_date >= newest\nLIMIT 100;")
    assert 'FROM "sales"."orders"\nWHERE event_date = (' in sample_query(TABLE, DuckDbFile(Path("x")))


def test_a_sample_query_returns_rows_however_old_they_are() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA sales; CREATE TABLE sales.orders (n INT, event_date DATE)")
        connection.execute("INSERT INTO sales.orders VALUES (1, '2013-01-01'), (2, '2013-01-02')")
        assert connection.execute(sample_query(TABLE, DuckDbFile(Path("x")))).fetchall() == [
            (2, date(2013, 1, 2))
        ]


@pytest.mark.parametrize(
    ("partition_id", "begins"), [("2013010223", "20130102"), ("20130102", "20130102"), ("201301", "20130101")]
)
def test_a_sample_query_finds_the_newest_partition_of_hours_days_and_months(
    partition_id: str, begins: str
) -> None:
    """DuckDB has both functions; a partition of rows without a date has no date in its id."""
    found = re.search(r"RPAD\(.*?'01'\)", sample_query(TABLE, BigQueryProject("p", "EU")))
    assert found is not None
    ids = f"(VALUES ('{partition_id}'), ('__NULL__'), ('__UNPARTITIONED__'), ('2012'))"
    query = f"SELECT max(try_strptime({found[0]}, '%Y%m%d')) FROM {ids} AS ids(partition_id)"
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchall() == [(datetime.strptime(begins, "%Y%m%d"),)]


def test_columns_in_snake_case_keep_the_notes_levels_and_tags_of_their_fields() -> None:
    text = """
description: Orders.
typology: event
ownership: {team: Sales}
consumers: [archiver]
kafka: {name: orders}
destination: {dataset: sales, table: orders, column_names: snake_case}
columns: {eMail: Where to write to., shipTo.zipCode: Five digits.}
pii: {tags: {shipTo.zipCode: HIGH}, fields: {eMail: pseudonym, shipTo.zipCode: keep}}
"""
    address = {"type": "record", "name": "Address", "fields": [{"name": "zipCode", "type": "string"}]}
    fields = [{"name": "eMail", "type": "string"}, {"name": "shipTo", "type": address}]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    dataset = dataset_of_entry(entry_of(text), schema)
    assert {column.name: column.description for column in dataset.columns} == {
        "e_mail": "Where to write to.",
        "ship_to": "",
        "ship_to.zip_code": "Five digits.",
    }
    assert notes_of(dataset, {"HIGH": "tag"}).columns["ship_to.zip_code"] == ColumnNote(
        "Five digits.", "HIGH"
    )
