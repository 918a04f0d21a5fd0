"""The doctor's checks run against local servers with the real clients, parse the responses, and leave nothing
behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from kbq_assets.adapters.bigquery import open_bigquery
from kbq_assets.adapters.gcs import open_gcs_store
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.config.google_permissions import (
    BUCKET_PERMISSIONS,
    CREATE_OBJECTS,
    CREATE_TABLES,
    DELETE_OBJECTS,
    GET_DATASET,
    LIST_TABLES,
    RUN_JOBS,
    SET_CATEGORY,
    TABLE_PERMISSIONS,
)
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.errors import NotFound, Refused, Unavailable
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import command_line, parts
from kbq_assets.extras.doctor.google_questions import BigQueryQuestions, CloudStorageQuestions, DatasetFacts
from kbq_assets.ports.warehouse import ErrorQuery, KafkaRange, LoadJob
from kbq_assets_tests.contracts.warehouse import SCHEMA, avro_file, records
from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.permissions import NEEDS
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = pytest.mark.google

LOADER = {RUN_JOBS, GET_DATASET, CREATE_TABLES, LIST_TABLES, *TABLE_PERMISSIONS}
#: Whoever submitted a job may look at it and cancel it.
OWN_JOBS = {"bigquery.jobs.get", "bigquery.jobs.update"}


@pytest.fixture
def gcs(gcs_server: GcsServer) -> Iterator[GcsServer]:
    yield gcs_server
    gcs_server.denied.clear()
    gcs_server.faults.clear()


@pytest.fixture
def bigquery(bigquery_server: BigQueryServer) -> Iterator[BigQueryServer]:
    yield bigquery_server
    bigquery_server.denied.clear()
    bigquery_server.faults.clear()


def bucket_questions(server: GcsServer, name: str) -> CloudStorageQuestions:
    return CloudStorageQuestions(GoogleAccess("anonymous", server.endpoint), Bucket(name, "staging"))


def warehouse_questions(server: BigQueryServer) -> BigQueryQuestions:
    return BigQueryQuestions(
        GoogleAccess("anonymous", server.endpoint), BigQueryProject(server.project, "US")
    )


@pytest.mark.parametrize("permission", [CREATE_OBJECTS, DELETE_OBJECTS])
def test_trying_a_permission_writes_nothing(gcs: GcsServer, permission: str) -> None:
    name = gcs.new_bucket()
    assert bucket_questions(gcs, name).may_in("commits/", permission)
    assert list(gcs.client().list_blobs(name)) == []


@pytest.mark.parametrize(
    ("permission", "method"), [(CREATE_OBJECTS, "objects.insert"), (DELETE_OBJECTS, "objects.delete")]
)
def test_what_is_refused_is_not_permitted(gcs: GcsServer, permission: str, method: str) -> None:
    questions = bucket_questions(gcs, gcs.new_bucket())
    gcs.faults.add(Fault(method, "403"))
    assert not questions.may_in("commits/", permission)
    # Where it is permitted, the precondition fails on Google's side too.
    assert gcs.requested(method)[-1].query["ifGenerationMatch"] == "1"


@pytest.mark.parametrize("permission", BUCKET_PERMISSIONS)
def test_a_bucket_permission_that_is_taken_away_is_missed(gcs: GcsServer, permission: str) -> None:
    questions = bucket_questions(gcs, gcs.new_bucket())
    assert questions.granted(BUCKET_PERMISSIONS) == BUCKET_PERMISSIONS.keys()
    gcs.denied.add(permission)
    assert questions.granted(BUCKET_PERMISSIONS) == BUCKET_PERMISSIONS.keys() - {permission}


def test_the_place_and_the_safety_of_a_bucket_are_known(gcs: GcsServer) -> None:
    questions = bucket_questions(gcs, gcs.new_bucket())
    assert questions.identity == "anonymous"
    assert questions.location() == ("US-CENTRAL1", ())
    assert questions.safety().problems == ()


def test_a_bucket_that_is_not_there_is_reported(gcs: GcsServer) -> None:
    with pytest.raises(NotFound, match="gs://no-such-bucket does not exist"):
        bucket_questions(gcs, "no-such-bucket").location()


def test_a_loader_with_its_permissions_has_them_all(bigquery: BigQueryServer) -> None:
    dataset, questions = bigquery.new_dataset(), warehouse_questions(bigquery)
    assert questions.job_identity()
    assert questions.dataset(dataset) == DatasetFacts("US")
    assert questions.may_list(dataset)
    assert questions.table_permissions(dataset) == {*TABLE_PERMISSIONS, SET_CATEGORY}
    assert list(bigquery.client().list_tables(dataset)) == []


@pytest.mark.parametrize("permission", sorted(set(TABLE_PERMISSIONS) - {"bigquery.tables.delete"}))
def test_a_table_permission_that_is_taken_away_is_missed(bigquery: BigQueryServer, permission: str) -> None:
    dataset = bigquery.new_dataset()
    bigquery.denied.add(permission)
    assert warehouse_questions(bigquery).table_permissions(dataset) == {*TABLE_PERMISSIONS, SET_CATEGORY} - {
        permission
    }


def test_a_scratch_table_that_may_not_be_deleted_expires(bigquery: BigQueryServer) -> None:
    dataset = bigquery.new_dataset()
    bigquery.denied.add("bigquery.tables.delete")
    granted = warehouse_questions(bigquery).table_permissions(dataset)
    assert granted == {*TABLE_PERMISSIONS, SET_CATEGORY} - {"bigquery.tables.delete"}
    assert int(bigquery.requested("tables.insert")[-1].json["expirationTime"]) > 0


@pytest.mark.parametrize(
    ("permission", "question"),
    [
        (RUN_JOBS, lambda questions, dataset: questions.job_identity()),
        (GET_DATASET, lambda questions, dataset: questions.dataset(dataset)),
        (CREATE_TABLES, lambda questions, dataset: questions.table_permissions(dataset)),
    ],
)
def test_what_is_denied_is_refused(bigquery: BigQueryServer, permission: str, question: object) -> None:
    dataset = bigquery.new_dataset()
    bigquery.denied.add(permission)
    assert callable(question)
    with pytest.raises(Refused, match=permission):
        question(warehouse_questions(bigquery), dataset)


def test_tables_that_may_not_be_listed_are_reported(bigquery: BigQueryServer) -> None:
    dataset = bigquery.new_dataset()
    bigquery.denied.add(LIST_TABLES)
    assert not warehouse_questions(bigquery).may_list(dataset)


def test_a_dry_run_runs_nothing(bigquery: BigQueryServer) -> None:
    warehouse_questions(bigquery).job_identity()
    assert bigquery.requested("jobs.insert")[-1].json["configuration"]["dryRun"] is True


def test_a_server_out_of_reach_is_reported() -> None:
    questions = BigQueryQuestions(
        GoogleAccess("anonymous", "http://127.0.0.1:1"), BigQueryProject("kbq-test", "US"), seconds=0.1
    )
    with pytest.raises(Unavailable, match=r"project kbq-test: .*Connection refused\n"):
        questions.job_identity()


def test_what_the_doctor_asks_for_is_enough_to_load(bigquery: BigQueryServer, gcs: GcsServer) -> None:
    """Every other permission is taken away, and each call of the warehouse still works."""
    dataset, bucket = bigquery.new_dataset(), gcs.new_bucket()
    table, place = TableReference(dataset, "orders"), f"bigquery://{bigquery.project}?location=US"
    gcs.client().bucket(bucket).blob("a.avro").upload_from_string(avro_file(records(range(3))))
    bigquery.denied.update(set(NEEDS.values()) - LOADER - OWN_JOBS)
    assert "bigquery.datasets.create" in bigquery.denied

    warehouse = open_bigquery(place, GoogleAccess("anonymous", bigquery.endpoint))
    columns = columns_of(SCHEMA)
    warehouse.create_table(table, columns, TableOptions())
    warehouse.update_columns(table, warehouse.columns(table) or ())
    loaded, burned = f"kbq-{uuid.uuid4()}-1", f"kbq-{uuid.uuid4()}-2"
    job = LoadJob(loaded, bigquery.project, "US", table, (f"gs://{bucket}/a.avro",), SCHEMA)
    assert warehouse.probe(job) is None
    warehouse.insert_job(job)
    warehouse.cancel_job(loaded, bigquery.project, "US")
    warehouse.burn_job(burned, bigquery.project, "US")
    assert warehouse.get_job(loaded, bigquery.project, "US") is not None
    assert table in warehouse.tables()
    assert sum(warehouse.kafka_ranges(table).values()) in (0, 3)  # cancelled, or faster than that
    warehouse.positions(table, KafkaRange("t", 0, 0))
    warehouse.error_rows(TableReference(dataset, "kbq_errors"), ErrorQuery())


def test_what_the_doctor_asks_for_is_enough_for_the_store(gcs: GcsServer) -> None:
    """Every other permission is taken away, and each call of the store still works."""
    name = gcs.new_bucket()
    gcs.denied.update(set(NEEDS.values()) - BUCKET_PERMISSIONS.keys())
    assert "storage.buckets.getIamPolicy" in gcs.denied
    store = open_gcs_store(f"gs://{name}/staging", GoogleAccess("anonymous", gcs.endpoint))
    generation = store.create("commits/a.json", b"1")
    store.swap("commits/a.json", b"2", generation)
    with store.open_read("commits/a.json") as stream:
        assert stream.read() == b"2"
    writer = store.open_write("staging/a.avro")
    writer.write(b"3")
    writer.close()
    store.copy("staging/a.avro", "quarantine/a.avro")
    assert store.get("quarantine/a.avro").data == b"3"
    store.delete("quarantine/a.avro")
    assert store.delete_many([entry.path for entry in store.list("")]) == {}
    report = bucket_questions(gcs, name).safety()
    assert report.problems == ()
    assert any("storage.buckets.getIamPolicy" in warning for warning in report.warnings)


def test_the_command_prints_what_to_grant(
    bigquery: BigQueryServer, gcs: GcsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, dataset, bucket = tmp_path_factory.mktemp("doctor"), bigquery.new_dataset(), gcs.new_bucket()
    (folder / "topics.txt").write_text(f"shop.orders.v1 dataset={dataset} table=orders\n")
    environ = {
        "KBQ_HOME": str(folder),
        "KBQ_SOURCE_TOPICS": str(folder / "topics.txt"),
        "KBQ_STAGING": f"gs://{bucket}/staging",
        "KBQ_WAREHOUSE": f"bigquery://{bigquery.project}",
        "KBQ_GCS_ENDPOINT": gcs.endpoint,
        "KBQ_BIGQUERY_ENDPOINT": bigquery.endpoint,
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
        "KBQ_LOAD_CREDENTIALS": "anonymous",
    }
    arguments = ["doctor", "--gcp", "--json"]
    result = CliRunner().invoke(command_line(), arguments, obj=lambda: parts(environ))
    assert [c for c in json.loads(result.stdout) if c["outcome"] == "fail"] == []
    assert result.exit_code == 0
    bigquery.denied.add("bigquery.tables.updateData")
    result = CliRunner().invoke(command_line(), arguments, obj=lambda: parts(environ))
    (failed,) = [check for check in json.loads(result.stdout) if check["outcome"] == "fail"]
    assert (result.exit_code, failed["found"]) == (1, f"no bigquery.tables.updateData on {dataset}")
    assert "roles/bigquery.dataEditor" in failed["fix"]
