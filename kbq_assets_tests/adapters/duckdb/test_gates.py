"""Queries of gates return rows as text, and must be a single query."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.ports.statements import Statements
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records


@pytest.fixture
def statements(tmp_path: Path) -> Statements:
    """With three rows in `TABLE`."""
    warehouse = DuckDbWarehouse(tmp_path / "w.duckdb")
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    (tmp_path / "f.avro").write_bytes(avro_file(records(range(3))))
    warehouse.insert_job(load_job("j", (tmp_path / "f.avro").as_uri()))
    assert warehouse.statements is not None
    return warehouse.statements


def test_rows_are_shown_with_the_names_of_their_columns_and_limited(statements: Statements) -> None:
    name = statements.sql_name(TABLE)
    sql = f"SELECT _kafka_offset AS o, 'x' AS t FROM {name} ORDER BY 1"
    assert statements.rows_of(sql, 2) == ["o=0, t=x", "o=1, t=x"]
    assert statements.rows_of(f"{sql} LIMIT 0", 2) == []
    assert statements.rows_of(f"WITH a AS ({sql}) SELECT max(o) AS m FROM a", 2) == ["m=2"]


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM {table}",
        "SELECT 1; DELETE FROM {table}",
        "DROP TABLE {table}",
        "SELECT nothing FROM {table}",
        "SELEC",
        "",
        "COPY {table} TO 'x.csv'",
    ],
)
def test_what_is_not_one_query_is_refused_and_changes_nothing(statements: Statements, text: str) -> None:
    name = statements.sql_name(TABLE)
    with pytest.raises(JobFailed):
        statements.rows_of(text.format(table=name), 2)
    assert statements.rows_of(f"SELECT count(*) AS n FROM {name}", 2) == ["n=3"]
