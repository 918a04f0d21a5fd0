"""Locations: the meaning of a URL. Mistakes are reported, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbq_assets.core.config.locations import (
    BigQueryProject,
    Bucket,
    DuckDbFile,
    Folder,
    LakeAddress,
    NamedWarehouse,
    Staging,
    WarehousePlace,
    check_places,
    parse_bucket,
    parse_staging,
    parse_warehouse,
    parse_warehouses,
)
from kbq_assets.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("staging", Folder(Path("staging"))),
        ("/data/with space", Folder(Path("/data/with space"))),
        ("file:///data/with%20space", Folder(Path("/data/with space"))),
        ("gs://my-bucket", Bucket("my-bucket", "")),
        ("gs://my-bucket/", Bucket("my-bucket", "")),
        ("gs://my.bucket_1/a/b=c/", Bucket("my.bucket_1", "a/b=c")),
    ],
)
def test_staging_is_a_folder_or_a_bucket(url: str, place: Staging) -> None:
    assert parse_staging(url) == place


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("duckdb:a/b.duckdb", DuckDbFile(Path("a/b.duckdb"))),
        (
            "bigquery://my-jobs?location=EU&datasets=my-data",
            BigQueryProject("my-jobs", "EU", datasets="my-data"),
        ),
        ("bigquery://my-project", BigQueryProject("my-project", "US")),
        ("iceberg:/data/the lake", LakeAddress(Path("/data/the lake"))),
        ("iceberg:./lake", LakeAddress(Path("./lake"))),
        ("iceberg:file:///data/the%20lake", LakeAddress(Path("/data/the lake"))),
        ("iceberg:gs://bucket/a/b/", LakeAddress(bucket=Bucket("bucket", "a/b"))),
        ("iceberg:prod-1", LakeAddress(catalog="prod-1")),
        ("bigquery://my-project/?location=EU", BigQueryProject("my-project", "EU")),
        (
            "bigquery://example.com:my-project?location=europe-west3",
            BigQueryProject("example.com:my-project", "europe-west3"),
        ),
    ],
)
def test_a_warehouse_is_a_file_or_a_project(url: str, place: WarehousePlace) -> None:
    assert parse_warehouse(url) == place


def test_several_warehouses_have_names() -> None:
    assert parse_warehouses("duckdb:a,b.duckdb") == (NamedWarehouse("", "duckdb:a,b.duckdb"),)
    found = parse_warehouses("bq=bigquery://my-project?location=EU, local=duckdb:a,b.duckdb")
    assert [(each.name, each.place) for each in found] == [
        ("bq", BigQueryProject("my-project", "EU")),
        ("local", DuckDbFile(Path("a,b.duckdb"))),
    ]
    assert parse_warehouses("bq=duckdb:a") == (NamedWarehouse("bq", "duckdb:a"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("duckdb:a,local=duckdb:b", "has no name"),
        ("a=duckdb:a,a=duckdb:b", "duplicate name or warehouse"),
        ("a=duckdb:a,b=duckdb:a", "duplicate name or warehouse"),
        ("A=duckdb:a,b=duckdb:b", "cannot be the name"),
        ("a=duckdb:a,b=mysql:b", "is not supported"),
        ("a=", "is not supported"),
    ],
)
def test_warehouses_that_could_be_confused_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_warehouses(text)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "is empty"),
        ("s3://bucket/a", "s3:// is not supported"),
        ("://bucket", "is not supported"),
        ("gs://", "cannot be the name of a bucket"),
        ("gs:///prefix", "cannot be the name of a bucket"),
        ("gs://My-Bucket/a", "cannot be the name of a bucket"),
        ("gs://user@bucket/a", "cannot be the name of a bucket"),
        ("gs://bucket//a", "cannot be the prefix"),
        ("gs://bucket/a/../b", "cannot be the prefix"),
        ("gs://bucket/a?location=EU", "cannot be the prefix"),
        ("gs://bucket/*", "cannot be the prefix"),
        ("gs://bucket/a\n", "cannot be the prefix"),
    ],
)
def test_no_other_staging_is_taken_for_one(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_staging(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "is not supported"),
        ("duckdb:", "is not supported"),
        ("postgres://host/db", "postgres: is not supported"),
        ("iceberg:", "is not supported"),
        ("iceberg:s3://bucket/lake", "s3:// is not built yet"),
        ("iceberg:s3a://bucket/lake", "s3:// is not built yet"),
        ("iceberg:abfss://bucket/lake", "abfss:// is not supported"),
        ("iceberg:http://user:secret@host", "http:// is not supported"),
        ("iceberg:gs://user@bucket/a", "cannot be the name of a bucket"),
        ("iceberg:my lake", "neither a folder nor the name"),
        ("iceberg:user:secret@host", "neither a folder nor the name"),
        ("bigquery:my-project", "does not name a project"),
        ("bigquery://", "does not name a project"),
        ("bigquery://my-project/dataset", "does not name a project"),
        ("bigquery://my-project?region=EU", "other than one location"),
        ("bigquery://my-project?location=EU&location=US", "other than one location"),
        ("bigquery://my-project?EU", "other than one location"),
        ("bigquery://my-project?location=", "is not a location"),
        ("bigquery://my-project?location=E U", "is not a location"),
    ],
)
def test_no_other_warehouse_is_taken_for_one(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        parse_warehouse(url)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("staging", "warehouse"),
    [
        ("gs://bucket/a", "bigquery://my-project"),
        ("gs://bucket/a", "duckdb:a"),
        ("/a", "duckdb:a"),
    ],
)
def test_a_warehouse_goes_with_staging_that_it_can_read(staging: str, warehouse: str) -> None:
    check_places(parse_staging(staging), parse_warehouse(warehouse))


def test_bigquery_cannot_read_a_folder() -> None:
    with pytest.raises(ConfigurationError, match="local folder") as caught:
        check_places(Folder(Path("a")), BigQueryProject("my-project", "US"))
    assert "KBQ_STAGING=gs://bucket/prefix" in caught.value.next_step


@pytest.mark.parametrize(
    "address", ["gs:/bucket/a", "gs:bucket", "file:/data", "file:data", "file://data/a", "file://"]
)
@pytest.mark.parametrize("parse", [parse_staging, lambda url: parse_warehouse(f"iceberg:{url}")])
def test_an_address_that_lacks_a_slash_is_not_taken_for_a_folder(
    address: str, parse: Callable[[str], object]
) -> None:
    with pytest.raises(ConfigurationError, match=r"is not the address of a folder|neither a folder"):
        parse(address)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("bigquery://my-project?datasets=", "'' in .* is not a project"),
        ("bigquery://my-project?datasets=My_Data", "'My_Data' in .* is not a project"),
        ("bigquery://my-project?datasets=a&datasets=b", "other than one location"),
        ("bigquery://1project", "does not name a project"),
        ("bigquery://project-", "does not name a project"),
    ],
)
def test_the_project_of_datasets_is_a_project_too(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse_warehouse(url)


def test_datasets_are_in_the_project_of_the_jobs_unless_another_is_named() -> None:
    assert BigQueryProject("jobs", "EU").data_project == "jobs"
    assert BigQueryProject("jobs", "EU", "data").data_project == "data"


@pytest.mark.parametrize("url", ["file:///a", "/a", "", "bigquery://p", "gs:bucket"])
def test_a_bucket_needs_its_own_scheme(url: str) -> None:
    with pytest.raises(ConfigurationError, match="does not name a bucket"):
        parse_bucket(url)
