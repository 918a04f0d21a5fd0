"""A table that a statement changes shows what was applied, and claims no number of rows."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets.defs.metadata import table_metadata
from kbq_assets.pipelines.loading.ports import TableReport
from kbq_assets.pipelines.observation.status import TableStatus

T = TableReference("d", "orders")
APPENDED = TableStatus(T, "ready", 10, 0, 0, 0, 0)


def test_an_upsert_table_shows_its_last_batch_and_the_bytes_billed() -> None:
    applied = TableStatements(StatementRule("upsert", ("id",)), applied=3, billed=7)
    found = table_metadata(TableReport(T, "idle"), dataclasses.replace(APPENDED, statements=applied), 0)
    assert (found["load"], found["last_batch"], found["bytes_billed"]) == ("upsert", 3, 7)
    assert found["records_applied"] == 10
    assert not {"dagster/row_count", "rows_in_table"} & found.keys()


def test_an_appended_table_shows_its_rows_alone() -> None:
    found = table_metadata(TableReport(T, "idle"), APPENDED, 0)
    assert (found["dagster/row_count"], found["rows_in_table"]) == (10, 10)
    assert not {"load", "bytes_billed"} & found.keys()
