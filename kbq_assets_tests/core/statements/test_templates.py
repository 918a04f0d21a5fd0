"""Users' own SQL: only queries and DML, whatever hides in strings, names and comments."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import BIGQUERY, DUCKDB, Dialect
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.sql_tokens import tokens_of
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.templates import check_sql, sql_text
from kbq_assets.core.topics.topic_settings import TopicSettings

GOOD = "INSERT INTO {{ table }} ({{columns}}) SELECT {{ columns }} FROM {{ batch }}"
both = pytest.mark.parametrize("dialect", [BIGQUERY, DUCKDB], ids=lambda dialect: dialect.name)


@both
def test_placeholders_become_names_and_the_rest_stays(dialect: Dialect) -> None:
    columns = (Column("id", "INT64"), Column("at", "DATE"))
    target = Target(dialect, StatementRule("sql", sql=GOOD), "t", columns)
    q = dialect.quote
    listed = f"{q}id{q}, {q}at{q}"
    assert sql_text(target) == f"INSERT INTO t ({listed}) SELECT {listed} FROM {SCRATCH}"


@both
@pytest.mark.parametrize(
    "more",
    [
        "DELETE FROM {{ table }} WHERE x = 'DROP TABLE a; COMMIT'",
        "-- COMMIT;\nUPDATE {{ table }} SET y = 1 WHERE TRUE /* ; CALL p() */",
        "MERGE INTO {{ table }} t USING {{ batch }} b ON t.id = b.id WHEN MATCHED THEN DELETE",
        "(SELECT 1); WITH a AS (SELECT 1 AS commit) SELECT commit FROM a;;",
    ],
)
def test_queries_and_dml_are_accepted_whatever_their_texts_and_comments_say(
    dialect: Dialect, more: str
) -> None:
    check_sql(f"{GOOD}; {more}", [dialect])


@both
@pytest.mark.parametrize(
    "more",
    [
        "COMMIT", "commit transaction", "ROLLBACK", "BEGIN", "/* x */ BEGIN TRANSACTION", "CALL p()",
        "DROP TABLE a", "CREATE TABLE a AS SELECT 1", "CREATE OR REPLACE TABLE {{ table }} AS SELECT 1",
        "ALTER TABLE a RENAME TO b", "TRUNCATE TABLE {{ table }}", "EXECUTE IMMEDIATE 'DROP TABLE a'",
        "DECLARE x INT64", "SET x = 1", "IF TRUE THEN COMMIT", "RAISE", "LOOP", "COPY a TO 'x'", "ATTACH 'x'",
        "PRAGMA x", "INSTALL x", "EXPORT DATA", "GRANT x", "l: BEGIN", "( DROP TABLE a )", "VACUUM", "FROM a",
        "`DROP` TABLE a", "UPDATE d._kbq_ledger_A SET batch = 7", "DELETE FROM D._KBQ_DELETED_A WHERE TRUE",
    ],
)  # fmt: skip
def test_whatever_could_end_the_transaction_or_escape_it_is_refused(dialect: Dialect, more: str) -> None:
    for text in (f"{GOOD}; {more}", f"{more}; {GOOD}"):
        with pytest.raises(ConfigurationError, match="sql: "):
            check_sql(text, [dialect])


@pytest.mark.parametrize(
    ("dialect", "hidden"),
    [
        (BIGQUERY, r"SELECT 'it\'; DROP TABLE a; --'"),
        (DUCKDB, "SELECT 'it''s; DROP TABLE a'"),
        (BIGQUERY, r"SELECT r'\'; DROP TABLE a; --'"),
        (BIGQUERY, 'SELECT """a " ; DROP TABLE a"""'),
        (BIGQUERY, "SELECT '' ; SELECT ';'"),
        (BIGQUERY, "SELECT 1 # ; DROP TABLE a"),
        (DUCKDB, r"SELECT E'\'; DROP TABLE a; --'"),
        (DUCKDB, 'SELECT 1 AS "; DROP TABLE a"'),
    ],
)
def test_a_semicolon_within_a_text_ends_no_statement(dialect: Dialect, hidden: str) -> None:
    check_sql(f"{GOOD}; {hidden}", [dialect])


@pytest.mark.parametrize(
    "text",
    ["-- x\r; DROP TABLE a", "-- x\u2028'", "SELECT 'open", "/* a /* b */ ; DROP TABLE a */", "/* open"],
)
@both
def test_what_is_not_closed_or_has_two_meanings_is_refused(dialect: Dialect, text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot read it from"):
        check_sql(f"{GOOD}; {text}", [dialect])


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (DUCKDB, r"SELECT 'it\'; DROP TABLE a; --'"),
        (BIGQUERY, "SELECT 'it''; DROP TABLE a; --"),
        (DUCKDB, "SELECT 1 # 2; DROP TABLE a"),
        (BIGQUERY, "SELECT ''''a' ; DROP TABLE a"),
        (DUCKDB, "SELECT $$ ' $$; DROP TABLE a; --'"),
        (BIGQUERY, "SELECT `open"),
        (DUCKDB, 'SELECT "open'),
    ],
)
def test_texts_and_comments_of_one_dialect_hide_nothing_in_another(dialect: Dialect, text: str) -> None:
    with pytest.raises(ConfigurationError, match="sql: "):
        check_sql(f"{GOOD}; {text}", [dialect])


def test_a_template_that_one_warehouse_reads_is_accepted_for_any() -> None:
    check_sql(f"{GOOD}; SELECT 'it''s'")
    check_sql(rf"{GOOD}; SELECT 'it\'s'")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"load": "sql"}, "load=sql: no sql"),
        ({"load": "append", "sql": GOOD}, "load=append does not use it"),
        ({"load": "sql", "sql": GOOD, "key": "id"}, "key: load=sql does not use it"),
        ({"load": "sql", "sql": "DELETE FROM {{ table }} WHERE TRUE"}, "the batch's rows would be lost"),
        ({"load": "sql", "sql": "INSERT INTO d.other SELECT * FROM {{ batch }}"}, "change no row of it"),
        ({"load": "sql", "sql": "SELECT * FROM {{ table }}, {{ batch }}"}, "it changes nothing"),
        ({"load": "sql", "sql": GOOD + " WHERE {{ where }}"}, "{{ where }} is unknown"),
    ],
)
def test_options_that_contradict_it_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TopicSettings.of(**options)
    assert named in str(refused.value)


def test_an_order_is_allowed() -> None:
    assert TopicSettings.of(load="sql", sql=GOOD, order="offset").statement.rule.sql == GOOD


@both
@pytest.mark.parametrize("text", ["'" + "a" * 50_000 + "'", "/*" * 20_000, "-- a\n" * 20_000, "'" * 20_001])
def test_a_long_text_ends(dialect: Dialect, text: str) -> None:
    try:
        assert len(list(tokens_of(text, dialect))) <= 10_001
    except ConfigurationError as error:
        assert "cannot read it" in str(error)
