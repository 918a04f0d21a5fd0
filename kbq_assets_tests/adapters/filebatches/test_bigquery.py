"""Requests for batches of files, field by field, and the meaning of their responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from kbq_assets.adapters.bigquery.connect import open_client
from kbq_assets.adapters.filebatches.bigquery import BigQueryFileLoads, hive_prefix
from kbq_assets.adapters.filebatches.connect import open_file_loads
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError, JobAlreadyExists, JobFailed, UnknownOutcome
from kbq_assets.core.filebatches.table_batches import FileTarget
from kbq_assets.ports.file_loads import FileJob
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    CannedBigQuery,
    canned_bigquery,
    job_resource,
)
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

URIS = ("gs://arrivals/shop/orders/dt=2020-01-02/a.csv", "gs://arrivals/shop/orders/dt=2020-01-02/b.csv")
JOB = FileJob(
    "kbq-u-1", PROJECT, LOCATION, FileTarget("shop", "orders", "$20200102"), dict.fromkeys(URIS, 1),
    {"sourceFormat": "CSV", "writeDisposition": "WRITE_TRUNCATE", "skipLeadingRows": 1},
    labels={"kbq": "files", "batch-id": "b1"},
)  # fmt: skip
STATEMENT = dataclasses.replace(
    JOB,
    sql="MERGE {dest_dataset}.{dest_table} USING temp_ext ON FALSE WHEN NOT MATCHED THEN INSERT ROW",
    digest="d1",
    config={"sourceFormat": "PARQUET", "hivePartitioningOptions": {}},
)


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        found.reply("jobs.insert", job_resource("kbq-u-1", {"jobType": "LOAD", "load": {}}))
        yield found


def loads(server: CannedBigQuery, kms_key: str = "") -> BigQueryFileLoads:
    client = open_client(f"bigquery://{PROJECT}?location={LOCATION}", GoogleAccess(""), server.client())
    return BigQueryFileLoads(client, PROJECT, kms_key)


def sent(server: CannedBigQuery) -> dict[str, Any]:
    [request] = server.sent("jobs.insert")
    found: dict[str, Any] = request.json["configuration"]
    assert request.json["jobReference"] == {"projectId": PROJECT, "jobId": "kbq-u-1", "location": LOCATION}
    return found


def test_a_load_has_the_keys_of_load_json_as_they_are(server: CannedBigQuery) -> None:
    loads(server).insert(JOB)
    found = sent(server)
    assert found["labels"] == {"kbq": "files", "batch-id": "b1"} and found["jobTimeoutMs"] == "21600000"
    assert found["load"] == {
        "sourceFormat": "CSV",
        "writeDisposition": "WRITE_TRUNCATE",
        "skipLeadingRows": 1,
        "useAvroLogicalTypes": True,
        "sourceUris": list(URIS),
        "destinationTable": {"projectId": PROJECT, "datasetId": "shop", "tableId": "orders$20200102"},
    }


def test_project_labels_key_and_hive_prefix(server: CannedBigQuery) -> None:
    config = {**JOB.config, "labels": {"team": "edw"}, "hivePartitioningOptions": {"mode": "STRINGS"}}
    target = FileTarget("shop", "orders", project="elsewhere")
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    loads(server, key).insert(dataclasses.replace(JOB, config=config, target=target))
    found = sent(server)
    assert found["labels"] == {"team": "edw", "kbq": "files", "batch-id": "b1"}
    assert found["load"]["destinationTable"]["projectId"] == "elsewhere"
    assert found["load"]["destinationEncryptionConfiguration"] == {"kmsKeyName": key}
    assert found["load"]["hivePartitioningOptions"] == {
        "mode": "STRINGS",
        "sourceUriPrefix": "gs://arrivals/shop/orders",
    }


def test_a_statement_runs_over_temp_ext_with_its_digest(server: CannedBigQuery) -> None:
    loads(server).insert(STATEMENT)
    found = sent(server)
    assert found["labels"] == {"kbq": "files", "batch-id": "b1", "kbq_statement": "d1"}
    assert found["query"]["query"].startswith(f"MERGE `{PROJECT}`.shop.orders USING temp_ext")
    assert found["query"]["tableDefinitions"] == {
        "temp_ext": {
            "sourceFormat": "PARQUET",
            "hivePartitioningOptions": {"mode": "AUTO", "sourceUriPrefix": "gs://arrivals/shop/orders"},
            "sourceUris": list(URIS),
        }
    }


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (409, "duplicate", JobAlreadyExists),
        (400, "invalid", JobFailed),
        (503, "backendError", UnknownOutcome),
    ],
)
@pytest.mark.parametrize("job", [JOB, STATEMENT], ids=["load", "statement"])
def test_refusals_and_silence_are_those_of_every_job(
    job: FileJob, status: int, reason: str, error: type[Exception]
) -> None:
    with canned_bigquery() as server:
        server.refuse("jobs.insert", status, reason)
        with pytest.raises(error):
            loads(server).insert(job)
        assert len(server.sent("jobs.insert")) == 1


@pytest.mark.parametrize(
    ("kind", "rows", "changed"), [("MERGE", "3", 3), ("UPDATE", "0", 0), ("SCRIPT", "0", -1)]
)
def test_a_statement_reports_how_many_rows_it_changed(
    server: CannedBigQuery, kind: str, rows: str, changed: int
) -> None:
    server.reply("jobs.get", statement("kbq-u-1", kind, rows, kbq_statement="d1"))
    found = server.warehouse().get_job("kbq-u-1", PROJECT, LOCATION)
    assert found is not None and (found.statement, found.changed_rows) == ("d1", changed)


def statement(job_id: str, kind: str, rows: str, **labels: str) -> dict[str, Any]:
    statistics = {"query": {"statementType": kind, "numDmlAffectedRows": rows}}
    return job_resource(job_id, {"jobType": "QUERY", "query": {}, "labels": labels}, statistics=statistics)


def script(state: str = "DONE", **labels: str) -> dict[str, Any]:
    found = statement("kbq-u-1", "SCRIPT", "7", kbq_statement="d1", **labels)
    return found | {
        "status": {"state": state},
        "statistics": {**found["statistics"], "numChildJobs": "3"},
    }


@pytest.mark.parametrize(
    ("rows", "changed"), [(("5", "0"), 0), (("5", "2"), 2)], ids=["one_changes_nothing", "all_change_rows"]
)
def test_a_script_reports_the_fewest_rows_that_a_statement_of_it_changed(
    server: CannedBigQuery, rows: tuple[str, str], changed: int
) -> None:
    deleted, inserted = statement("c1", "DELETE", rows[0]), statement("c2", "INSERT", rows[1])
    listed = [statement("c0", "SELECT", "0"), *({**each, "statistics": {"query": {"statementType": kind}}}
              for each, kind in ((deleted, "DELETE"), (inserted, "INSERT")))]  # fmt: skip
    server.reply("jobs.list", {"jobs": listed})
    for each in (script(kbq="files"), deleted, inserted):
        server.reply("jobs.get", each)
    found = server.warehouse().get_job("kbq-u-1", PROJECT, LOCATION)
    assert found is not None and (found.job_id, found.changed_rows) == ("kbq-u-1", changed)
    [request] = server.sent("jobs.list")
    assert request.query["parentJobId"] == "kbq-u-1"


@pytest.mark.parametrize("found", [script(), script("RUNNING", kbq="files")], ids=["of_a_topic", "runs"])
def test_nobody_asks_for_the_statements_of_other_scripts(
    server: CannedBigQuery, found: dict[str, Any]
) -> None:
    server.reply("jobs.get", found)
    job = server.warehouse().get_job("kbq-u-1", PROJECT, LOCATION)
    assert job is not None and job.changed_rows == -1
    assert not server.sent("jobs.list")


def test_hive_prefixes_end_before_the_first_key() -> None:
    assert hive_prefix("gs://b/shop/orders/dt=1/n=2/a.csv") == "gs://b/shop/orders"
    assert hive_prefix("gs://b/shop/orders/a=b.csv") == "gs://b/shop/orders"


@pytest.mark.parametrize(
    ("warehouse", "files", "named"),
    [
        ("bigquery://shop-prod", "/srv/arrivals", "local folder"),
        ("iceberg:/srv/lake", "/srv/arrivals", "Iceberg"),
    ],
)
def test_a_place_that_the_warehouse_cannot_load_is_refused(warehouse: str, files: str, named: str) -> None:
    environ = {"KBQ_WAREHOUSE": warehouse, "KBQ_STAGING": "gs://staging", "KBQ_FILES": files}
    with pytest.raises(ConfigurationError, match=named):
        open_file_loads(parse_settings(environ), FaultyMemoryStore())


@pytest.mark.parametrize("job", [JOB, STATEMENT])
def test_a_name_with_a_star_is_not_sent_as_a_pattern(server: CannedBigQuery, job: FileJob) -> None:
    with pytest.raises(JobFailed, match=r"p\*\.csv"):
        loads(server).insert(dataclasses.replace(job, sizes={**job.sizes, "gs://arrivals/p*.csv": 1}))
    assert server.sent("jobs.insert") == []
