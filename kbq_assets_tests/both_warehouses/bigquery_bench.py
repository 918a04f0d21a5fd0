"""A bench with a local BigQuery. Staged files are in a bucket too, where BigQuery reads them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.storage import Bucket

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.crashes.probes import ProbedPort
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.loads import FastClock
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer
from kbq_assets_tests.pipelines.bench import A
from kbq_assets_tests.pipelines.warehouse_bench import PointProbe, WarehouseBench

#: One for all of these tests: each leaves it empty.
PROJECT: Final = f"both-{os.getpid()}"
LOCATION: Final = "US"
_PREFIXES = itertools.count(1)


class BucketStaging(FaultyMemoryStore):
    """A store in memory whose staged files a bucket has too."""

    bucket: Bucket
    prefix = ""

    def uri(self, path: str) -> str:
        return f"gs://{self.bucket.name}/{self.prefix}/{path}"

    def _store(self, path: str, data: bytes) -> int:
        generation = super()._store(path, data)
        if path.startswith("staging/"):
            self.bucket.blob(f"{self.prefix}/{path}").upload_from_string(data)
        return generation


def project_client(server: BigQueryServer) -> bigquery.Client:
    """A client of the tests' own project."""
    return bigquery.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": server.endpoint})


class BigQueryBench(WarehouseBench):
    """Loads into local-bigquery behind its proxy."""

    def __init__(
        self, gcs: GcsServer, server: BigQueryServer, options: dict[str, Any], partitions: int
    ) -> None:
        super().__init__(options, partitions)
        self.store = BucketStaging(self._ask)
        self.store.bucket = gcs.client().bucket(gcs.new_bucket())
        self.store.prefix = f"b{next(_PREFIXES)}"
        self.server, self.client, self._clock = server, project_client(server), FastClock()
        self.bigquery = BigQueryWarehouse(self.client, PROJECT, LOCATION, clock=self._clock)
        self.bigquery.limits = replace(self.bigquery.limits, jobs_per_day=0)

    def _ask(self, call: Call) -> Outcome:
        return self.faults(call)

    @property
    def target(self) -> BigQueryWarehouse:
        return self.bigquery

    @property
    def loader_clock(self) -> Clock:
        return self._clock

    @contextlib.contextmanager
    def dying(self, probe: PointProbe) -> Iterator[Warehouse]:
        """Each request of the loader's is a point."""
        yield ProbedPort(self.bigquery, "warehouse", probe)  # type: ignore[arg-type]

    def refuse(self) -> None:
        refused = Fault("jobs.insert", "job_error", _loads, times=1000, reason="invalid")
        self.server.faults.add(refused)

    def accept(self) -> None:
        self.server.faults.clear()

    def execute(self, sql: str) -> None:
        self.client.query_and_wait(sql)


def _loads(request: Request) -> bool:
    """A job that loads the table, no probe of its files."""
    load: dict[str, Any] = request.json["configuration"].get("load", {})
    return bool(load) and load["destinationTable"]["tableId"] == A.table
