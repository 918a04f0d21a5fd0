"""Batches of files for a real warehouse: a source, a store of states, and runners over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.filebatches.duckdb import DuckDbFileLoads
from kbq_assets.core.config.filebatches import FileBatchSettings
from kbq_assets.pipelines.filebatches.ports import FilePorts, steering_names
from kbq_assets.pipelines.filebatches.runner import FileBatches, FilesReport
from kbq_assets.pipelines.filebatches.source_objects import FileSource
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.file_loads import FileLoads
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

if TYPE_CHECKING:
    from kbq_assets.adapters.bigquery import BigQueryWarehouse

#: The table's dataset and directory, as in Google's documentation.
DATASET, PREFIX = "dataset", "dataset/table"
#: Seconds of the runner's clock until it gives up on its jobs: with `FastClock` many minutes of ours.
_WAIT_SECONDS: Final = 100_000.0


@dataclass(frozen=True)
class FileBench:
    """Runs batches of ``source``, by ``settings``. ``query`` runs any SQL in the warehouse; ``table`` is the table's
    name in it."""

    settings: FileBatchSettings
    source: ObjectStore
    store: ObjectStore
    warehouse: DuckDbWarehouse | BigQueryWarehouse
    loads: FileLoads
    clock: Clock
    query: Callable[[str], list[tuple[Any, ...]]]
    table: str

    def batches(self) -> FileBatches:
        """A fresh runner."""
        source = FileSource(self.source, self.settings.success, steering_names(self.settings))
        ports = (self.settings, source, self.store, self.warehouse, self.loads, self.clock)
        return FileBatches(FilePorts(*ports, wait_seconds=_WAIT_SECONDS))

    def run(self) -> FilesReport:
        """One run."""
        return self.batches().run()

    def limit_files(self, files: int) -> None:
        """Limit the number of files per job."""
        self.warehouse.limits = dataclasses.replace(self.warehouse.limits, files=files)

    def put(self, path: str, text: str = "") -> None:
        """Write, or overwrite, an object of the table's directory."""
        self.source.delete(f"{PREFIX}/{path}")
        self.source.create(f"{PREFIX}/{path}", text.encode())

    def batch(self, path: str, *texts: str) -> None:
        """Upload a batch of CSV files."""
        for number, text in enumerate(texts):
            self.put(f"{path}/foo-data-{number:02}.csv", text)
        self.put(f"{path}/_SUCCESS")

    def waiting(self) -> dict[str, str]:
        """The state of each batch that is not applied, by its path below the table's directory."""
        report = self.batches().status()
        found = [each for table in report.tables for each in table.batches]
        return {each.path.removeprefix(f"{PREFIX}/"): str(each.state) for each in found}

    def applied(self) -> list[str]:
        """The batches that the state counts as applied, in their order."""
        state = self.batches().states.read(PREFIX).value
        return [each.path.removeprefix(f"{PREFIX}/") for each in state.applied if not each.skipped]

    def rows(self, columns: str = "id") -> list[tuple[Any, ...]]:
        """All rows, in the order of the columns."""
        return sorted(self.query(f"SELECT {columns} FROM {self.table}"))

    def steering(self) -> list[str]:
        """Objects by which Google's tool would steer the table."""
        paths = [entry.path.removeprefix(f"{PREFIX}/") for entry in self.source.list("")]
        return [path for path in paths if path.startswith(("_backlog/", "_bqlock"))]


def duckdb_files(folder: Path, settings: FileBatchSettings) -> FileBench:
    """Over a DuckDB file."""
    path, source = folder / "files.duckdb", FaultyMemoryStore()

    def query(sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(path) as connection:
            return connection.execute(sql).fetchall()

    warehouse, loads = DuckDbWarehouse(path), DuckDbFileLoads(path, source)
    return FileBench(
        settings, source, FaultyMemoryStore(), warehouse, loads, SystemClock(), query, f"{DATASET}.table"
    )


def bigquery_files(gcs: GcsServer, server: BigQueryServer, settings: FileBatchSettings) -> FileBench:
    """Over local-bigquery, with source and states in a bucket."""
    from kbq_assets.adapters.bigquery import BigQueryWarehouse
    from kbq_assets.adapters.filebatches.bigquery import BigQueryFileLoads
    from kbq_assets.adapters.gcs import GcsObjectStore
    from kbq_assets_tests.both_warehouses.bigquery_bench import LOCATION, PROJECT, project_client
    from kbq_assets_tests.google.loads import FastClock

    client, bucket, clock = project_client(server), gcs.new_bucket(), FastClock()
    client.create_dataset(DATASET)
    source, store = (GcsObjectStore(gcs.client(), bucket, name) for name in ("arrivals", "states"))
    warehouse = BigQueryWarehouse(client, PROJECT, LOCATION, clock=clock)

    def query(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in client.query_and_wait(sql)]

    loads = BigQueryFileLoads(client, PROJECT)
    return FileBench(settings, source, store, warehouse, loads, clock, query, f"`{PROJECT}.{DATASET}.table`")
