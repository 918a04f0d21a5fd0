"""An upsert's statement on DuckDB, beside DuckDB's own MERGE and INSERT … ON CONFLICT of the same changes.

    python -m benchmarks.upserts [rows] [changes]       10,000,000 and 1,000,000 by default; needs 4 GB

The bar: the statement takes at most three times as long as the faster of the two. DuckDB's own statements get one row
per key, and compare no positions: they could not be run on batches in another order, or twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import duckdb

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.upsert import Upsert, upsert_sql

BAR: Final = 3.0
ROUNDS: Final = 3
_COLUMNS: Final = (
    Column("id", "INT64"),
    *(Column(name, "STRING") for name in ("name", "address")),
    *(Column(name, "INT64") for name in ("a", "b", "c")),
    Column("_kafka_topic", "STRING"),
    *(Column(name, "INT64") for name in ("_kafka_partition", "_kafka_offset", "_kbq_epoch")),
)
_NAMES: Final = [column.name for column in _COLUMNS]
_ROW: Final = (
    "{id} AS id, 'name ' || range AS name, 'a street, number ' || range AS address, range AS a, range AS b, range AS c,"
    " 't' AS _kafka_topic, 0::BIGINT AS _kafka_partition, {first} + range AS _kafka_offset, 1::BIGINT AS _kbq_epoch"
)


def main() -> None:
    """Measure, and print seconds and ratio."""
    rows, changes = (int(text) for text in (*sys.argv[1:], "10000000", "1000000")[:2])
    connection = duckdb.connect()
    connection.execute("CREATE TABLE d (key_0 BIGINT, kbq_topic VARCHAR, kbq_partition BIGINT, kbq_epoch BIGINT,"
                       " kbq_offset BIGINT, kbq_timestamp TIMESTAMPTZ)")  # fmt: skip
    keys = f"range * 7919 % {rows * 11 // 10}"
    connection.execute(f"CREATE TABLE b AS SELECT {_ROW.format(id=keys, first=rows)} FROM range({changes})")
    upsert = Upsert(DUCKDB, StatementRule("upsert", ("id",)), "t", "d", _COLUMNS, one_partition=True)
    values = ", ".join(f"b.{name}" for name in _NAMES)
    assignments = ", ".join(f"{name} = {{0}}.{name}" for name in _NAMES if name != "id")
    merge = (
        f"MERGE INTO t USING b ON t.id = b.id WHEN MATCHED THEN UPDATE SET {assignments.format('b')}"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(_NAMES)}) VALUES ({values})"
    )
    conflict = f"INSERT INTO t SELECT {values} FROM b ON CONFLICT (id) DO UPDATE SET {assignments.format('excluded')}"
    seconds = {
        "kbq": _seconds(connection, rows, upsert_sql(upsert).replace(SCRATCH, "b"), lambda: None),
        "MERGE": _seconds(connection, rows, merge, lambda: None),
        "ON CONFLICT": _seconds(
            connection, rows, conflict, lambda: connection.execute("CREATE UNIQUE INDEX i ON t (id)")
        ),
    }
    for name, value in seconds.items():
        print(f"{name:12} {value:7.2f} s")
    ratio = seconds["kbq"] / min(seconds["MERGE"], seconds["ON CONFLICT"])
    print(f"{changes:,} changes into {rows:,} rows: {ratio:.2f} times as long (bar: {BAR:g})")
    sys.exit(ratio > BAR)


def _seconds(
    connection: duckdb.DuckDBPyConnection, rows: int, sql: str, prepare: Callable[[], object]
) -> float:
    """The fastest of some rounds, each on a fresh table."""
    found = []
    for _ in range(ROUNDS):
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(f"CREATE TABLE t AS SELECT {_ROW.format(id='range', first=0)} FROM range({rows})")
        prepare()
        began = time.perf_counter()
        connection.execute(f"BEGIN; {sql}; COMMIT")
        found.append(time.perf_counter() - began)
    return min(found)


if __name__ == "__main__":
    main()
