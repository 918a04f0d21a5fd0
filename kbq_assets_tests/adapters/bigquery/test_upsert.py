"""BigQuery runs the texts of statements: local-bigquery judges syntax, names and types, and what becomes of the rows.

Each statement runs as KBQ sends it, in one transaction with its ledger, but for those with a MERGE (`load: upsert`):
local-bigquery aborts every transaction with one. They run outside. Their transaction is that of all others, and the
requests are compared word by word (test_statement_requests.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.adapters.bigquery.errors_replay import applied_rows, applying
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.keyed import KeyedRange
from kbq_assets.core.replay.model import REPLAY_COLUMN, Bounds, Replay
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.rules import (
    DELETED,
    MARK,
    TIMESTAMP,
    StatementRule,
)
from kbq_assets.core.statements.side_tables import deleted_table, scratch_table
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.upsert import (
    TWO_PARTITIONS,
    Upsert,
    deleted_columns,
    effective_sql,
    upsert_sql,
)
from kbq_assets.ports.errors_replay import REPLAYED_AT, ReplayStatement
from kbq_assets.wire.files.error_rows import error_schema_json
from kbq_assets_tests.adapters.bigquery.statement_table import SCHEMA, StatementTable, row_of
from kbq_assets_tests.adapters.bigquery.test_warehouse import PROJECT, OpenWarehouse, PlacedWarehouse
from kbq_assets_tests.contracts.errors_replay import error_record
from kbq_assets_tests.contracts.warehouse import Stage, avro_file, load_job
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

# The quick tier: test_statement_requests.py compares the requests, and DuckDB runs statements by the same rules.
pytestmark = [pytest.mark.google, pytest.mark.thorough]

TARGET = TableReference("current", "orders")
_NUMBERS = itertools.count(1)


def opened(warehouse: PlacedWarehouse, stage: Stage, rule: StatementRule) -> StatementTable:
    """A table on the local server."""
    return StatementTable(warehouse, stage, rule, TARGET, merges=False)


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
    table = opened(warehouse, stage, StatementRule("upsert", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"a", "3", 3), (b"b", "2", 2)) == ""
    assert table.apply((b"b", None, 5), (b"c", None, 6)) == ""
    assert table.apply((b"a", "old", 2), (b"b", "old", 4), (b"c", "old", 1), (b"d", "7", 7)) == ""
    assert table.rows() == [(b"a", "3"), (b"d", "7")]
    assert TWO_PARTITIONS in table.apply((b"a", "8", 1), partition=1)
    assert table.rows() == [(b"a", "3"), (b"d", "7")]


def test_marked_deletions_timestamps_and_an_appended_table(warehouse: PlacedWarehouse, stage: Stage) -> None:
    rule = StatementRule("upsert", ("_kafka_key",), MARK, TIMESTAMP)
    table = opened(warehouse, stage, rule)
    uri = stage("appended.avro", avro_file([row_of(b"a", f"{n}", n, 0) for n in (1, 2)], SCHEMA))
    warehouse.insert_job(replace(load_job("appended", uri, schema=SCHEMA), table=TARGET))
    assert table.done("appended") is None
    assert table.apply((b"b", "3", 3), converts=True) == ""
    assert table.apply((b"b", None, 4), partition=1) == ""
    assert table.rows(f"_kafka_key, value, {DELETED}") == [(b"a", "2", False), (b"b", "3", True)]


# test_marked_deletions_timestamps_and_an_appended_table converts rows, too.
def test_rows_that_were_appended_after_upserts_are_converted_by_the_next_one(
    warehouse: PlacedWarehouse, stage: Stage
) -> None:
    table = opened(warehouse, stage, StatementRule("upsert", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"b", "2", 2), converts=True) == ""
    assert table.apply((b"b", None, 5)) == ""
    rows = [row_of(b"a", f"{n}", n, 0) for n in (6, 7)] + [row_of(b"b", "old", 3, 0), row_of(b"c", "8", 8, 0)]
    warehouse.insert_job(
        replace(load_job("appended", stage("a.avro", avro_file(rows, SCHEMA)), schema=SCHEMA), table=TARGET)
    )
    assert table.done("appended") is None
    assert table.apply((b"d", "9", 9), converts=True) == ""
    assert table.rows() == [(b"a", "7"), (b"c", "8"), (b"d", "9")]


def test_known_keys_are_not_inserted_again(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = opened(warehouse, stage, StatementRule("insert_new", ("_kafka_key",)))
    assert table.apply((b"a", "1", 1), (b"a", "2", 2), (b"b", "3", 3)) == ""
    assert table.apply((b"a", "4", 40), (b"c", "5", 5)) == ""
    assert table.rows() == [(b"a", "1"), (b"b", "3"), (b"c", "5")]


def test_keys_are_known_for_days(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = opened(warehouse, stage, StatementRule("insert_new", ("_kafka_key",), within_days=2))
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
    table = opened(warehouse, stage, rule)
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
    table = opened(warehouse, stage, rule)
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
    table = opened(warehouse, stage, StatementRule("sql", sql=sql))
    assert table.apply((b"a", "2", 2), (b"b", "4", 4)) == ""
    assert table.apply((b"c", "3", 3)) == ""
    assert table.rows() == [(b"b", "4"), (b"c", "3")]


def test_a_record_is_valid_until_the_next_one_of_its_key(warehouse: PlacedWarehouse, stage: Stage) -> None:
    table = opened(warehouse, stage, StatementRule("scd2", ("_kafka_key",)))
    assert table.apply((b"a", "5", 5), (b"b", "1", 1)) == ""
    assert table.apply((b"a", "7", 7), (b"a", "2", 2)) == ""
    found = table.rows("_kafka_key, value, UNIX_MILLIS(valid_from), UNIX_MILLIS(valid_to)")
    assert sorted(found, key=str) == [
        (b"a", "2", 2, 5), (b"a", "5", 5, 7), (b"a", "7", 7, None), (b"b", "1", 1, None),
    ]  # fmt: skip


# test_a_replay_s_script_requires_the_ledger_and_marks_in_its_transaction reads its text, and DuckDB runs the same rule.
def test_replayed_records_count_if_they_are_newer_than_their_key(
    warehouse: PlacedWarehouse, stage: Stage
) -> None:
    """The text over the rows of a replay, outside of its transaction, as all MERGEs here."""
    rule = StatementRule("upsert", ("_kafka_key",))
    table = opened(warehouse, stage, rule)
    assert table.apply((b"a", "1", 1), (b"b", "5", 5)) == ""
    assert table.apply((b"c", None, 6)) == ""
    columns = (*table.columns, Column(REPLAYED_AT, "TIMESTAMP"))
    warehouse.update_columns(TARGET, columns)
    errors, scratch = TableReference(TARGET.dataset, "kbq_errors"), scratch_table(TARGET, "kbq-u-replay")
    schema = error_schema_json()
    warehouse.create_table(errors, (*columns_of(schema), columns[-1]), TableOptions())
    table.statements.create_scratch(scratch, columns)
    bad = [error_record(offset, _kbq_epoch=1) for offset in (3, 4, 2)]
    records = [(b"a", "3", 3), (b"b", "4", 4), (b"c", "2", 2), (b"d", "no error row", 9)]
    good = [row_of(*record, 0) for record in records]
    for target, rows, text in ((errors, bad, schema), (scratch, good, SCHEMA)):
        uri = stage(f"{target.table}.avro", avro_file(rows, text))
        job = replace(load_job(f"l-{target.table}", uri, schema=text), table=target)
        warehouse.insert_job(job)
        assert table.done(job.job_id) is None
    names = [table.statements.sql_name(each) for each in (TARGET, deleted_table(TARGET), scratch)]
    upsert = Upsert(BIGQUERY, rule, names[0], names[1], columns, one_partition=True)
    session = warehouse._session
    stored = session.find_table(errors)
    assert stored is not None
    own = upsert_sql(upsert).replace(SCRATCH, applied_rows(session.reference(scratch), stored))
    now = bigquery.ScalarQueryParameter("now", "TIMESTAMP", datetime.fromtimestamp(1_700_000_000, UTC))
    session.client.query_and_wait(own, job_config=bigquery.QueryJobConfig(query_parameters=[now]))
    assert table.rows() == [(b"a", "3"), (b"b", "5")]
    assert [value for _, value in table.rows(f"_kafka_key, {REPLAYED_AT} IS NOT NULL")] == [True, False]
    [row] = session.client.query_and_wait(effective_sql(upsert).replace(SCRATCH, names[2]))
    assert tuple(row) == (1,)


def test_a_replay_s_script_requires_the_ledger_and_marks_in_its_transaction() -> None:
    place = bigquery.DatasetReference("p", "current")
    own = ReplayStatement(7, f"MERGE INTO t USING {SCRATCH} AS b", "")
    errors = bigquery.Table(place.table("e"))
    script = applying(place.table("s"), errors, "`ledger`", own)
    assert script.splitlines() == [
        "BEGIN TRANSACTION;",
        "UPDATE `ledger` SET batch = batch WHERE batch = 7;",
        "IF @@row_count != 1 THEN",
        "  RAISE USING MESSAGE = 'kbq: the ledger is not at batch 7: it was loaded meanwhile';",
        "END IF;",
        f"MERGE INTO t USING {applied_rows(place.table('s'), errors)} AS b;",
        f"UPDATE `p.current.e` AS e SET {REPLAYED_AT} = @now",
        f"WHERE e.{REPLAYED_AT} IS NULL",
        "AND EXISTS (SELECT 1 FROM `p.current.s` AS f WHERE f._kafka_topic = e._kafka_topic"
        " AND f._kafka_partition = e._kafka_partition AND f._kafka_offset = e._kafka_offset"
        " AND f._kbq_epoch = e._kbq_epoch);",
        "COMMIT TRANSACTION;",
    ]


@pytest.mark.parametrize("deletes", ["remove", MARK])
def test_a_range_is_replaced_key_by_key_and_brought_back(
    warehouse: PlacedWarehouse, stage: Stage, deletes: str
) -> None:
    table = opened(warehouse, stage, StatementRule("upsert", ("_kafka_key",), deletes=deletes))
    assert table.apply((b"a", "1", 1), (b"b", "2", 2), (b"c", "5", 5)) == ""
    assert table.apply((b"d", None, 6)) == ""
    assert table.apply((b"e", "9", 9)) == ""
    warehouse.update_columns(TARGET, [Column(REPLAY_COLUMN, "INT64")])
    replay, columns = Replay(7, "t", 1, {0: Bounds(2, 8)}), warehouse.columns(TARGET) or ()
    shadow, former, deleted = replay.shadow(TARGET), replay.former(TARGET), deleted_table(TARGET)
    for each in (shadow, former):
        warehouse.create_table(each, columns, TableOptions())
    warehouse.create_table(
        replay.former(deleted), deleted_columns([Column("_kafka_key", "BYTES")]), TableOptions()
    )
    records = [(b"a", None, 3), (b"b", "2!", 2), (b"c", "4", 4), (b"d", "7", 7), (b"e", "8", 7)]
    rows = [{**row_of(key, value, offset, 0), "v": None} for key, value, offset in records]
    load = load_job("range", stage("range.avro", avro_file(rows, SCHEMA)), schema=SCHEMA)
    warehouse.insert_job(replace(load, table=shadow))
    assert table.done("range") is None
    name, run = table.statements.sql_name, warehouse._session.client.query_and_wait
    upsert = Upsert(BIGQUERY, table.rule, name(TARGET), name(deleted), columns)
    names = (name(shadow), name(former), name(replay.former(deleted)))
    own = KeyedRange(replay, upsert, *names, tombstones=True)
    shown = f"_kafka_key, value{f', {DELETED}' if deletes == MARK else ''}"
    before = table.rows(shown)
    assert table.statements.rows_of(own.unknown_sql(), 1) == ["keys=0"]
    assert table.statements.rows_of(own.unread_sql(names[:1]), 1) == ["keys=2"]
    for _ in range(2):
        run(own.promotion_sql())
        found = table.rows(shown)
        assert [row[:2] for row in found if not row[2:] or not row[2]] == [
            (b"b", "2!"),
            (b"c", "4"),
            (b"d", "7"),
            (b"e", "9"),
        ]
        run(own.rollback_sql())
        assert table.rows(shown) == before
