"""A table to load over the real clients, with everything that a test checks at the end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import google_crc32c
from google.cloud.storage import Client as StorageClient

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.adapters.google.clients import storage_client
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, prune, publish
from kbq_assets.core.protocol.names import (
    QUARANTINE,
    STAGING,
    TableReference,
    commit_path,
    quarantine_path,
    schema_path,
    table_state_path,
)
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets.wire.files.checksum import crc32c_text
from kbq_assets_tests.contracts.warehouse import SCHEMA, avro_file, records
from kbq_assets_tests.crashes.probes import Point, Probe, ProbedPort
from kbq_assets_tests.fakes.faults import Crash
from kbq_assets_tests.google.faults import Request
from kbq_assets_tests.google.ledger import JobKey
from kbq_assets_tests.google.servers import PROJECT, BigQueryServer, GcsServer
from kbq_assets_tests.strategies import staged_file, window

LOCATION = "US"
#: As on a platform whose source list only names the topic.
OPTIONS = TableOptions(labels={"kbq": "v1", "topic": "t"})
TOPIC = "t"
FINGERPRINT = "f1"
#: Seconds of a loader per second of ours.
_HASTE = 100
_PAUSES = (0.01, 0.02, 0.05)
#: Put between a load and a port: gets the port and its name.
Wrap = Callable[[Any, str], Any]


class FastClock(SystemClock):
    """A clock on which a second is a hundredth of one."""

    def monotonic(self) -> float:
        return super().monotonic() * _HASTE

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / _HASTE)


class LoadWorld:
    """One table, one topic-partition, files of a few rows.

    The test stages and reads with ``store``; loaders use stores that ``open_store`` opens. ``early`` are the deletions
    that came too early, if deletions are watched.
    """

    def __init__(
        self,
        table: TableReference,
        store: GcsObjectStore,
        open_store: Callable[[], GcsObjectStore],
        warehouse: BigQueryWarehouse,
        clock: Clock,
    ) -> None:
        self.table, self.store, self.warehouse = table, store, warehouse
        self._open_store, self._clock = open_store, clock
        self.files: list[StagedFile] = []
        self.early: list[str] = []
        self._commit = Commit(TOPIC, 0, "cluster", "topic", 1, {0: PartitionCommit(0)})
        self.store.create(schema_path(FINGERPRINT), SCHEMA.encode())

    # Staging

    def stage(self, *rows: int, damaged: Iterable[int] = ()) -> None:
        """Commit windows of one file each, with the given number of rows. Files with the indexes ``damaged`` are
        staged too short."""
        files = []
        for place, count in enumerate(rows):
            first = self.files[-1].until if self.files else 0
            data = avro_file(records(range(first, first + count), topic=TOPIC, epoch=1))
            data = data[:-20] if place in set(damaged) else data
            file = staged_file(
                first, first + count, topic=TOPIC, table=str(self.table), fingerprint=FINGERPRINT,
                size=len(data), attempt="1a",
            )  # fmt: skip
            file = replace(file, crc32c=crc32c_text(google_crc32c.value(data)))
            self.store.create(file.path, data)
            self.files.append(file)
            files.append(file)
        self._publish(files)

    def _publish(self, files: list[StagedFile]) -> None:
        windows = [window(file.name.first_offset, file.until, file) for file in files]
        if len(files) == len(self.files):
            self._commit = publish(self._commit, 0, 1, windows)
            state.create_commit(self.store, self._commit)
        else:
            path = commit_path(TOPIC, 0)
            state.change(self.store, Commit, path, lambda commit: publish(commit, 0, 1, windows))

    def uri(self, file: StagedFile) -> str:
        """Where BigQuery reads a file."""
        return self.store.uri(file.path)

    # Loading

    def ports(self, wrap: Wrap = lambda port, name: port) -> LoadPorts:
        """The world of one loader."""
        return LoadPorts(wrap(self._open_store(), "store"), wrap(self.warehouse, "warehouse"), self._clock)

    def load(self, ports: LoadPorts | None = None, wait_seconds: float = 6000.0) -> LoadReport:
        """One run of a loader."""
        options = LoadOptions(lambda table, topics: OPTIONS, wait_seconds, poll_seconds=5.0)
        return load(ports or self.ports(), options)

    def load_until(self, point: Point | None) -> None:
        """One run of a loader that dies at a point, if there is one."""
        death = Death(point)
        with contextlib.suppress(Crash):
            self.load(self.ports(lambda port, name: ProbedPort(port, name, death)))
            assert point is None, f"{point} is no point of this run: {death.passed}"

    def converge(self) -> None:
        """Fresh loaders, until none has anything to do but for what an operator must decide."""
        for _ in range(6):
            report = self.load()
            if {t.state for t in report.tables} <= {"idle", "parked"} and not report.rows:
                return
        raise AssertionError(f"6 loaders leave something to do: {report}")

    def sweep(self) -> None:
        """What an extraction does next: loaded windows leave the commit, and unneeded files are deleted."""
        loaded = self.state().is_loaded
        state.change(self.store, Commit, commit_path(TOPIC, 0), lambda commit: prune(commit, loaded))
        clean(self.ports().store)

    # What there is

    def state(self) -> TableState:
        """The table's load state."""
        return state.read(self.store, TableState, table_state_path(self.table)).value

    def in_flight(self) -> JobInFlight:
        """The job the table waits for."""
        in_flight = self.state().in_flight
        assert in_flight is not None
        return in_flight

    def rows(self) -> dict[int, int]:
        """Rows per offset, read back from BigQuery."""
        return dict(self.warehouse.positions(self.table, KafkaRange(TOPIC, 0, 1)))

    def staged(self) -> set[str]:
        """Paths of the staged files that are still there."""
        return {entry.path for entry in self.store.list(STAGING)}

    def quarantined(self) -> set[str]:
        """Paths of staged files that have a copy in quarantine."""
        copies = {entry.path for entry in self.store.list(QUARANTINE)}
        return {file.path for file in self.files if quarantine_path(file.path) in copies}


class Death(Probe):
    """The loader dies at a point, after which none of its code runs."""

    def __call__(self, kind: str) -> None:
        if self._point == (kind, self._count(kind)):
            raise Crash


class Ground:
    """The local servers, a bucket and a dataset, which many worlds share, and clients of them."""

    def __init__(self, gcs: GcsServer, bigquery: BigQueryServer) -> None:
        self.gcs, self.bigquery = gcs, bigquery
        self.bucket, self.dataset = gcs.new_bucket(), bigquery.new_dataset()
        self._numbers = itertools.count(1)

    @cached_property
    def unwatched(self) -> StorageClient:
        """A client that no proxy sees."""
        return storage_client(GoogleAccess("anonymous", self.gcs.direct_endpoint))

    def world(self) -> WatchedWorld:
        """A separate table below a separate prefix."""
        return WatchedWorld(self, f"w{next(self._numbers)}")

    def close(self) -> None:
        """Remove faults and watchers, and let jobs continue."""
        for server in (self.gcs, self.bigquery):
            server.faults.clear()
            server.watchers.clear()
        self.bigquery.hold_jobs(False)
        self.bigquery.judge.strict_ids = True


class WatchedWorld(LoadWorld):
    """A world on local servers, with clients of a loader's own kind: real, and through the proxies.

    It is staged and looked at past the proxy of Cloud Storage: only loaders are watched and struck.
    """

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground, self.name = ground, name
        self.gcs, self.bigquery = ground.gcs, ground.bigquery

        def store(client: StorageClient) -> GcsObjectStore:
            return GcsObjectStore(client, ground.bucket, name, pauses=_PAUSES)

        clock = FastClock()
        warehouse = BigQueryWarehouse(ground.bigquery.client(), PROJECT, LOCATION, clock=clock)
        table = TableReference(ground.dataset, name)
        super().__init__(table, store(ground.unwatched), lambda: store(ground.gcs.client()), warehouse, clock)
        ground.gcs.watchers.append(self._watch_deletion)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as BigQuery has it. Raises KeyError."""
        return self.bigquery.judge.ledger.document(self.key(job_id))

    def key(self, job_id: str) -> JobKey:
        """What names a job in the ledger."""
        return JobKey(PROJECT, LOCATION.lower(), job_id)

    # What must not happen

    def _watch_deletion(self, request: Request) -> None:
        """On arrival of a staged file's deletion the table's state must say that it was loaded, and BigQuery too."""
        if request.method != "objects.delete":
            return
        for file in self.files:
            if request.path.endswith(_quoted(f"{self.name}/{file.path}")) and not self._may_go(file):
                self.early.append(file.path)

    def _may_go(self, file: StagedFile) -> bool:
        current = self.state()
        if not current.is_loaded(file):
            return False
        if file.path in {bad.file.path for bad in current.quarantined}:
            return file.path in self.quarantined()
        return any(self.uri(file) in uris for uris in self._loaded_uris(current))

    def _loaded_uris(self, current: TableState) -> Iterator[list[str]]:
        """The files of each job of the table that ended well. Their ids are known (L2)."""
        for number in range(1, current.sequence + 1):
            with contextlib.suppress(KeyError):  # an intent that was never submitted
                job = self.job(f"kbq-{current.uuid}-{number}")
                if job["status"]["state"] == "DONE" and "errorResult" not in job["status"]:
                    yield job["configuration"].get("load", {}).get("sourceUris", [])


def _quoted(name: str) -> str:
    return name.replace("/", "%2F")
