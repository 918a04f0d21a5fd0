"""Replays in the DuckDB file: counts, compares and replaces ranges in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import load_jobs, schema
from kbq_assets.adapters.duckdb.comparison import differing_columns
from kbq_assets.adapters.duckdb.database import DuckDbDatabase, transaction
from kbq_assets.adapters.duckdb.statements import PERMANENT
from kbq_assets.adapters.duckdb.types import quoted
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, check_own
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.keys import has_paths
from kbq_assets.ports.replay import (
    DayRows,
    Keys,
    PartitionDay,
    ReplaceJob,
    Replacement,
    RowDifference,
    RowRange,
)
from kbq_assets.ports.warehouse import EVERYTHING, JobStatus

_DATE: Final = "event_date"
_OFFSET: Final = "_kafka_partition, _kafka_offset"


class DuckDbReplayTables:
    """`ReplayTables` over one DuckDB file, opened per call as `DuckDbWarehouse` does."""

    one_transaction: bool = True

    def __init__(self, path: Path) -> None:
        self._database = DuckDbDatabase(path)

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        with load_jobs.writing(self._database) as connection:
            found = {
                table: _days(connection, table, rows, (keys or {}).get(table, ()))
                for table in tables
                if schema.exists(connection, table)
            }
        return found

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        with load_jobs.writing(self._database) as connection:
            return _differences(connection, live, replay, rows, limit)

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        """Nothing is billed."""
        return 0

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        """The number of the range's offsets on both sides."""
        where, values = _within(rows)
        with load_jobs.writing(self._database) as connection:
            sides = [
                [schema.name_of(connection, table) for table in side if schema.exists(connection, table)]
                for side in (one, other)
            ]
            if not all(sides):
                return 0
            queries = [
                " UNION ".join(f"SELECT {_OFFSET} FROM {name} WHERE {where}" for name in side)
                for side in sides
            ]
            query = f"SELECT count(*) FROM (({queries[0]}) INTERSECT ({queries[1]}))"
            [count] = connection.execute(query, values * sum(map(len, sides))).fetchone() or (0,)
            return int(count)

    def replace(self, job: ReplaceJob) -> None:
        """Replace ranges in the same transaction that records the job."""
        with load_jobs.writing(self._database) as connection, transaction(connection, job.job_id):
            load_jobs.record(connection, JobStatus(job.job_id, "DONE", job.sources))
            inserted = sum(_replace(connection, each, job.rows) for each in job.replacements)
            load_jobs.set_output_rows(connection, job.job_id, inserted)

    def drop(self, tables: Collection[TableReference]) -> None:
        for table in tables:
            check_own(table)
        with (
            load_jobs.writing(self._database) as connection,
            transaction(connection, "dropping tables of a replay"),
        ):
            for table in tables:
                if schema.exists(connection, table):
                    connection.execute(f"DROP TABLE {schema.name_of(connection, table)}")


def _within(rows: RowRange) -> tuple[str, list[Any]]:
    """The condition for rows in the range, and its parameters."""
    parts = " OR ".join(
        "_kafka_partition = ? AND _kafka_offset >= ? AND _kafka_offset < ?" for _ in rows.ranges
    )
    values = [v for r in rows.ranges for v in (r.topic_partition.partition, r.from_offset, r.until_offset)]
    return f"_kafka_topic = ? AND _kbq_epoch = ? AND ({parts or 'false'})", [rows.topic, rows.epoch, *values]


def _days(
    connection: duckdb.DuckDBPyConnection, table: TableReference, rows: RowRange, key: Sequence[str]
) -> dict[PartitionDay, DayRows]:
    where, values = _within(rows)
    day = _DATE if _DATE in _names(connection, table) else "NULL::DATE"
    found = connection.execute(
        f"SELECT _kafka_partition, {day}, count(*), count(DISTINCT _kafka_offset),"
        f" {_distinct_keys(schema.columns(connection, table) or (), key)}"
        f" FROM {schema.name_of(connection, table)} AS t WHERE {where} GROUP BY 1, 2 ORDER BY 1, 2",
        values,
    ).fetchall()
    return {PartitionDay(*row[:2]): DayRows(*row[2:]) for row in found}


def _distinct_keys(columns: Collection[Column], key: Sequence[str]) -> str:
    if not has_paths(columns, key):
        return "NULL"
    parts = [DUCKDB.path("t", path) for path in key]
    known = " AND ".join(f"{part} IS NOT NULL" for part in parts)
    return f"count(DISTINCT ({', '.join(parts)})) FILTER (WHERE {known})"


def _differences(
    connection: duckdb.DuckDBPyConnection,
    live: TableReference,
    replay: TableReference,
    rows: RowRange,
    limit: int,
) -> tuple[RowDifference, ...]:
    where, values = _within(rows)
    sides = [
        f"(SELECT * FROM {schema.name_of(connection, table)} WHERE {where})"
        if schema.exists(connection, table)
        else None
        for table in (live, replay)
    ]
    if None in sides:
        side, only = (sides[0], "live") if sides[0] else (sides[1], "replay")
        if side is None:
            return ()
        query, parameters = f"SELECT _kafka_partition, _kafka_offset, [], '{only}' FROM {side}", values
    else:
        here, there = (schema.columns(connection, table) or () for table in (live, replay))
        common = [column for column in here if column.name in {other.name for other in there}]
        query = (
            "SELECT coalesce(t._kafka_partition, f._kafka_partition) AS p,"
            f" coalesce(t._kafka_offset, f._kafka_offset) AS o, {differing_columns(common, EVERYTHING)} AS columns,"
            " CASE WHEN f._kafka_offset IS NULL THEN 'live' WHEN t._kafka_offset IS NULL THEN 'replay' ELSE '' END"
            f" AS alone FROM {sides[0]} AS t FULL JOIN {sides[1]} AS f ON f._kafka_partition = t._kafka_partition"
            " AND f._kafka_offset = t._kafka_offset"
        )
        query, parameters = f"SELECT * FROM ({query}) WHERE alone <> '' OR len(columns) > 0", values * 2
    found = connection.execute(f"{query} ORDER BY 1, 2 LIMIT ?", [*parameters, limit]).fetchall()
    return tuple(RowDifference(row[0], row[1], () if row[3] else tuple(row[2]), row[3]) for row in found)


def _replace(connection: duckdb.DuckDBPyConnection, each: Replacement, rows: RowRange) -> int:
    """Replace one table's range, and return the number of new rows."""
    if each.sql:
        return _execute(connection, each)
    where, values = _within(rows)
    name = schema.name_of(connection, each.table)
    if each.former is not None:
        former = schema.name_of(connection, each.former)
        connection.execute(f"CREATE OR REPLACE TABLE {former} AS SELECT * FROM {name} WHERE {where}", values)
    connection.execute(f"DELETE FROM {name} WHERE {where}", values)
    if each.source is None:
        return 0
    own = f", {each.number} AS {REPLAY_COLUMN}" if each.number else ""
    columns = ", ".join(
        quoted(column)
        for column in _names(connection, each.source)
        if not (each.number and column == REPLAY_COLUMN)
    )
    source = schema.name_of(connection, each.source)
    inserted = connection.execute(
        f"INSERT INTO {name} BY NAME SELECT {columns}{own} FROM {source} WHERE {where}", values
    ).fetchone()
    return int(inserted[0]) if inserted else 0


def _execute(connection: duckdb.DuckDBPyConnection, each: Replacement) -> int:
    try:
        connection.execute(each.sql)
    except PERMANENT as error:
        raise JobFailed(f"{each.table}: its statement fails: {error}") from error
    return 0


def _names(connection: duckdb.DuckDBPyConnection, table: TableReference) -> list[str]:
    return connection.sql(f"SELECT * FROM {schema.name_of(connection, table)} LIMIT 0").columns
