"""Statements in a real project: each kind in one transaction with its ledger, a MERGE among them, which local-bigquery
does not run in one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import UPSERT, StatementRule
from kbq_assets.ports.statements import LedgerRow
from kbq_assets_tests.adapters.bigquery.statement_table import StatementTable
from kbq_assets_tests.adapters.bigquery.test_warehouse import PlacedWarehouse
from kbq_assets_tests.google.project.place import Place

pytestmark = pytest.mark.slow

KEY = ("_kafka_key",)
RULES = (
    StatementRule(UPSERT, KEY),
    StatementRule("insert_new", KEY),
    StatementRule("delete_insert", KEY, version="v"),
    StatementRule("snapshot", version="v"),
    StatementRule("scd2", KEY),
    StatementRule("sql", sql="INSERT INTO {{ table }} ({{ columns }}) SELECT {{ columns }} FROM {{ batch }}"),
)
OpenTable = Callable[[StatementRule], StatementTable]


@pytest.fixture
def open_table(gcp: Place, corner: str) -> OpenTable:
    """Opens a table in a dataset of the test's own."""
    store = gcp.store(corner)

    def stage(name: str, data: bytes) -> str:
        store.create(name, data)
        return store.uri(name)

    def opened(rule: StatementRule) -> StatementTable:
        warehouse = PlacedWarehouse(f"{corner}_", gcp.client(), gcp.location)
        return StatementTable(warehouse, stage, rule, TableReference(corner, "orders"), merges=True)

    return opened


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_table_and_ledger_change_together_or_not_at_all(open_table: OpenTable, rule: StatementRule) -> None:
    table = open_table(rule)
    assert table.apply((b"a", "1", 1), (b"b", "2", 2), converts=True) == ""
    before, table.ends_with = table.rows("*"), "SELECT ERROR('no more') FROM UNNEST([1])"
    assert "no more" in table.apply((b"a", "3", 3), (b"c", "4", 4))
    assert table.rows("*") == before
    table.ends_with = ""
    assert table.apply((b"a", "3", 3), (b"c", "4", 4)) == ""
    assert table.rows("*") != before


def test_of_two_statements_at_once_one_takes_effect(open_table: OpenTable) -> None:
    table = open_table(RULES[-1])
    assert table.apply((b"a", "1", 1)) == ""
    name = table.statements.sql_name(table.target)
    sql = f"INSERT INTO {name} SELECT * FROM {name}"
    jobs = [table.job(2, sql) for _ in range(2)]
    for job in jobs:
        table.statements.insert(job)
    errors = {job.digest: table.done(job.job_id) for job in jobs}
    [winner] = [digest for digest, error in errors.items() if error is None]
    assert table.statements.read_ledger(table.target) == LedgerRow(2, False, winner)
    assert table.rows() == [(b"a", "1")] * 2
