"""Fixtures that are over DuckDB in one run of a test, and over BigQuery in the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench, WarehouseBench

#: Opens a bench with options of its topic, and so many partitions.
OpenBench = Callable[..., WarehouseBench]
WAREHOUSES = ("duckdb", pytest.param("bigquery", marks=pytest.mark.google))


@pytest.fixture(params=WAREHOUSES)
def open_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenBench]:
    """Opens a bench whose topic has a table per record name."""
    common = {"dataset": "d", "route": "record_name"}
    if request.param == "duckdb":
        yield lambda partitions=1, **options: DuckDbBench(tmp_path, {**common, **options}, partitions)
        return
    from kbq_assets_tests.both_warehouses.bigquery_bench import BigQueryBench, project_client

    gcs, server = request.getfixturevalue("gcs_server"), request.getfixturevalue("bigquery_server")
    yield lambda partitions=1, **options: BigQueryBench(gcs, server, {**common, **options}, partitions)
    server.faults.clear()
    client = project_client(server)
    for dataset in client.list_datasets():
        client.delete_dataset(dataset.reference, delete_contents=True)
