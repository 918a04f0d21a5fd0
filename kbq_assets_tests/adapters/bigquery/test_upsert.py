"""BigQuery runs the texts of statements: local-bigquery judges syntax, names and types, and what becomes of the rows.

Each statement runs as KBQ sends it, in one transaction with its ledger, but for those with a MERGE (`load: upsert`):
local-bigquery aborts every transaction with one. They run outside. Their transaction is that of all others, and the
requests are compared word by word (test_statement_requests.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.names import deleted_table, scratch_table
from kbq_assets.core.statements.rules import (
    DELETED,
    MARK,
    SCD2,
    TIMESTAMP,
    UPSERT,
    VALID_FROM,
    VALID_TO,
    StatementRule,
)
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.statements.upsert import TWO_PARTITIONS, Upsert, deleted_columns, upsert_sql
from kbq_assets.ports.statements import LedgerRow, StatementJob, Statements
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.adapters.bigquery.test_warehouse import PROJECT, OpenWarehouse, PlacedWarehouse
from kbq_assets_tests.contracts.warehouse import Stage, avro_file, load_job, schema_of
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = pytest.mark.google

TARGET = TableReference("current", "orders")
SCHEMA = schema_of(
    ("value", ["null", "string"]),
    ("_kafka_key", ["null", "bytes"]),
    ("v", ["null", "long"]),
    ("_kafka_timestamp", {"type": "long", "logicalType": "timestamp-millis"}),
)
_NUMBERS = itertools.count(1)


class Table:
    """A target on BigQuery, and what applies batches to it."""

    def __init__(self, warehouse: PlacedWarehouse, stage: Stage, rule: StatementRule) -> None:
        assert warehouse.statements is not None
        self.warehouse, self.stage, self.rule = warehouse, stage, rule
        #: one more statement of each batch
        self.ends_with = ""
        self.statements: Statements = warehouse.statements
        marked = (Column(DELETED, "BOOL"),) if rule.deletes == MARK else ()
        times = (Column(VALID_FROM, "TIMESTAMP"), Column(VALID_TO, "TIMESTAMP"))
        self.columns = (*columns_of(SCHEMA), *marked, *(times if rule.kind == SCD2 else ()))
        warehouse.create_table(TARGET, self.columns, TableOptions())
        warehouse.create_table(
            deleted_table(TARGET), deleted_columns([Column("_kafka_key", "BYTES")]), TableOptions()
        )

    def apply(
        self, *records: tuple[bytes, str | None, int], partition: int = 0, converts: bool = False
    ) -> str:
        """One batch of keys, values and offsets: of tombstones, or of others. Returns the error."""
        number = next(_NUMBERS)
        scratch = scratch_table(TARGET, f"kbq-u-{number}")
        self.statements.create_scratch(scratch, self.columns)
        rows = [_row(key, value, offset, partition) for key, value, offset in records]
        uri = self.stage(f"{number}.avro", avro_file(rows, SCHEMA))
        load = replace(load_job(f"l{number}", uri, schema=SCHEMA), table=scratch)
        self.warehouse.insert_job(load)
        assert self.done(load.job_id) is None
        name, is_tombstone = self.statements.sql_name, {value for _, value, _ in records} == {None}
        sql = self._text(is_tombstone, converts).replace(SCRATCH, name(scratch))
        sql = ";\n".join(filter(None, (sql, self.ends_with)))
        if self.rule.kind != UPSERT:
            return self._apply_once(sql)
        try:
            self.warehouse._session.client.query_and_wait(sql)
        except GoogleAPICallError as error:
            return str(error)
        return ""

    def _apply_once(self, sql: str) -> str:
        """Apply a batch in its transaction. Returns the error. A late job of the same batch changes nothing."""
        number = self.statements.open_ledger(TARGET).batch + 1
        first, late = (
            StatementJob(job_id, self.warehouse.project, self.warehouse.location, TARGET, number, sql, job_id)
            for job_id in (f"s{next(_NUMBERS)}", f"s{next(_NUMBERS)}")
        )
        self.statements.insert(first)
        failed = self.done(first.job_id)
        ledger, rows = self.statements.read_ledger(TARGET), self.rows("*")
        if failed is not None:
            assert ledger == LedgerRow(number - 1, False, ledger.digest if ledger else "")
            return failed.message
        assert ledger == LedgerRow(number, False, first.digest)
        self.statements.insert(late)
        assert self.done(late.job_id) is not None
        assert (self.statements.read_ledger(TARGET), self.rows("*")) == (ledger, rows)
        return ""

    def _text(self, tombstones: bool, converts: bool) -> str:
        name = self.statements.sql_name
        if self.rule.kind != UPSERT:
            days = ("1970-01-01", "2100-01-01")
            return text_of(Target(BIGQUERY, self.rule, name(TARGET), self.columns, converts, days))
        deleted = name(deleted_table(TARGET))
        return upsert_sql(
            Upsert(BIGQUERY, self.rule, name(TARGET), deleted, self.columns, tombstones, converts=converts)
        )

    def done(self, job_id: str) -> JobError | None:
        found = None
        while found is None or found.state != "DONE":
            found = self.warehouse.get_job(job_id, self.warehouse.project, self.warehouse.location)
        return found.error

    def rows(self, columns: str = "_kafka_key, value") -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {self.statements.sql_name(TARGET)} ORDER BY _kafka_key"
        return [tuple(row) for row in self.warehouse._session.client.query_and_wait(sql)]


def _row(key: bytes, value: str | None, offset: int, partition: int) -> dict[str, Any]:
    own = {"_kafka_topic": "t", "_kafka_partition": partition, "_kafka_offset": offset, "_kbq_epoch": 1}
    time = {"_kafka_timestamp": offset, "event_date": 19_000 + offset}
    return {"value": value, "_kafka_key": key, "v": None if offset == 99 else offset // 2, **time, **own}


@pytest.fixture
def stage(gcs_server: GcsServer) -> Stage:
    bucket = gcs_server.client().bucket(gcs_server.new_bucket())

    def write(name: str, data: bytes) -> str:
        bucket.blob(name).upload_from_string(data)
        return f"gs://{bucket.name}/{name}"

    return write


@pytest.fixture
def warehouse(bigquery_server: BigQueryServer) -> Iterator[PlacedWarehouse]:
    client = bigquery.Client(
        PROJECT, AnonymousCredentials(), client_options={"api_endpoint": bigquery_server.endpoint}
    )
    yield OpenWarehouse(bigquery_server.endpoint, PROJECT, f"u{next(_NUMBERS)}-")()
    for dataset in client.list_datasets():
        client.delete_dataset(dataset.reference, delete_contents=True)


def test_the_newest_record_wins_and_a_deleted_key_stays_deleted(
    warehouse: PlacedWarehouse, stage: Stage
) -> None:
    table = Table(warehouse, stage, StatementRule("upsert", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"a", "3", 3), (b"b", "2", 2)) == ""
    assert table.apply((b"b", None, 5), (b"c", None, 6)) == ""
    assert table.apply((b"a", "old", 2), (b"b", "old", 4), (b"c", "old", 1), (b"d", "7", 7)) == ""
    assert table.rows() == [(b"a", "3"), (b"d", "7")]
    assert TWO_PARTITIONS in table.apply((b"a", "8", 1), partition=1)
    assert table.rows() == [(b"a", "3"), (b"d", "7")]


def test_marked_deletions_timestamps_and_an_appended_table(warehouse: PlacedWarehouse, stage: Stage) -> None:
    rule = StatementRule("upsert", ("_kafka_key",), MARK, TIMESTAMP)
    table = Table(warehouse, stage, rule)
    uri = stage("appended.avro", avro_file([_row(b"a", f"{n}", n, 0) for n in (1, 2)], SCHEMA))
    warehouse.insert_job(replace(load_job("appended", uri, schema=SCHEMA), table=TARGET))
    assert table.done("appended") is None
    assert table.apply((b"b", "3", 3), converts=True) == ""
    assert table.apply((b"b", None, 4), partition=1) == ""
    assert table.rows(f"_kafka_key, value, {DELETED}") == [(b"a", "2", False), (b"b", "3", True)]


def test_rows_that_were_appended_after_upserts_are_converted_by_the_next_one(
    warehouse: PlacedWarehouse, stage: Stage
) -> None:
    table = Table(warehouse, stage, StatementRule("upsert", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"b", "2", 2), converts=True) == ""
    assert table.apply((b"b", None, 5)) == ""
    rows = [_row(b"a", f"{n}", n, 0) for n in (6, 7)] + [_row(b"b", "old", 3, 0), _row(b"c", "8", 8, 0)]
    warehouse.insert_job(
        replace(load_job("appended", stage("a.avro", avro_file(rows, SCHEMA)), schema=SCHEMA), table=TARGET)
    )
    assert table.done("appended") is None
    assert table.apply((b"d", "9", 9), converts=True) == ""
    assert table.rows() == [(b"a", "7"), (b"c", "8"), (b"d", "9")]


def test_known_keys_are_not_inserted_again(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = Table(warehouse, stage, StatementRule("insert_new", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"a", "2", 2), (b"b", "3", 3)) == ""
    assert table.apply((b"a", "4", 40), (b"c", "5", 5)) == ""
    assert table.rows() == [(b"a", "1"), (b"b", "3"), (b"c", "5")]


def test_keys_are_known_for_days(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = Table(warehouse, stage, StatementRule("insert_new", ("_kafka_key",), within_days=2))
    assert table.apply((b"a", "1", 1), (b"a", "2", 2), (b"a", "9", 9)) == ""
    assert table.apply((b"a", "11", 11), (b"a", "20", 20)) == ""
    assert sorted(value for _, value in table.rows()) == ["1", "20", "9"]


@pytest.mark.parametrize(
    ("rule", "first", "then"),
    [
        (StatementRule("delete_insert", ("_kafka_key",), version="v"), ["a4", "a5", "b2"], ["a6", "b2"]),
        (StatementRule("snapshot", version="v"), ["a4", "a5"], ["a6"]),
    ],
)
def test_rows_of_the_newest_version_replace_older_ones(
    warehouse: PlacedWarehouse, stage: Stage, rule: StatementRule, first: list[str], then: list[str]
) -> None:
    table = Table(warehouse, stage, rule)
    assert table.apply((b"a", "a1", 1), (b"b", "b2", 2), (b"a", "a4", 4), (b"a", "none", 99)) == ""
    assert table.apply((b"a", "a5", 5), (b"a", "old", 0)) == ""
    assert sorted(value for _, value in table.rows()) == first
    assert table.apply((b"a", "a6", 6), converts=True) == ""
    assert sorted(value for _, value in table.rows()) == then


@pytest.mark.parametrize(
    "rule",
    [
        StatementRule("insert_new", ("_kafka_key",)),
        StatementRule("delete_insert", ("_kafka_key",), version="v"),
        StatementRule("snapshot", version="v"),
        StatementRule("scd2", ("_kafka_key",)),
    ],
    ids=lambda rule: rule.kind,
)
def test_a_statement_that_fails_at_its_end_leaves_neither_rows_nor_a_raised_ledger(
    warehouse: PlacedWarehouse, stage: Stage, rule: StatementRule
) -> None:
    table = Table(warehouse, stage, rule)
    assert table.apply((b"a", "1", 1)) == ""
    before, table.ends_with = table.rows("*"), "SELECT ERROR('no more') FROM UNNEST([1])"
    assert "no more" in table.apply((b"a", "2", 2), (b"b", "3", 3))
    assert table.rows("*") == before
    table.ends_with = ""
    assert table.apply((b"a", "2", 2), (b"b", "3", 3)) == ""
    assert table.rows("*") != before


def test_sql_of_the_users_own(warehouse: PlacedWarehouse, stage: Stage) -> None:
    sql = (
        "DELETE FROM {{ table }} AS t WHERE t.v IN (SELECT b.v FROM {{ batch }} AS b); -- 'a day\n"
        "INSERT INTO {{ table }} ({{ columns }}) SELECT {{ columns }} FROM {{ batch }}"
    )
    table = Table(warehouse, stage, StatementRule("sql", sql=sql))
    assert table.apply((b"a", "2", 2), (b"b", "4", 4)) == ""
    assert table.apply((b"c", "3", 3)) == ""
    assert table.rows() == [(b"b", "4"), (b"c", "3")]


def test_a_record_is_valid_until_the_next_one_of_its_key(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = Table(warehouse, stage, StatementRule("scd2", ("_kafka_key",)))
    assert table.apply((b"a", "5", 5), (b"b", "1", 1)) == ""
    assert table.apply((b"a", "7", 7), (b"a", "2", 2)) == ""
    found = table.rows("_kafka_key, value, UNIX_MILLIS(valid_from), UNIX_MILLIS(valid_to)")
    assert sorted(found, key=str) == [
        (b"a", "2", 2, 5), (b"a", "5", 5, 7), (b"a", "7", 7, None), (b"b", "1", 1, None),
    ]  # fmt: skip
