"""The view in docs/reset.md, on DuckDB: each record once, with its newest epoch."""

from __future__ import annotations

import re

import duckdb

from kbq_assets_tests.fixtures.local_stack import REPOSITORY

ROWS = [
    # partition, offset, epoch, what the row says
    (0, 1, 1, "old"),
    (0, 2, 1, "old"),
    (0, 3, 1, "old"),
    (0, 2, 2, "new"),
    (0, 3, 2, "new"),
    (0, 3, 10, "newest"),
    (1, 3, 1, "another partition"),
]


def documented_view() -> str:
    """The statement that the guide gives."""
    guide = (REPOSITORY / "docs" / "reset.md").read_text()
    [statement] = re.findall(r"```sql\n(CREATE VIEW .*?)```", guide, re.DOTALL)
    return str(statement)


def test_the_view_shows_each_record_once_as_the_newest_epoch_has_it() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(
            "CREATE TABLE shop.orders (_kafka_topic VARCHAR, _kafka_partition INTEGER, _kafka_offset BIGINT, "
            "_kbq_epoch BIGINT, said VARCHAR)"
        )
        connection.executemany("INSERT INTO shop.orders VALUES ('t', ?, ?, ?, ?)", ROWS)
        connection.execute(documented_view())
        shown = connection.execute(
            "SELECT _kafka_partition, _kafka_offset, said FROM shop.orders_newest ORDER BY ALL"
        ).fetchall()
    assert shown == [(0, 1, "old"), (0, 2, "new"), (0, 3, "newest"), (1, 3, "another partition")]
