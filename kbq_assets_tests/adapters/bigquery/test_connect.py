"""The endpoint and settings of the warehouse's client."""

from __future__ import annotations

from requests.adapters import HTTPAdapter

from kbq_assets.adapters.bigquery import open_bigquery
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    canned_bigquery,
    job_resource,
    load_job,
    table_resource,
)


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


KEY = "projects/k/locations/eu/keyRings/r/cryptoKeys/c"


def test_a_key_encrypts_all_that_is_created_and_every_result() -> None:
    with canned_bigquery() as server:
        server.refuse("datasets.get", 404, "notFound")
        dataset = {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": LOCATION}
        server.reply("datasets.insert", dataset)
        found = table_resource({"name": "id", "type": "INTEGER"})
        for method in ("tables.insert", "tables.get"):
            server.reply(method, found)
        for method in ("jobs.insert", "jobs.get"):
            server.reply(
                method, job_resource("j", {"query": {"query": "SELECT 1"}}, status={"state": "DONE"})
            )
        warehouse = open_bigquery(
            "bigquery://shop-prod?location=EU", GoogleAccess("anonymous", server.endpoint, KEY)
        )
        warehouse.create_table(TABLE, [Column("id", "INT64")], TableOptions())
        warehouse.probe(load_job())
        warehouse.burn_job("kbq-1a2b-7", PROJECT, LOCATION)
        (dataset_sent,) = server.sent("datasets.insert")
        assert dataset_sent.json["defaultEncryptionConfiguration"] == {"kmsKeyName": KEY}
        tables = [request.json["encryptionConfiguration"] for request in server.sent("tables.insert")]
        assert tables == [{"kmsKeyName": KEY}] * 2  # the table and the scratch table
        burned = server.sent("jobs.insert")[-1].json["configuration"]["query"]
        assert burned["destinationEncryptionConfiguration"] == {"kmsKeyName": KEY}


def test_jobs_run_in_one_project_and_datasets_are_in_another() -> None:
    with canned_bigquery() as server:
        server.reply("tables.get", table_resource({"name": "id", "type": "INTEGER"}))
        server.reply("jobs.insert", job_resource("kbq-1a2b-7", {"load": {}}))
        server.reply("datasets.list", {})
        url = "bigquery://shop-prod?location=EU&datasets=shop-data"
        warehouse = open_bigquery(url, GoogleAccess("anonymous", server.endpoint))
        warehouse.find_table(TABLE)
        warehouse.insert_job(load_job())
        warehouse.tables()
        (found,), (job,), (listed,) = map(server.sent, ("tables.get", "jobs.insert", "datasets.list"))
        assert found.path.startswith("/bigquery/v2/projects/shop-data/")
        assert job.path == "/bigquery/v2/projects/shop-prod/jobs"
        assert job.json["configuration"]["load"]["destinationTable"]["projectId"] == "shop-data"
        assert listed.path == "/bigquery/v2/projects/shop-data/datasets"


class ClientCertificate(HTTPAdapter):
    """Stands for google-auth's adapter of certificate-based access."""


def test_an_adapter_with_a_client_certificate_stays_and_repeats_nothing() -> None:
    with canned_bigquery() as server:
        client = server.client()
        mounted = ClientCertificate(max_retries=3)
        client._http.mount("https://", mounted)
        open_bigquery("bigquery://shop-prod", GoogleAccess("anonymous"), client)
        assert client._http.get_adapter("https://bigquery.mtls.googleapis.com") is mounted
        assert mounted.max_retries.total == 0
