"""The composition root on Google Cloud: each side opens with its own credentials, DuckDB reads a bucket, an unsafe one
is refused. Against local servers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Parts, parts
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.contracts.warehouse import SCHEMA, avro_file, records
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.platform import POISON, TOPIC, FakePlatform, with_ports
from kbq_assets_tests.google.servers import QUIET_PROJECT, BigQueryServer, GcsServer

pytestmark = pytest.mark.google

TABLE = TableReference("shop", "orders")


def parts_of(gcs: GcsServer, folder: Path, **environ: str) -> Parts:
    (folder / "topics.txt").write_text("shop.orders.v1 dataset=shop table=orders\n")
    return parts(
        {
            "KBQ_HOME": str(folder),
            "KBQ_SOURCE_TOPICS": str(folder / "topics.txt"),
            "KBQ_STAGING": f"gs://{gcs.new_bucket()}/staging",
            "KBQ_GCS_ENDPOINT": gcs.endpoint,
            "KBQ_EXTRACT_CREDENTIALS": "anonymous",
            "KBQ_LOAD_CREDENTIALS": "anonymous",
            **environ,
        }
    )


def test_duckdb_loads_from_a_bucket(gcs_server: GcsServer, tmp_path: Path) -> None:
    found = parts_of(gcs_server, tmp_path)
    found.deployment.store.create("staging/1-a/a.avro", avro_file(records(range(3))))
    warehouse = found.deployment.warehouse
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    uris = (
        found.deployment.store.uri("staging/1-a/a.avro"),
        found.deployment.store.uri("staging/1-a/none.avro"),
    )
    good = LoadJob(f"kbq-{uuid.uuid4()}-1", "local", "local", TABLE, uris[:1], SCHEMA)
    gone = LoadJob(f"kbq-{uuid.uuid4()}-1", "local", "local", TABLE, uris[1:], SCHEMA)
    warehouse.insert_job(good)
    warehouse.insert_job(gone)
    assert sum(warehouse.kafka_ranges(TABLE).values()) == 3
    status = warehouse.get_job(gone.job_id, "local", "local")
    assert status is not None
    assert status.error is not None
    assert "none.avro" in status.error.message


@pytest.mark.parametrize("side", ["extract", "load"])
def test_each_side_opens_with_its_own_credentials(gcs_server: GcsServer, tmp_path: Path, side: str) -> None:
    found = parts_of(
        gcs_server, tmp_path, **{f"KBQ_{side.upper()}_CREDENTIALS": f"file:{tmp_path / 'none.json'}"}
    )
    works, fails = ("load_store", "store") if side == "extract" else ("store", "load_store")
    assert list(getattr(found.deployment, works).list("commits/")) == []
    with pytest.raises(ConfigurationError, match=r"none\.json"):
        getattr(found.deployment, fails)


def test_a_bucket_is_refused_before_anything_is_written(gcs_server: GcsServer, tmp_path: Path) -> None:
    found = parts_of(gcs_server, tmp_path)
    name = str(found.deployment.settings.staging_url).split("/")[2]
    assert found.loader.load().tables == ()
    bucket = gcs_server.client().bucket(name)
    before = {blob.name: blob.generation for blob in bucket.list_blobs()}
    bucket.default_event_based_hold = True
    bucket.patch()
    for run in (found.extractor.extract, with_ports(found).loader.load):
        with pytest.raises(ConfigurationError, match=r"not safe for staging: .*hold"):
            run()
    assert {blob.name: blob.generation for blob in bucket.list_blobs()} == before


def test_a_bucket_that_is_not_there_is_reported_as_such(gcs_server: GcsServer, tmp_path: Path) -> None:
    found = parts_of(gcs_server, tmp_path, KBQ_STAGING="gs://kbq-no-such-bucket/kbq")
    for run in (found.observer.status, found.extractor.extract, found.loader.load):
        with pytest.raises(ConfigurationError, match="bucket does not exist") as raised:
            run()
        assert raised.value.next_step == "check the bucket's name and the endpoint"


def test_records_of_a_topic_become_rows_of_bigquery(
    gcs_server: GcsServer, bigquery_server: BigQueryServer, tmp_path: Path
) -> None:
    """Everything but Kafka and Spark is real: settings, both stores, the load cycle, BigQuery."""
    dataset = bigquery_server.new_dataset(QUIET_PROJECT)
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset={dataset} table=orders\n")
    world.produce(3)
    world.produce(2, partition=1)
    world.produce(1, value=POISON)
    found = parts_of(
        gcs_server,
        tmp_path,
        KBQ_SOURCE_TOPICS=str(world.source_topics),
        KBQ_WAREHOUSE=f"bigquery://{QUIET_PROJECT}?location=US",
        KBQ_BIGQUERY_ENDPOINT=bigquery_server.endpoint,
        KBQ_POLL_SECONDS="1",
        KBQ_QUIET_SECONDS="0",
    )
    worker = WorkerPorts(found.deployment.store, world.kafka, world.registry, world.clock)
    engine = InProcessEngine(worker)
    real = with_ports(found, offsets=lambda: world.kafka, source=lambda: world.kafka, worker=lambda: worker)
    assert real.extractor.extract(engine).totals.staged == 5
    report = real.loader.load()
    assert [(t.state, t.rows, t.message) for t in report.tables] == [("idle", 1, ""), ("idle", 5, "")]
    assert real.loader.load().rows == 0
    assert real.reconciler.reconcile().accounted
