"""A plan lists what an erasure cannot reach, and until when that exists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kbq_assets.adapters.bigquery.erasure import BigQueryErasureTables
from kbq_assets.adapters.duckdb.erasure import DuckDbErasureTables

UNUSED: Any = None


def test_bigquery_keeps_rows_until_dates_that_the_plan_names() -> None:
    [text] = BigQueryErasureTables(UNUSED).keeps(())
    for days in (7, 14):
        assert f"until {(datetime.now(UTC) + timedelta(days=days)).date()}" in text


def test_a_duckdb_file_keeps_free_blocks() -> None:
    [text] = DuckDbErasureTables(UNUSED, UNUSED).keeps(())
    assert "free blocks" in text
