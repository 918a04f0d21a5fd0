"""A table in BigQuery, real or local, that a statement changes batch by batch."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

from google.api_core.exceptions import GoogleAPICallError

from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.rules import (
    DELETED,
    MARK,
    SCD2,
    UPSERT,
    VALID_FROM,
    VALID_TO,
    StatementRule,
)
from kbq_assets.core.statements.side_tables import deleted_table, scratch_table
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.statements.upsert import Upsert, deleted_columns, upsert_sql
from kbq_assets.ports.statements import LedgerRow, StatementJob, Statements
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.adapters.bigquery.test_warehouse import PlacedWarehouse
from kbq_assets_tests.contracts.warehouse import Stage, avro_file, load_job, schema_of

SCHEMA = schema_of(
    ("value", ["null", "string"]),
    ("_kafka_key", ["null", "bytes"]),
    ("v", ["null", "long"]),
    ("_kafka_timestamp", {"type": "long", "logicalType": "timestamp-millis"}),
)
_NUMBERS = itertools.count(1)


class StatementTable:
    """The target, and what applies batches to it. ``merges``: the server runs a MERGE in a transaction."""

    def __init__(
        self,
        warehouse: PlacedWarehouse,
        stage: Stage,
        rule: StatementRule,
        target: TableReference,
        *,
        merges: bool,
    ) -> None:
        assert warehouse.statements is not None
        self.warehouse, self.stage, self.rule, self.target = warehouse, stage, rule, target
        self._merges = merges
        #: one more statement of each batch
        self.ends_with = ""
        self.statements: Statements = warehouse.statements
        marked = (Column(DELETED, "BOOL"),) if rule.deletes == MARK else ()
        times = (Column(VALID_FROM, "TIMESTAMP"), Column(VALID_TO, "TIMESTAMP"))
        self.columns = (*columns_of(SCHEMA), *marked, *(times if rule.kind == SCD2 else ()))
        warehouse.create_table(target, self.columns, TableOptions())
        warehouse.create_table(
            deleted_table(target), deleted_columns([Column("_kafka_key", "BYTES")]), TableOptions()
        )

    def apply(
        self, *records: tuple[bytes, str | None, int], partition: int = 0, converts: bool = False
    ) -> str:
        """One batch of keys, values and offsets: of tombstones, or of others. Returns the error."""
        number = next(_NUMBERS)
        scratch = scratch_table(self.target, f"kbq-u-{number}")
        self.statements.create_scratch(scratch, self.columns)
        rows = [row_of(key, value, offset, partition) for key, value, offset in records]
        uri = self.stage(f"{number}.avro", avro_file(rows, SCHEMA))
        load = replace(load_job(f"l{number}", uri, schema=SCHEMA), table=scratch)
        self.warehouse.insert_job(load)
        assert self.done(load.job_id) is None
        name, is_tombstone = self.statements.sql_name, {value for _, value, _ in records} == {None}
        sql = self._text(is_tombstone, converts).replace(SCRATCH, name(scratch))
        sql = ";\n".join(filter(None, (sql, self.ends_with)))
        if self.rule.kind != UPSERT or self._merges:
            return self._apply_once(sql)
        try:
            self.warehouse._session.client.query_and_wait(sql)
        except GoogleAPICallError as error:
            return str(error)
        return ""

    def _apply_once(self, sql: str) -> str:
        """Apply a batch in its transaction. Returns the error. A late job of the same batch changes nothing."""
        number = self.statements.open_ledger(self.target).batch + 1
        first, late = self.job(number, sql), self.job(number, sql)
        self.statements.insert(first)
        failed = self.done(first.job_id)
        ledger, rows = self.statements.read_ledger(self.target), self.rows("*")
        if failed is not None:
            assert ledger == LedgerRow(number - 1, False, ledger.digest if ledger else "")
            return failed.message
        assert ledger == LedgerRow(number, False, first.digest)
        self.statements.insert(late)
        assert self.done(late.job_id) is not None
        assert (self.statements.read_ledger(self.target), self.rows("*")) == (ledger, rows)
        return ""

    def job(self, batch: int, sql: str) -> StatementJob:
        """A job for a batch, with its own id."""
        job_id, place = f"s{next(_NUMBERS)}", (self.warehouse.project, self.warehouse.location)
        return StatementJob(job_id, *place, self.target, batch, sql, job_id)

    def _text(self, tombstones: bool, converts: bool) -> str:
        name = self.statements.sql_name
        if self.rule.kind != UPSERT:
            days = ("1970-01-01", "2100-01-01")
            return text_of(Target(BIGQUERY, self.rule, name(self.target), self.columns, converts, days))
        deleted = name(deleted_table(self.target))
        return upsert_sql(
            Upsert(
                BIGQUERY, self.rule, name(self.target), deleted, self.columns, tombstones, converts=converts
            )
        )

    def done(self, job_id: str) -> JobError | None:
        """The error of a job, once it has ended."""
        found = None
        while found is None or found.state != "DONE":
            if found is not None:
                time.sleep(0.1)
            found = self.warehouse.get_job(job_id, self.warehouse.project, self.warehouse.location)
        return found.error

    def rows(self, columns: str = "_kafka_key, value") -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {self.statements.sql_name(self.target)} ORDER BY _kafka_key"
        return [tuple(row) for row in self.warehouse._session.client.query_and_wait(sql)]


def row_of(key: bytes, value: str | None, offset: int, partition: int) -> dict[str, Any]:
    """A row as it is staged."""
    own = {"_kafka_topic": "t", "_kafka_partition": partition, "_kafka_offset": offset, "_kbq_epoch": 1}
    time = {"_kafka_timestamp": offset, "event_date": 19_000 + offset}
    return {"value": value, "_kafka_key": key, "v": None if offset == 99 else offset // 2, **time, **own}
