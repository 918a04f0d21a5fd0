"""A table with statements shows what was applied, without a number of rows. An ordered table shows its batches."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.ordering.table_order import FailedBatch, Hold, OrderRule, TableOrder
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets.defs.metadata import table_metadata
from kbq_assets.pipelines.loading.ports import TableReport
from kbq_assets.pipelines.observation.status import BatchStatus, TableStatus

T = TableReference("d", "orders")
APPENDED = TableStatus(T, "ready", 10, 0, 0, 0, 0)


def test_an_upsert_table_shows_its_last_batch_and_the_bytes_billed() -> None:
    applied = TableStatements(StatementRule("upsert", ("id",)), applied=3, billed=7)
    status = dataclasses.replace(APPENDED, batches=BatchStatus(statements=applied))
    found = table_metadata(TableReport(T, "idle"), status, 0)
    assert (found["load"], found["last_batch"], found["bytes_billed"]) == ("upsert", 3, 7)
    assert found["records_applied"] == 10
    assert not {"dagster/row_count", "rows_in_table"} & found.keys()


def test_a_change_of_load_that_waits_is_shown() -> None:
    applied = TableStatements(StatementRule("upsert", ("id",)), applied=3, appended=True)
    status = dataclasses.replace(
        APPENDED, batches=BatchStatus(statements=applied, switch="load=upsert from 7 on")
    )
    found = table_metadata(TableReport(T, "idle"), status, 0)
    assert (found["load"], found["load_change"]) == ("append", "load=upsert from 7 on")


def test_an_appended_table_shows_its_rows_alone() -> None:
    found = table_metadata(TableReport(T, "idle"), APPENDED, 0)
    assert (found["dagster/row_count"], found["rows_in_table"]) == (10, 10)
    assert not {"load", "bytes_billed", "order"} & found.keys()


def test_an_ordered_table_shows_its_current_batch_what_waits_and_its_gates() -> None:
    order = TableOrder(OrderRule("hour", ("sql",)), settled=7, validated=6, hold=Hold("history"))
    status = dataclasses.replace(APPENDED, pending_files=4, batches=BatchStatus(order))
    found = table_metadata(TableReport(T, "idle"), status, 0)
    assert (found["order"], found["settled_batch"], found["current_batch"]) == ("hour", 7, 8)
    assert (found["waiting_files"], found["validated_batch"], found["open_gates"]) == (4, 6, "sql")
    assert found["held"] == "an operator holds it: history"
    failed = dataclasses.replace(order, failed=FailedBatch(8, "job", "bad row", ()))
    status = dataclasses.replace(APPENDED, batches=BatchStatus(failed))
    assert table_metadata(TableReport(T, "idle"), status, 0)["failed_batch"] == "8: bad row"
