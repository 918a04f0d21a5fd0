"""Fixtures that use DuckDB in one run of a test and BigQuery in the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbq_assets.core.config.filebatches import FileBatchSettings
from kbq_assets_tests.both_warehouses.file_bench import FileBench, bigquery_files, duckdb_files
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer
from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench, WarehouseBench

#: Opens a bench with this many partitions and these topic options.
OpenBench = Callable[..., WarehouseBench]
#: Opens a bench of files with settings.
OpenFiles = Callable[..., FileBench]
#: The local servers, None for DuckDB.
Google = tuple[GcsServer, BigQueryServer] | None


@pytest.fixture(params=["duckdb", pytest.param("bigquery", marks=[pytest.mark.google, pytest.mark.thorough])])
def google(request: pytest.FixtureRequest) -> Iterator[Google]:
    """The quick tier runs the pipelines over DuckDB, and contracts/warehouse.py over BigQuery."""
    if request.param == "duckdb":
        yield None
        return
    from kbq_assets_tests.both_warehouses.bigquery_bench import project_client

    server: BigQueryServer = request.getfixturevalue("bigquery_server")
    yield request.getfixturevalue("gcs_server"), server
    server.faults.clear()
    client = project_client(server)
    for dataset in client.list_datasets():
        client.delete_dataset(dataset.reference, delete_contents=True)


@pytest.fixture
def open_bench(google: Google, tmp_path: Path) -> OpenBench:
    """Opens a bench whose topic has a table per record name."""
    common = {"dataset": "d", "route": "record_name"}
    if google is None:
        return lambda partitions=1, **options: DuckDbBench(tmp_path, {**common, **options}, partitions)
    from kbq_assets_tests.both_warehouses.bigquery_bench import BigQueryBench

    return lambda partitions=1, **options: BigQueryBench(*google, {**common, **options}, partitions)


@pytest.fixture
def open_files(google: Google, tmp_path: Path) -> OpenFiles:
    """Opens a bench of batches of files."""

    def opened(**settings: bool | str) -> FileBench:
        own = FileBatchSettings(location="arrivals", **settings)  # type: ignore[arg-type]
        return bigquery_files(*google, own) if google else duckdb_files(tmp_path, own)

    return opened
