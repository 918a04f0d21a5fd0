"""Requests about an external table that reads a lake: DDL creates it, a patch moves it, and nothing replaces it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbq_assets.adapters.bigquery.external import BigQueryExternalTables
from kbq_assets.core.catalog.lake_tables import ExternalTable, KnownTable, PointAtMetadata
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.errors import ConfigurationError, NotFound, PreconditionFailed
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    CannedBigQuery,
    canned_bigquery,
    table_resource,
)

OLD, NEW = "gs://lake/1.metadata.json", "gs://lake/2.metadata.json"
CONNECTION = f"{PROJECT}.eu.lake"
WANTED = ExternalTable(PROJECT, TABLE, CONNECTION, NEW)
FIELD = {"name": "a", "type": "STRING"}


def stored(*files: str) -> dict[str, Any]:
    configuration = {
        "sourceFormat": "ICEBERG",
        "sourceUris": list(files),
        "connectionId": CONNECTION,
        "autodetect": True,
    }
    return table_resource(FIELD, type="EXTERNAL", externalDataConfiguration=configuration)


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        yield found


@pytest.fixture
def tables(server: CannedBigQuery) -> BigQueryExternalTables:
    return BigQueryExternalTables(server.client(), BigQueryProject(PROJECT, LOCATION), patience_seconds=0.0)


def test_what_bigquery_has_is_known(server: CannedBigQuery, tables: BigQueryExternalTables) -> None:
    server.refuse("tables.get", 404, "notFound")
    assert tables.known(WANTED) is None
    server.reply("tables.get", table_resource(FIELD))
    assert tables.known(WANTED) == KnownTable(is_iceberg=False)
    csv = {"sourceFormat": "CSV", "sourceUris": [OLD]}
    server.reply("tables.get", table_resource(FIELD, externalDataConfiguration=csv))
    assert tables.known(WANTED) == KnownTable(is_iceberg=False)
    server.reply("tables.get", stored(OLD))
    assert tables.known(WANTED) == KnownTable(True, (OLD,), CONNECTION)


def test_a_table_is_created_by_its_statement(server: CannedBigQuery, tables: BigQueryExternalTables) -> None:
    answer = {"jobComplete": True, "jobReference": {"projectId": PROJECT, "jobId": "q"}, "totalRows": "0"}
    server.reply("jobs.query", answer)
    change = PointAtMetadata(WANTED)
    tables.point(change)
    [(_, body)] = server.requests
    assert body["query"] == change.ddl
    assert body["location"] == LOCATION
    assert body["useLegacySql"] is False


def test_a_missing_dataset_is_named(server: CannedBigQuery, tables: BigQueryExternalTables) -> None:
    server.refuse("jobs.query", 404, "notFound", "Dataset shop-prod:shop was not found")
    with pytest.raises(NotFound, match="Dataset shop-prod:shop was not found"):
        tables.point(PointAtMetadata(WANTED))


def test_a_table_is_moved_and_only_its_file_changes(
    server: CannedBigQuery, tables: BigQueryExternalTables
) -> None:
    server.reply("tables.get", stored(OLD))
    server.reply("tables.patch", stored(NEW))
    tables.point(PointAtMetadata(WANTED, OLD))
    [patch] = server.sent("tables.patch")
    assert [method for method, _ in server.requests] == ["tables.get", "tables.patch"]
    assert patch.json["externalDataConfiguration"] == stored(NEW)["externalDataConfiguration"]
    assert patch.json["schema"] in (None, {"fields": None})
    assert patch.json.keys() == {"externalDataConfiguration", "schema"}
    assert patch.headers["If-Match"] == "e1"
    assert patch.query["autodetect_schema"].lower() == "true"


def test_a_table_that_changes_meanwhile_is_left_alone(
    server: CannedBigQuery, tables: BigQueryExternalTables
) -> None:
    server.reply("tables.get", stored(OLD))
    server.refuse("tables.patch", 412, "conditionNotMet")
    with pytest.raises(PreconditionFailed, match="changed meanwhile"):
        tables.point(PointAtMetadata(WANTED, OLD))
    server.reply("tables.get", stored("gs://lake/3.metadata.json"))
    with pytest.raises(PreconditionFailed, match="changed meanwhile"):
        tables.point(PointAtMetadata(WANTED, OLD))  # another loader moved it beyond what this one has seen
    server.reply("tables.get", table_resource(FIELD))
    with pytest.raises(NotFound, match="is gone"):
        tables.point(PointAtMetadata(WANTED, OLD))
    assert len(server.sent("tables.patch")) == 1


def test_a_missing_right_is_named(server: CannedBigQuery, tables: BigQueryExternalTables) -> None:
    server.reply("tables.get", stored(OLD))
    server.refuse("tables.patch", 403, "accessDenied")
    with pytest.raises(ConfigurationError) as caught:
        tables.point(PointAtMetadata(WANTED, OLD))
    assert "bigquery.tables.update" in caught.value.next_step
