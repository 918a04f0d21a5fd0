"""A warehouse's URL: a project, a location, nothing else."""

from __future__ import annotations

import pytest

from kbq_assets.adapters.bigquery import open_bigquery
from kbq_assets.adapters.bigquery.connect import parse_url
from kbq_assets.adapters.google_auth import GoogleAccess
from kbq_assets.core.errors import ConfigurationError
from kbq_assets_tests.adapters.canned_bigquery import TABLE, canned_bigquery, table_resource


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("bigquery://shop-prod", ("shop-prod", "US")),
        ("bigquery://shop-prod/", ("shop-prod", "US")),
        ("bigquery://shop-prod?location=EU", ("shop-prod", "EU")),
        ("bigquery://shop-prod/?location=europe-west1", ("shop-prod", "europe-west1")),
        ("bigquery://example.com:shop", ("example.com:shop", "US")),
    ],
)
def test_a_url_names_a_project_and_a_location(url: str, expected: tuple[str, str]) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "bigquery://",
        "bigquery:shop-prod",
        "bigquery://shop-prod/dataset",
        "bigquery://Shop`Prod",
        "bigquery://shop-prod?dataset=x",
        "bigquery://shop-prod?location=",
        "bigquery://shop-prod?location=EU&location=US",
        "bigquery://shop-prod?location=E%20U",
        "bigquery://shop-prod#x",
        "duckdb:///tmp/x",
    ],
)
def test_anything_else_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bigquery://project\?location=EU"):
        parse_url(url)


def test_an_endpoint_takes_all_calls() -> None:
    with canned_bigquery() as server:
        server.reply("tables.get", table_resource({"name": "id", "type": "INTEGER"}))
        warehouse = open_bigquery(
            "bigquery://shop-prod?location=EU", GoogleAccess("anonymous", server.endpoint)
        )
        assert (warehouse.project, warehouse.location) == ("shop-prod", "EU")
        found = warehouse.columns(TABLE)
        assert found is not None
        assert [column.name for column in found] == ["id"]
