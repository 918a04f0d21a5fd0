"""Where the warehouse's client goes."""

from __future__ import annotations

from kbq_assets.adapters.bigquery import open_bigquery
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets_tests.adapters.bigquery.canned import TABLE, canned_bigquery, table_resource


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
