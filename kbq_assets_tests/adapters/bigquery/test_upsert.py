"""BigQuery runs the texts of statements: local-bigquery judges syntax, names and types, and what becomes of the rows.

Each statement runs as KBQ sends it, in one transaction with its ledger, but for those with a MERGE (`load: upsert`):
local-bigquery aborts every transaction with one. They run outside. Their transaction is that of all others, and the
requests are compared word by word (test_statement_requests.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import (
    DELETED,
    MARK,
    TIMESTAMP,
    StatementRule,
)
from kbq_assets.core.statements.upsert import TWO_PARTITIONS
from kbq_assets_tests.adapters.bigquery.statement_table import SCHEMA, StatementTable, row_of
from kbq_assets_tests.adapters.bigquery.test_warehouse import PROJECT, OpenWarehouse, PlacedWarehouse
from kbq_assets_tests.contracts.warehouse import Stage, avro_file, load_job
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = pytest.mark.google

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
