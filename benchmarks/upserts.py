"""Compares an upsert's statement on DuckDB with DuckDB's own MERGE and INSERT … ON CONFLICT of the same changes.

    python -m benchmarks.upserts [rows] [changes]       10,000,000 and 1,000,000 by default; needs 4 GB

The limit: the statement may take at most three times as long as the faster of the two. DuckDB's own statements get one
row per key and compare no positions, so they would be wrong for batches in another order, or if run twice. The fastest
of three rounds counts. Results are written to ``benchmarks/results/upserts.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Final, NamedTuple

import duckdb

from benchmarks.extraction import RESULTS, machine
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.upsert import Upsert, upsert_sql

BAR: Final = 3.0
ROUNDS: Final = 3
KBQ, MERGE, CONFLICT = "kbq", "MERGE", "ON CONFLICT"
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


class Spent(NamedTuple):
    """Wall seconds of one statement, and CPU seconds of all of DuckDB's threads."""

    wall: float
    cpu: float


def main() -> None:
    """Measure, then print and write the seconds and the ratio."""
    rows, changes = (int(text) for text in (*sys.argv[1:], "10000000", "1000000")[:2])
    connection = duckdb.connect()
    connection.execute("CREATE TABLE d (key_0 BIGINT, kbq_topic VARCHAR, kbq_partition BIGINT, kbq_epoch BIGINT,"
                       " kbq_offset BIGINT, kbq_timestamp TIMESTAMPTZ)")  # fmt: skip
    keys = f"range * 7919 % {rows * 11 // 10}"
    connection.execute(f"CREATE TABLE b AS SELECT {_ROW.format(id=keys, first=rows)} FROM range({changes})")
    statements = _statements()
    spent: dict[str, list[Spent]] = {name: [] for name in statements}
    for _ in range(ROUNDS):  # in turns, so that other load on the machine affects all alike
        for name, sql in statements.items():
            spent[name].append(_spent(connection, rows, sql, indexed=name == CONFLICT))
    fastest = {name: min(rounds) for name, rounds in spent.items()}
    for name, found in fastest.items():
        print(f"{name:12} {found.wall:7.2f} s, {found.cpu:7.2f} CPU s")
    peer = min(fastest[MERGE], fastest[CONFLICT])
    ratio = fastest[KBQ].wall / peer.wall
    print(f"{changes:,} changes into {rows:,} rows: {ratio:.2f} times as long (bar: {BAR:g})")
    result = {
        "machine": machine(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "rows": rows,
        "changes": changes,
        "rounds": {name: [each._asdict() for each in rounds] for name, rounds in spent.items()},
        "ratio": {"wall": round(ratio, 2), "cpu": round(fastest[KBQ].cpu / peer.cpu, 2), "bar": BAR},
    }
    (RESULTS / "upserts.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(ratio > BAR)


def _statements() -> dict[str, str]:
    upsert = Upsert(DUCKDB, StatementRule("upsert", ("id",)), "t", "d", _COLUMNS, one_partition=True)
    values = ", ".join(f"b.{name}" for name in _NAMES)
    assignments = ", ".join(f"{name} = {{0}}.{name}" for name in _NAMES if name != "id")
    return {
        KBQ: upsert_sql(upsert).replace(SCRATCH, "b"),
        MERGE: f"MERGE INTO t USING b ON t.id = b.id WHEN MATCHED THEN UPDATE SET {assignments.format('b')}"
        f" WHEN NOT MATCHED THEN INSERT ({', '.join(_NAMES)}) VALUES ({values})",
        CONFLICT: f"INSERT INTO t SELECT {values} FROM b ON CONFLICT (id) DO UPDATE SET"
        f" {assignments.format('excluded')}",
    }


def _spent(connection: duckdb.DuckDBPyConnection, rows: int, sql: str, *, indexed: bool) -> Spent:
    """The time of one round on a fresh table."""
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute(f"CREATE TABLE t AS SELECT {_ROW.format(id='range', first=0)} FROM range({rows})")
    if indexed:
        connection.execute("CREATE UNIQUE INDEX i ON t (id)")
    wall, cpu = time.perf_counter(), time.process_time()
    connection.execute(f"BEGIN; {sql}; COMMIT")
    return Spent(round(time.perf_counter() - wall, 2), round(time.process_time() - cpu, 2))


if __name__ == "__main__":
    main()
