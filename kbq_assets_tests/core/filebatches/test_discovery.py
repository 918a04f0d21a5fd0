"""Batches, their configuration and their tables, as found in a listing of a source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.filebatches.config import (
    FileBatchConfig,
    SourceDefaults,
    config_of,
    destination_by,
    is_ordered,
)
from kbq_assets.core.filebatches.destinations import DEFAULT_REGEX, compile_regex, destination_of
from kbq_assets.core.filebatches.discovery import ListedObject, SourceListing, files_of, find_batches

SIGNS = ("_bqlock", "_BACKFILL", "_HISTORYDONE")
DEFAULTS = SourceDefaults(DEFAULT_REGEX)


def listed(*paths: str) -> list[ListedObject]:
    return [ListedObject(path, 0 if path.endswith("_SUCCESS") else 10, 7) for path in sorted(paths)]


def found(*paths: str) -> SourceListing:
    return find_batches(listed(*paths), "_SUCCESS", SIGNS)


def names(batch: str, *paths: str) -> list[str]:
    objects = listed(*paths)
    batches = find_batches(objects, "_SUCCESS", SIGNS).batches
    return [each.path for each in files_of(batch, objects, batches, SIGNS)]


LIFE_OF_A_TABLE = (
    "dataset/table/historical/2020/01/02/03/foo-data-00.csv",
    "dataset/table/historical/2020/01/02/03/foo-data-01.csv",
    "dataset/table/historical/2020/01/02/03/_SUCCESS",
    "dataset/table/historical/2020/01/02/04/foo-data-00.csv",
    "dataset/table/historical/2020/01/02/04/_SUCCESS",
    "dataset/table/incremental/2020/01/02/05/foo-data-01.csv",
)


def test_a_success_object_makes_its_directory_a_batch() -> None:
    listing = found(*LIFE_OF_A_TABLE)
    assert sorted(listing.batches) == [
        "dataset/table/historical/2020/01/02/03",
        "dataset/table/historical/2020/01/02/04",
    ]
    assert names("dataset/table/historical/2020/01/02/03", *LIFE_OF_A_TABLE) == list(LIFE_OF_A_TABLE[:2])


def test_files_below_a_batch_belong_to_it_unless_a_deeper_one_has_them() -> None:
    paths = ("d/t/_SUCCESS", "d/t/a.csv", "d/t/x/b.csv", "d/t/y/_SUCCESS", "d/t/y/c.csv", "d/tt/e.csv")
    assert names("d/t", *paths) == ["d/t/a.csv", "d/t/x/b.csv"]
    assert names("d/t/y", *paths) == ["d/t/y/c.csv"]


def test_a_batch_has_no_empty_hidden_or_steering_files() -> None:
    paths = ("d/t/_SUCCESS", "d/t/.crc", "d/t/_committed_1", "d/t/_bqlock", "d/t/_config/load.json", "d/t/a")
    assert names("d/t", *paths) == ["d/t/a"]
    objects = [ListedObject("d/t/empty.csv", 0, 1), ListedObject("d/t/full.csv", 1, 1)]
    assert [each.path for each in files_of("d/t", objects, ["d/t"], ())] == ["d/t/full.csv"]


def test_backlog_pointers_and_configuration_are_no_batches() -> None:
    listing = found("d/t/_backlog/x/_SUCCESS", "d/t/_config/_SUCCESS", "d/t/_BACKFILL", "_config/load.json")
    assert not listing.batches
    assert listing.sign("d/t", "_BACKFILL") == 7 and listing.sign("d/t", "_bqlock") == 0
    assert sorted(listing.configs) == ["", "d/t"]


@pytest.mark.parametrize(
    ("path", "table", "decorator", "prefix", "batch"),
    [
        ("shop/orders/_SUCCESS", "shop.orders", "", "shop/orders", ""),
        ("shop/orders/batch-1/_SUCCESS", "shop.orders", "", "shop/orders", "batch-1"),
        ("shop/orders/$20201026/_SUCCESS", "shop.orders", "$20201026", "shop/orders", ""),
        ("shop/orders/$2020102607/b/_SUCCESS", "shop.orders", "$2020102607", "shop/orders", "b"),
        ("shop/orders/historical/2020/01/02/03/_SUCCESS", "shop.orders", "$2020010203", "shop/orders", ""),
        (
            "shop/orders/incremental/2020/01/02/05/x/_SUCCESS",
            "shop.orders",
            "$2020010205",
            "shop/orders",
            "x",
        ),
        ("shop/orders/2020/01/02/_SUCCESS", "shop.orders", "$20200102", "shop/orders", ""),
        ("shop/orders/2020/_SUCCESS", "shop.orders", "$2020", "shop/orders", ""),
    ],
)
def test_a_path_names_table_partition_and_batch_as_in_googles_tool(
    path: str, table: str, decorator: str, prefix: str, batch: str
) -> None:
    destination = destination_of(path, compile_regex(DEFAULT_REGEX, ""))
    assert (str(destination.table), destination.decorator) == (table, decorator)
    assert (destination.prefix, destination.batch_id) == (prefix, batch)


def test_a_dataset_may_name_its_project() -> None:
    destination = destination_of("my-project.shop/orders/_SUCCESS", compile_regex(DEFAULT_REGEX, ""))
    assert (destination.project, str(destination.table)) == ("my-project", "shop.orders")


def test_an_expression_of_ones_own_pads_its_parts_and_moves_the_prefix() -> None:
    regex = (
        r"(?:[\w\-]+)/(?P<dataset>[\w]+)/(?P<table>[\w]+)/region=(?P<batch>\w+)/"
        r"yyyy=(?P<yyyy>\d{4})/mm=(?P<mm>\d+)/"
    )
    path = "on-prem-edw/my_product/transactions/region=US/yyyy=2020/mm=1/_SUCCESS"
    destination = destination_of(path, compile_regex(regex, ""))
    assert destination.prefix == "on-prem-edw/my_product/transactions"
    assert (destination.decorator, destination.batch_id) == ("$202001", "US")


def test_the_expressions_of_googles_own_pages() -> None:
    # README.md, Configurable Naming Convention with Regex
    hive = (
        r"(?:[\w\-_0-9]+)/(?P<dataset>[\w\-_0-9]+)/(?P<table>[\w\-_0-9]+)/region=(?P<batch>[\w]+)/"
        r"yyyy=(?P<yyyy>[0-9]{4})/mm=(?P<mm>[0-9]{2})/dd=(?P<dd>[0-9]{2})/hh=(?P<hh>[0-9]{2})/"
    )
    path = "on-prem-edw/my_product/transactions/region=US/yyyy=2020/mm=01/dd=02/hh=03/_SUCCESS"
    found = destination_of(path, compile_regex(hive, ""))
    assert (str(found.table), found.decorator) == ("my_product.transactions", "$2020010203")
    # README.md, Providing Destination Table in a Config File: the expression has no dataset
    prefix = r"(?P<table>.*?)(?:[\d]{4})?/?(?:[\d]{2})?/?(?:[\d]{2})?/?(?P<batch>[\d]{2})/?"
    fixed = {"projectId": "p", "datasetId": "sales", "tableId": "orders"}
    found = destination_of("landing/erp/2020/01/02/03/_SUCCESS", compile_regex(prefix, ""), fixed)
    assert (found.prefix, found.project, str(found.table)) == ("landing/erp", "p", "sales.orders")
    assert found.decorator == ""


@pytest.mark.parametrize(
    ("regex", "path"),
    [
        ("(", "a/b/_SUCCESS"),
        ("(?P<dataset>x)", "a/b/_SUCCESS"),
        ("(?P<table>a)", "a/b/_SUCCESS"),
        (DEFAULT_REGEX, "_SUCCESS"),
    ],
)
def test_a_path_without_a_table_is_refused(regex: str, path: str) -> None:
    with pytest.raises(ConfigurationError):
        destination_of(path, compile_regex(regex, "KBQ_FILES_DESTINATION_REGEX"))


def configured(batch: str, **texts: Any) -> FileBatchConfig:
    """The configuration of a batch; a `__` in a name is a slash."""
    contents = {
        path.replace("__", "/"): text if isinstance(text, str) else json.dumps(text)
        for path, text in texts.items()
    }
    objects = [ListedObject(path, 1, 1) for path in contents]
    listing = find_batches([*objects, ListedObject(f"{batch}/_SUCCESS", 0, 1)], "_SUCCESS", SIGNS)
    return config_of(batch, "_SUCCESS", listing, lambda each: contents[each.path].encode(), DEFAULTS)


def test_load_json_is_merged_from_the_bucket_to_the_batch() -> None:
    config = configured(
        "d/t/b",
        **{
            "_config/load.json": {"sourceFormat": "AVRO", "schemaUpdateOptions": ["ALLOW_FIELD_RELAXATION"]},
            "d/_config/load.json": {"sourceFormat": "CSV", "schema": {"fields": [{"name": "a"}]}},
            "d/t/_config/load.json": {"writeDisposition": "WRITE_TRUNCATE", "schemaUpdateOptions": []},
            "d/t/b/_config/load.json": {"schema": {"fields": [{"name": "b", "type": "INT64"}]}},
            "other/_config/load.json": {"sourceFormat": "ORC"},
        },
    )
    assert config.load == {
        "sourceFormat": "CSV",
        "writeDisposition": "WRITE_TRUNCATE",
        "schemaUpdateOptions": [],
        "schema": {"fields": [{"name": "b", "type": "INT64"}]},
    }


def test_without_configuration_a_batch_is_appended_csv() -> None:
    config = configured("d/t")
    assert config.load == {"sourceFormat": "CSV", "writeDisposition": "WRITE_APPEND"}
    assert (config.sql, config.external, config.ordered) == ("", {"sourceFormat": "PARQUET"}, False)


def test_the_nearest_statement_and_external_table_count() -> None:
    config = configured(
        "d/t/inc/1",
        **{
            "_config/all.sql": "far",
            "d/t/inc/_config/bq_transform.sql": "near",
            "d/_config/external.json": {"sourceFormat": "CSV"},
            "d/t/_config/external.json": {"sourceFormat": "AVRO"},
        },
    )
    assert config.sql == "near"
    assert config.external == {"sourceFormat": "AVRO"}


def test_orderme_orders_its_prefix_alone() -> None:
    listing = found(
        "d/t/incremental/_config/ORDERME", "d/t/incremental/1/_SUCCESS", "d/t/historical/1/_SUCCESS"
    )
    assert is_ordered("d/t/incremental/1", listing, DEFAULTS)
    assert not is_ordered("d/t/historical/1", listing, DEFAULTS)
    assert is_ordered("d/t/historical/1", listing, SourceDefaults(DEFAULT_REGEX, order_per_table=True))


def test_the_destination_may_be_configured() -> None:
    table = {"projectId": "p", "datasetId": "other", "tableId": "elsewhere"}
    config = configured(
        "d/t/2020/01/02",
        **{"d/_config/load.json": {"destinationTable": table, "dataSourceName": "edw"}},
    )
    destination = config.destination
    assert (destination.project, str(destination.table)) == ("p", "other.elsewhere")
    assert (destination.decorator, destination.prefix) == ("$20200102", "d/t")
    assert config.data_source == "edw" and "dataSourceName" not in config.load
    regex = {"destinationRegex": r"x/(?P<dataset>\w+)/(?P<table>\w+)/"}
    assert str(configured("x/d/t", **{"x/_config/load.json": regex}).destination.table) == "d.t"


@pytest.mark.parametrize(
    ("configs", "named"),
    [
        (
            {"d/_config/load.json": {"sourceFormat": "CSV", "skipLeadingRow": 1}},
            "does not honor the key skipLeadingRow",
        ),
        ({"d/_config/load.json": {"sourceFormat": "DATASTORE_BACKUP"}}, "DATASTORE_BACKUP"),
        ({"d/_config/load.json": {"writeDisposition": "WRTITE_TRUNCATE"}}, "WRTITE_TRUNCATE"),
        ({"d/_config/load.json": {"destinationTable": {"table": "x"}}}, "destinationTable"),
        ({"d/_config/load.json": "{"}, "d/_config/load.json"),
        ({"d/_config/load.json": "[]"}, "d/_config/load.json"),
        ({"d/_config/schema.json": "[]"}, "schema.json"),
        ({"_config/a.sql": "1", "_config/b.sql": "2"}, "a.sql, b.sql"),
        ({"d/t/_config/external.json": "nothing"}, "external.json"),
        ({"d/_config/load.json": {"labels": ["a"]}}, "labels"),
        ({"d/_config/load.json": {"skipLeadingRows": "one"}}, "skipLeadingRows"),
        ({"d/_config/load.json": {"skipLeadingRows": -1}}, "skipLeadingRows"),
        ({"d/_config/load.json": {"skipLeadingRows": True}}, "skipLeadingRows"),
        ({"d/_config/load.json": {"hivePartitioningOptions": None}}, "hivePartitioningOptions"),
        ({"d/_config/load.json": {"timePartitioning": "DAY"}}, "timePartitioning"),
        ({"d/_config/load.json": {"autodetect": "yes"}}, "autodetect"),
        ({"d/_config/load.json": {"destinationRegex": 5}}, "destinationRegex"),
        ({"d/_config/load.json": {"destinationTable": {"tableId": 5}}}, "tableId"),
        ({"d/_config/load.json": {"fieldDelimiter": 5}}, "fieldDelimiter"),
        ({"d/_config/external.json": {"csvOptions": {"quote": 1}}}, "quote"),
        (
            {"d/t/_config/external.json": {"sourceFormat": "CSV", "csvOption": {}}},
            "does not honor the key csvOption",
        ),
        ({"d/t/_config/external.json": {"sourceFormat": "GOOGLE_SHEETS"}}, "GOOGLE_SHEETS"),
    ],
)
def test_what_kbq_does_not_honor_is_refused_by_name(configs: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        configured("d/t", **configs)


def test_two_statements_of_different_levels_are_fine() -> None:
    assert configured("d/t", **{"_config/a.sql": "far", "d/_config/b.sql": "near"}).sql == "near"


def test_whole_numbers_may_be_text_as_in_bigquerys_api() -> None:
    assert configured("d/t", **{"_config/load.json": {"skipLeadingRows": "1"}}).load["skipLeadingRows"] == "1"


def test_a_batch_whose_configuration_cannot_be_read_keeps_its_table() -> None:
    path = "d/_config/load.json"
    listing = find_batches([ListedObject(path, 1, 1), *listed("d/t/1/_SUCCESS")], "_SUCCESS", SIGNS)
    found = destination_by("d/t/1", "_SUCCESS", listing, lambda each: b"{", DEFAULTS)
    assert found.prefix == "d/t"
