"""`schema_ids=true`: each row has the id of its record's schema, even in tables older than the option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets_tests.pipelines.bench import A, B
from kbq_assets_tests.pipelines.loading.test_lake import LakeBench
from kbq_assets_tests.pipelines.loading.test_lake import bench as lake_bench  # noqa: F401 - a fixture
from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench

OPTIONS: dict[str, Any] = {"dataset": "d", "route": "record_name"}
ID = "_kbq_schema_id"


def test_a_table_of_duckdb_gets_the_column_with_the_next_batch(tmp_path: Path) -> None:
    bench = DuckDbBench(tmp_path, OPTIONS)
    bench.produce(1, 3)
    bench.cycle()
    assert ID not in [column.name for column in bench.duckdb.columns(A) or ()]
    bench.produce(1, 2, 1)
    bench.cycle(schema_ids=True)
    [column] = [column for column in bench.duckdb.columns(A) or () if column.name == ID]
    assert (column.type, column.mode, column.description) == ("INT64", "NULLABLE", OWN_COLUMNS[ID])
    bench.produce(2)
    bench.cycle()  # without it again
    found = bench.rows(f"SELECT _kafka_offset, {ID} FROM {A} ORDER BY 1")
    assert found == [(0, None), (2, 1), (3, 2), (4, 1), (5, None)]
    assert ID not in [column.name for column in bench.duckdb.columns(B) or ()]


@pytest.mark.thorough
@pytest.mark.parametrize("schema_ids", [(False, True, False), (True, False, True)])
def test_in_a_lake_all_rows_have_it_whatever_the_option_says(
    lake_bench: LakeBench,  # noqa: F811
    schema_ids: tuple[bool, ...],
) -> None:
    bench = lake_bench
    for wanted in schema_ids:
        destination = replace(bench.settings.destination, schema_ids=wanted)
        bench.settings = replace(bench.settings, destination=destination)
        bench.produce(1, 2)
        bench.everything()
    stored = bench.lake.lake.table(A)
    assert stored is not None
    rows = stored.scan().to_arrow().sort_by("_kafka_offset").to_pydict()
    assert rows[ID] == [1, 2] * 3
    assert bench.offsets_in_lake(A) == bench.offsets(A) == list(range(6))
    assert "schema_version=1" in str([file.file.file_path for file in stored.scan().plan_files()])
    bench.produce(1)
    before = len(stored.metadata.schemas)
    bench.everything()
    stored.refresh()
    assert len(stored.metadata.schemas) == before  # a batch that brings nothing new changes no table
