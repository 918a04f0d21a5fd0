"""A plan says what it cannot reach, and until when that is there."""

from __future__ import annotations

from pathlib import Path

from kbq_assets.core.config.locations import BigQueryProject, DuckDbFile, parse_warehouse
from kbq_assets.pipelines.erasure.erasures import beyond_reach

NOW_MS = 1_700_000_000_000  # 2023-11-14


def test_bigquery_keeps_rows_until_dates_that_the_plan_names() -> None:
    place = parse_warehouse("bigquery://project")
    assert isinstance(place, BigQueryProject)
    text = "\n".join(beyond_reach(place, NOW_MS))
    assert "until 2023-11-21" in text and "until 2023-11-28" in text and "DuckDB" not in text


def test_a_duckdb_file_keeps_free_blocks() -> None:
    text = "\n".join(beyond_reach(DuckDbFile(Path("w.duckdb")), NOW_MS))
    assert "free blocks" in text and "BigQuery" not in text and "Kafka" in text
