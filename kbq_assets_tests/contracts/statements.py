"""What every warehouse with statements promises (`kbq_assets.ports.statements`). Subclass it as `WarehouseFixtures`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.side_tables import scratch_table
from kbq_assets.ports.statements import LedgerRow, StatementJob, Statements
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, Warehouse
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Stage,
    WarehouseFixtures,
    avro_file,
    load_job,
    records,
)

RANGE = KafkaRange("t", 0, 0)
SCRATCH = scratch_table(TABLE, "kbq-u-1")


def statements_of(warehouse: Warehouse) -> Statements:
    """The warehouse's statements."""
    assert warehouse.statements is not None
    return warehouse.statements


def statement(
    warehouse: Warehouse, job_id: str, batch: int, scratch: TableReference = SCRATCH
) -> StatementJob:
    """A statement that appends a scratch table to `TABLE`."""
    name = statements_of(warehouse).sql_name
    sql = f"INSERT INTO {name(TABLE)} SELECT * FROM {name(scratch)}"
    return StatementJob(job_id, "local", "local", TABLE, batch, sql, f"digest of {job_id}".replace(" ", "_"))


class StatementsContract(WarehouseFixtures):
    """The contract of warehouses, and that of their statements."""

    @pytest.fixture
    def filled(self, warehouse: Warehouse, table: TableReference, stage: Stage) -> TableReference:
        """A scratch table with offsets 0 to 2, next to `TABLE`, which is empty, and its ledger."""
        statements_of(warehouse).open_ledger(table)
        self.fill(warehouse, SCRATCH, stage, range(3))
        return SCRATCH

    def fill(
        self, warehouse: Warehouse, scratch: TableReference, stage: Stage, offsets: Iterable[int]
    ) -> None:
        statements_of(warehouse).create_scratch(scratch, columns_of(SCHEMA))
        uri = stage(f"{scratch.table}.avro", avro_file(records(offsets)))
        assert self.run(warehouse, replace(load_job(f"l-{scratch.table}", uri), table=scratch)).error is None

    def apply(self, warehouse: Warehouse, job: StatementJob) -> JobStatus:
        statements_of(warehouse).insert(job)
        return self.finish(warehouse, job.job_id)

    def test_a_statement_changes_table_and_ledger_together(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        status = self.apply(warehouse, statement(warehouse, "s1", 1))
        assert (status.error, status.statement) == (None, "digest_of_s1")
        assert warehouse.positions(TABLE, RANGE) == dict.fromkeys(range(3), 1)
        assert statements_of(warehouse).read_ledger(TABLE) == LedgerRow(1, False, "digest_of_s1")

    def test_a_statement_for_a_batch_that_is_applied_changes_nothing(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        self.apply(warehouse, statement(warehouse, "s1", 1))
        again = self.apply(warehouse, statement(warehouse, "s2", 1))
        assert again.error is not None
        assert again.statement == "digest_of_s2"
        assert warehouse.positions(TABLE, RANGE) == dict.fromkeys(range(3), 1)
        assert statements_of(warehouse).read_ledger(TABLE) == LedgerRow(1, False, "digest_of_s1")

    def test_a_statement_ahead_of_the_ledger_changes_nothing(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        assert self.apply(warehouse, statement(warehouse, "s1", 2)).error is not None
        assert warehouse.kafka_ranges(TABLE) == {}
        assert statements_of(warehouse).read_ledger(TABLE) == LedgerRow(0)

    def test_an_id_of_a_statement_runs_once(self, warehouse: Warehouse, filled: TableReference) -> None:
        self.apply(warehouse, statement(warehouse, "s1", 1))
        with pytest.raises(JobAlreadyExists):
            statements_of(warehouse).insert(statement(warehouse, "s1", 2))
        assert statements_of(warehouse).read_ledger(TABLE) == LedgerRow(1, False, "digest_of_s1")

    def test_a_statement_without_its_scratch_table_raises_no_ledger(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        missing = scratch_table(TABLE, "kbq-u-99")
        failed = self.apply(warehouse, statement(warehouse, "s1", 1, missing))
        assert failed.error is not None
        assert not failed.error.transient
        assert statements_of(warehouse).read_ledger(TABLE) == LedgerRow(0)
        assert self.apply(warehouse, statement(warehouse, "s2", 1)).error is None

    def test_a_skipped_batch_is_not_applied_and_an_applied_one_is_not_skipped(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        ledger = statements_of(warehouse)
        assert ledger.skip(TABLE, 1, "d") == LedgerRow(1, True, "d")
        assert self.apply(warehouse, statement(warehouse, "s1", 1)).error is not None
        assert warehouse.kafka_ranges(TABLE) == {}
        assert self.apply(warehouse, statement(warehouse, "s2", 2)).error is None
        assert ledger.skip(TABLE, 2, "d") == LedgerRow(2, False, "digest_of_s2")
        assert warehouse.kafka_ranges(TABLE) == {RANGE: 3}

    def test_batches_follow_each_other(
        self, warehouse: Warehouse, filled: TableReference, stage: Stage
    ) -> None:
        second = scratch_table(TABLE, "kbq-u-3")
        self.fill(warehouse, second, stage, range(3, 5))
        self.apply(warehouse, statement(warehouse, "s1", 1))
        self.apply(warehouse, statement(warehouse, "s2", 2, second))
        assert warehouse.positions(TABLE, RANGE) == dict.fromkeys(range(5), 1)

    def test_a_ledger_is_opened_once(self, warehouse: Warehouse, filled: TableReference) -> None:
        self.apply(warehouse, statement(warehouse, "s1", 1))
        assert statements_of(warehouse).open_ledger(TABLE) == LedgerRow(1, False, "digest_of_s1")

    def test_a_target_without_a_ledger_has_none_to_read_or_skip(
        self, warehouse: Warehouse, table: TableReference
    ) -> None:
        assert statements_of(warehouse).read_ledger(table) is None
        assert statements_of(warehouse).skip(table, 1, "d") is None

    def test_scratch_tables_and_ledgers_are_no_tables_of_records(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        assert warehouse.tables() == (TABLE,)
        assert statements_of(warehouse).scratch_tables(TABLE.dataset) == (SCRATCH,)

    def test_a_scratch_table_is_dropped_once_or_again(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        ledger = statements_of(warehouse)
        for _ in range(2):
            ledger.drop_scratch(SCRATCH)
            assert ledger.scratch_tables(TABLE.dataset) == ()
        assert warehouse.find_table(SCRATCH) is None

    def test_a_scratch_table_that_exists_keeps_its_rows(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        statements_of(warehouse).create_scratch(SCRATCH, columns_of(SCHEMA))
        self.apply(warehouse, statement(warehouse, "s1", 1))
        assert warehouse.kafka_ranges(TABLE) == {RANGE: 3}

    def test_statements_and_ledgers_are_there_after_a_restart(
        self, warehouse: Warehouse, filled: TableReference
    ) -> None:
        done = self.apply(warehouse, statement(warehouse, "s1", 1))
        again = self.reopened(warehouse)
        found = again.get_job("s1", again.project, again.location)
        assert found is not None
        assert replace(found, created_ms=0) == replace(done, created_ms=0)
        assert statements_of(again).read_ledger(TABLE) == LedgerRow(1, False, "digest_of_s1")
