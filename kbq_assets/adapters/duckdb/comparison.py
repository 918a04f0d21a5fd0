"""Compares the rows of files with those of a table, column by column, inside DuckDB."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

import duckdb
import pyarrow as pa

from kbq_assets.adapters.duckdb import schema
from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.duckdb.types import definition, literal, quoted
from kbq_assets.core.loading.tables import Column
from kbq_assets.ports.warehouse import Comparable, DifferingRow, KafkaRange, LoadJob, RowComparison
from kbq_assets.wire.arrow.staged import OpenUri

_SCRATCH: Final = "temp.kbq_scratch"
_PLACE: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_EPOCH: Final = "_kbq_epoch"


def compare(
    connection: duckdb.DuckDBPyConnection, job: LoadJob, open_uri: OpenUri, limit: int, which: Comparable
) -> RowComparison:
    """Load a job's files into a scratch table and compare its rows. Raises LoadError. The connection may be
    read-only."""
    columns = schema.columns(connection, job.table)
    if columns is None:
        return RowComparison(0)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE kbq_scratch ({', '.join(map(definition, columns))})")
    StagedFileLoader(connection, _SCRATCH, columns, open_uri).load(job.source_uris)
    return _compared(connection, (_SCRATCH, schema.name_of(connection, job.table)), columns, limit, which)


def compare_tables(
    files: pa.Table, table: pa.Table, columns: Sequence[Column], limit: int, which: Comparable
) -> RowComparison:
    """Compare rows of files with rows of another warehouse's table, in memory."""
    with duckdb.connect(":memory:") as connection:
        connection.register("kbq_files", files).register("kbq_table", table)
        return _compared(connection, ("kbq_files", "kbq_table"), columns, limit, which)


def _compared(
    connection: duckdb.DuckDBPyConnection,
    relations: tuple[str, str],
    columns: Sequence[Column],
    limit: int,
    which: Comparable,
) -> RowComparison:
    files, table = relations
    names = {column.name for column in columns}
    equal = [f"f.{quoted(n)} IS NOT DISTINCT FROM t.{quoted(n)}" for n in which.same if n in names]
    joined = (
        f"FROM {files} AS f JOIN {table} AS t"
        f" ON {' AND '.join(f'f.{name} = t.{name}' for name in _PLACE)}"
        f" AND t.{_EPOCH} BETWEEN {which.since} AND f.{_EPOCH}"
    )
    same = " AND ".join(equal) or "true"
    counts = connection.execute(f"SELECT count(*), count(*) FILTER (WHERE {same}) {joined}").fetchone()
    found, compared = counts or (0, 0)
    rows = connection.execute(
        f"SELECT * FROM (SELECT t._kafka_topic, t._kafka_partition, t.{_EPOCH}, t._kafka_offset,"
        f" {differing_columns(columns, which)} AS differing {joined} WHERE {same})"
        " WHERE len(differing) > 0 ORDER BY 1, 2, 3, 4 LIMIT ?",
        [limit],
    ).fetchall()
    return RowComparison(
        compared,
        tuple(DifferingRow(KafkaRange(*row[:3]), row[3], tuple(row[4])) for row in rows),
        found - compared,
    )


def differing_columns(columns: Sequence[Column], which: Comparable) -> str:
    """SQL for the names of the columns that differ between tables `f` and `t`. Null equals null, and NaN equals NaN."""
    nested = {c.name for c in columns if which.null_lists and (c.mode == "REPEATED" or c.fields)}
    cases = (
        f"CASE WHEN {_value('f', n, nested)} IS DISTINCT FROM {_value('t', n, nested)} THEN {literal(n)} END"
        for n in which.columns(column.name for column in columns)
    )
    return f"list_filter([{', '.join(cases)}]::VARCHAR[], lambda name: name IS NOT NULL)"


def _value(side: str, name: str, nested: Set[str]) -> str:
    value = f"{side}.{quoted(name)}"
    if name not in nested:
        return value
    return f"replace(coalesce(to_json({value})::VARCHAR, 'null'), '[]', 'null')"
