"""Requests of a statement, field by field: its transaction, and the dry runs before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbq_assets.adapters.bigquery.statements import LEAST_BILLED
from kbq_assets.core.errors import JobFailed, Unavailable
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.rules import SCD2, UPSERT, VALID_FROM, VALID_TO, StatementRule
from kbq_assets.core.statements.sql_tokens import split
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.statements.upsert import Upsert, upsert_sql
from kbq_assets.ports.statements import StatementJob, Statements
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    CannedBigQuery,
    canned_bigquery,
    job_resource,
)

LEDGER = "`shop-prod.shop._kbq_ledger_orders-v1`"
COLUMNS = (
    Column("id", "INT64"),
    Column("v", "INT64"),
    Column("tags", "STRING", "REPEATED"),
    Column("_key", "STRUCT", fields=(Column("a", "INT64"), Column("b", "BYTES", "REPEATED"))),
    Column("event_date", "DATE"),
    Column(VALID_FROM, "TIMESTAMP"),
    Column(VALID_TO, "TIMESTAMP"),
)
RULES = [
    StatementRule(UPSERT, ("id",)),
    StatementRule("insert_new", ("id",), within_days=2),
    StatementRule("delete_insert", ("id",), version="v"),
    StatementRule("snapshot", version="v"),
    StatementRule(SCD2, ("id",)),
    StatementRule("sql", sql="INSERT INTO {{ table }} SELECT * FROM {{ batch }} WHERE v <> ';'; SELECT 1;"),
]


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        yield found


@pytest.fixture
def statements(server: CannedBigQuery) -> Statements:
    found = server.warehouse().statements
    assert found is not None
    return found


def text(rule: StatementRule) -> str:
    name = "`shop-prod.shop.orders-v1`"
    if rule.kind == UPSERT:
        deleted = "`shop-prod.shop._kbq_deleted_orders-v1`"
        return upsert_sql(Upsert(BIGQUERY, rule, name, deleted, COLUMNS, flag="v", converts=True))
    days = ("2026-01-01", "2026-01-05")
    return text_of(Target(BIGQUERY, rule, name, COLUMNS, converts=True, days=days))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_a_statement_is_one_transaction_that_raises_the_ledger_first_and_ends_with_its_commit(
    server: CannedBigQuery, statements: Statements, rule: StatementRule
) -> None:
    server.reply("jobs.insert", job_resource("kbq-1-2", {"jobType": "QUERY", "query": {"query": ""}}))
    sql = text(rule).replace(SCRATCH, "`shop-prod.shop._kbq_batch_1_1`")
    statements.insert(StatementJob("kbq-1-2", PROJECT, LOCATION, TABLE, 7, sql, "abc"))
    [sent] = server.sent("jobs.insert")
    query = sent.json["configuration"].pop("query")
    assert sent.json == {
        "jobReference": {"projectId": PROJECT, "jobId": "kbq-1-2", "location": LOCATION},
        "configuration": {
            "jobTimeoutMs": sent.json["configuration"]["jobTimeoutMs"],
            "labels": {"kbq_statement": "abc"},
        },
    }
    assert query.pop("useLegacySql") is False
    script = query.pop("query")
    assert query == {}  # no destination: a script has none
    assert script == (
        "BEGIN TRANSACTION;\n"
        f"UPDATE {LEDGER} SET batch = 7, skipped = FALSE, digest = 'abc' WHERE batch = 6;\n"
        "IF @@row_count != 1 THEN\n"
        "  RAISE USING MESSAGE = 'kbq: the ledger is not at batch 6';\n"
        "END IF;\n"
        f"{sql.rstrip(';')};\n"
        "COMMIT TRANSACTION;"
    )
    inside = [each.split()[0].upper() for each in split(sql, BIGQUERY)]
    assert set(inside) <= {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"}


def test_each_statement_is_run_dry_alone_and_costs_at_least_the_minimum(
    server: CannedBigQuery, statements: Statements
) -> None:
    for processed in ("25000000", "17", "0"):
        found = {"query": {"totalBytesProcessed": processed}, "totalBytesProcessed": processed}
        server.reply(
            "jobs.insert", job_resource("", {"jobType": "QUERY", "query": {"query": ""}}, statistics=found)
        )
    sql = "DELETE FROM t WHERE a = ';'; MERGE INTO t USING b ON FALSE;\nINSERT INTO t SELECT 1"
    assert statements.bytes_billed(sql, PROJECT, LOCATION) == 25_000_000 + LEAST_BILLED
    sent = [request.json["configuration"] for request in server.sent("jobs.insert")]
    assert [each["query"]["query"] for each in sent] == [
        "DELETE FROM t WHERE a = ';'", "MERGE INTO t USING b ON FALSE", "INSERT INTO t SELECT 1",
    ]  # fmt: skip
    assert all(each["dryRun"] and each["query"]["useQueryCache"] is False for each in sent)


@pytest.mark.parametrize(("status", "raised"), [(400, JobFailed), (503, Unavailable)])
def test_a_dry_run_that_fails_says_whether_the_text_is_to_blame(
    server: CannedBigQuery, statements: Statements, status: int, raised: type[Exception]
) -> None:
    server.refuse("jobs.insert", status)
    with pytest.raises(raised):
        statements.bytes_billed("SELECT 1", PROJECT, LOCATION)


def test_a_batch_that_is_not_loaded_yet_is_a_query_that_reads_nothing(statements: Statements) -> None:
    assert statements.empty(COLUMNS[1:4]) == (
        "(SELECT CAST(NULL AS INT64) AS `v`, CAST(NULL AS ARRAY<STRING>) AS `tags`,"
        " CAST(NULL AS STRUCT<`a` INT64, `b` ARRAY<BYTES>>) AS `_key`)"
    )
