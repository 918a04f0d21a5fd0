"""The contract of warehouses, for BigQuery: the real client against local-bigquery behind its proxy.

The proxy corrects what local-bigquery forgives (kbq_assets_tests/google).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.adapters.bigquery.erasure import BigQueryErasureTables
from kbq_assets.adapters.bigquery.replay import BigQueryReplayTables
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.adapters.bigquery.statements import BigQueryStatements
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.config.google_permissions import SET_CATEGORY
from kbq_assets.core.errors import ConfigurationError, JobAlreadyExists, JobFailed, UnknownOutcome
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasureJob
from kbq_assets.ports.replay import ReplaceJob
from kbq_assets.ports.statements import StatementJob
from kbq_assets.ports.warehouse import JobError, JobStatus, KafkaRange, LoadJob, Warehouse
from kbq_assets_tests.contracts.erasure import ErasureTablesContract
from kbq_assets_tests.contracts.errors_replay import StatementErrorReplaysContract
from kbq_assets_tests.contracts.replay import ReplayTablesContract
from kbq_assets_tests.contracts.statements import StatementsContract
from kbq_assets_tests.contracts.warehouse import (
    POLICY_TAG,
    SCHEMA,
    TABLE,
    Opener,
    SharedWarehouseContract,
    Stage,
    avro_file,
    load_job,
    records,
)
from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = pytest.mark.google

PROJECT: Final = f"contract-{os.getpid()}"
LOCATION: Final = "US"
_NUMBERS = itertools.count(1)


class HastyClock(SystemClock):
    """Polls as often as local servers allow."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 100)


class PlacedStatements(BigQueryStatements):
    """As `PlacedWarehouse`, for statements."""

    def __init__(self, prefix: str, session: Session) -> None:
        super().__init__(session)
        self._prefix = prefix

    def insert(self, job: StatementJob) -> None:
        session = self._session
        super().insert(
            replace(job, job_id=self._prefix + job.job_id, project=session.project, location=session.location)
        )


class PlacedErasures(BigQueryErasureTables):
    """As `PlacedWarehouse`, for erasures."""

    def __init__(self, prefix: str, session: Session) -> None:
        super().__init__(session)
        self._prefix = prefix

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        super().erase(replace(job, job_id=self._prefix + job.job_id), open_rewriter)


class PlacedReplays(BigQueryReplayTables):
    """As `PlacedWarehouse`, for replays."""

    def __init__(self, prefix: str, session: Session) -> None:
        super().__init__(session)
        self._prefix = prefix

    def replace(self, job: ReplaceJob) -> None:
        super().replace(replace(job, job_id=self._prefix + job.job_id))


class PlacedWarehouse(BigQueryWarehouse):
    """Accepts the contract's jobs, which name a local warehouse's project and location, and prefixes their ids: ids
    are permanent, and local-bigquery gets slow with many projects."""

    def __init__(self, prefix: str, client: bigquery.Client, location: str = LOCATION) -> None:
        super().__init__(client, str(client.project), location, clock=HastyClock())
        self._prefix = prefix
        self.statements = PlacedStatements(prefix, self._session)
        self.erasures = PlacedErasures(prefix, self._session)
        self.replays = PlacedReplays(prefix, self._session)

    def insert_job(self, job: LoadJob) -> None:
        super().insert_job(self._placed(job))

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        found = super().get_job(self._prefix + job_id, project, location, table)
        return replace(found, job_id=job_id) if found else None

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        super().burn_job(self._prefix + job_id, project, location, table)

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        super().cancel_job(self._prefix + job_id, project, location, table)

    def probe(self, job: LoadJob) -> JobError | None:
        return super().probe(self._placed(job))

    def _placed(self, job: LoadJob) -> LoadJob:
        return replace(job, job_id=self._prefix + job.job_id, project=self.project, location=self.location)


@dataclass(frozen=True)
class OpenWarehouse:
    """Opens the warehouse of one test, in any process."""

    endpoint: str
    project: str
    prefix: str

    def __call__(self) -> PlacedWarehouse:
        client = bigquery.Client(
            self.project,
            AnonymousCredentials(),
            client_options={"api_endpoint": self.endpoint},
        )
        return PlacedWarehouse(self.prefix, client)


class OnLocalServers:
    """The fixtures of the contracts."""

    @pytest.fixture
    def opener(self, bigquery_server: BigQueryServer) -> Opener:
        return OpenWarehouse(bigquery_server.endpoint, PROJECT, f"t{next(_NUMBERS)}-")

    @pytest.fixture
    def client(self, bigquery_server: BigQueryServer) -> bigquery.Client:
        return bigquery.Client(
            PROJECT,
            AnonymousCredentials(),
            client_options={"api_endpoint": bigquery_server.endpoint},
        )

    @pytest.fixture
    def warehouse(self, opener: OpenWarehouse, client: bigquery.Client) -> Iterator[PlacedWarehouse]:
        yield opener()
        for dataset in client.list_datasets():
            client.delete_dataset(dataset.reference, delete_contents=True)

    @pytest.fixture
    def stage(self, gcs_server: GcsServer) -> Stage:
        bucket = gcs_server.client().bucket(gcs_server.new_bucket())

        def write(name: str, data: bytes) -> str:
            bucket.blob(name).upload_from_string(data)
            return f"gs://{bucket.name}/{name}"

        return write


# The quick tier: test_replay_requests.py compares the requests, and DuckDB and a lake keep the same contract.
@pytest.mark.thorough
class TestBigQueryReplayTables(OnLocalServers, ReplayTablesContract):
    @pytest.fixture
    def replays(self, warehouse: PlacedWarehouse) -> BigQueryReplayTables:
        return warehouse.replays

    def wait(self, warehouse: Warehouse, job_id: str) -> None:
        clock = HastyClock()
        while (found := warehouse.get_job(job_id, warehouse.project, warehouse.location)) is None or (
            found.state != "DONE"
        ):
            clock.sleep(1)
        assert found.error is None


# The quick tier: test_statement_requests.py compares the requests, and DuckDB keeps the same contracts.
@pytest.mark.thorough
class TestBigQueryStatements(
    OnLocalServers, ErasureTablesContract, StatementErrorReplaysContract, StatementsContract
):
    def wait(self, warehouse: Warehouse, job_id: str) -> None:
        self.finish(warehouse, job_id)


class TestBigQueryWarehouse(OnLocalServers, SharedWarehouseContract):
    appends_columns = True

    def test_a_job_for_a_missing_table_fails(self, warehouse: Warehouse, stage: Stage) -> None:
        """In a dataset that exists: one that does not has no location, and the insertion is refused (below)."""
        warehouse.create_table(TableReference(TABLE.dataset, "other"), columns_of(SCHEMA), TableOptions())
        super().test_a_job_for_a_missing_table_fails(warehouse, stage)

    def test_a_job_for_a_missing_dataset_is_refused(self, warehouse: Warehouse, stage: Stage) -> None:
        with pytest.raises(JobFailed, match="Not found: Dataset"):
            warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert warehouse.get_job("j1", warehouse.project, warehouse.location) is None

    def test_a_reply_that_is_lost_is_found_by_its_id(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, bigquery_server: BigQueryServer
    ) -> None:
        job = load_job("j1", stage("a.avro", avro_file(records(range(3)))))
        bigquery_server.faults.add(Fault("jobs.insert", "drop_reply"))
        with pytest.raises(UnknownOutcome):
            warehouse.insert_job(job)
        with pytest.raises(JobAlreadyExists):
            warehouse.insert_job(job)
        assert self.finish(warehouse, "j1") == JobStatus("j1", "DONE", job.source_uris, 3)
        assert warehouse.kafka_ranges(table) == {KafkaRange("t", 0, 0): 3}

    def test_a_late_insertion_of_a_burned_id_loads_nothing(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, bigquery_server: BigQueryServer
    ) -> None:
        bigquery_server.faults.add(Fault("jobs.insert", "late"))
        with pytest.raises(UnknownOutcome):
            warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records(range(3))))))
        assert warehouse.get_job("j1", warehouse.project, warehouse.location) is None
        warehouse.burn_job("j1", warehouse.project, warehouse.location)
        bigquery_server.faults.deliver_late()
        assert self.finish(warehouse, "j1") == JobStatus("j1", "DONE", ())
        assert warehouse.kafka_ranges(table) == {}

    def test_a_stuck_job_that_is_cancelled_may_be_tried_again(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, bigquery_server: BigQueryServer
    ) -> None:
        uri = stage("a.avro", avro_file(records(range(3))))
        bigquery_server.faults.add(Fault("jobs.insert", "job_stuck"))
        warehouse.insert_job(load_job("j1", uri))
        assert self.status(warehouse, "j1").state == "RUNNING"
        warehouse.cancel_job("j1", warehouse.project, warehouse.location)
        error = self.finish(warehouse, "j1").error
        assert error is not None
        assert (error.reason, error.transient) == ("stopped", True)
        assert self.run(warehouse, load_job("j2", uri)).output_rows == 3
        warehouse.cancel_job("j2", warehouse.project, warehouse.location)
        assert self.status(warehouse, "j2").error is None

    def test_a_table_with_all_options_is_loaded_and_read(
        self, warehouse: Warehouse, stage: Stage, client: bigquery.Client
    ) -> None:
        options = TableOptions("event_date", ("id",), {"owner": "sales"}, True, 36_500)
        warehouse.create_table(TABLE, columns_of(SCHEMA), options)
        assert self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([5]))))).output_rows == 1
        assert warehouse.positions(TABLE, KafkaRange("t", 0, 0)) == {5: 1}
        assert warehouse.doubled_offsets([TABLE]) == ()
        found = client.get_table(f"{PROJECT}.{TABLE}")
        assert found.time_partitioning is not None
        assert (found.time_partitioning.field, found.time_partitioning.expiration_ms) == (
            "event_date",
            3_153_600_000_000,
        )
        assert (found.clustering_fields, found.labels) == (["id"], {"owner": "sales"})
        assert found.require_partition_filter

    def test_a_table_is_rather_not_created_than_left_unprotected(
        self, warehouse: Warehouse, stage: Stage, bigquery_server: BigQueryServer
    ) -> None:
        columns = (*columns_of(SCHEMA), Column("email", "STRING", policy_tag=POLICY_TAG))
        bigquery_server.denied.add(SET_CATEGORY)
        try:
            with pytest.raises(ConfigurationError, match=r"grant bigquery\.tables\.create, .*setCategory"):
                warehouse.create_table(TABLE, columns, TableOptions())
            assert warehouse.columns(TABLE) is None
            warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
            with pytest.raises(ConfigurationError, match=r"taxonomies\.get"):
                warehouse.update_columns(TABLE, columns)
            assert warehouse.columns(TABLE) == columns_of(SCHEMA)
        finally:
            bigquery_server.denied.clear()
        warehouse.update_columns(TABLE, columns)
        assert warehouse.columns(TABLE) == columns
        record_ = Column("home", "STRUCT", "NULLABLE", (Column("zip", "STRING"),), policy_tag=POLICY_TAG)
        with pytest.raises(ConfigurationError, match="home cannot have these"):
            warehouse.update_columns(TABLE, (*columns, record_))
