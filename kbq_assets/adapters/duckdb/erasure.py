"""Erasures in the DuckDB file: finds, counts and deletes rows in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

import duckdb

from kbq_assets.adapters.duckdb import load_jobs, schema
from kbq_assets.adapters.duckdb.errors_replay import loaded
from kbq_assets.adapters.duckdb.types import quoted
from kbq_assets.core.erasure.offset_sets import POSITIONS, RowPlaces, offsets_of, positions_in
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureJob
from kbq_assets.ports.warehouse import JobStatus

_IS_ERASED = (
    "{} = ? AND ({}, {}, {}) IN (SELECT unnest(?::BIGINT[]), unnest(?::BIGINT[]), unnest(?::BIGINT[]))"
)


class DuckDbErasureTables:
    """Runs erasures on a warehouse's connections, as `DuckDbStatements` does."""

    tables_per_job: int | None = None

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
        transaction: Callable[[duckdb.DuckDBPyConnection, str], AbstractContextManager[None]],
    ) -> None:
        self._writing = writing
        self._transaction = transaction

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        with self._writing() as connection:
            return {
                table: _found(connection, table, topic, column, value, limit)
                for table in tables
                if _has(connection, table, column)
            }

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        with self._writing() as connection:
            places = {table: _positions(connection, table) for table in tables}
            return {t: _counted(connection, t, rows, at) for t, at in places.items() if at}

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        """Free blocks, and copies of the file."""
        yield "free blocks of the DuckDB file, until DuckDB overwrites them; and your own copies of the file"

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        """Delete the rows in the same transaction that records the job."""
        with self._writing() as connection, self._transaction(connection, job.job_id):
            load_jobs.record(connection, JobStatus(job.job_id, "DONE", job.sources))
            for table in job.tables:
                if at := _positions(connection, table):
                    name = schema.name_of(connection, table)
                    connection.execute(
                        f"DELETE FROM {name} WHERE {_IS_ERASED.format(*at)}", _values(job.rows)
                    )


def _values(rows: RowPlaces) -> list[object]:
    """The topic, and the partitions, epochs and offsets of the rows as columns."""
    single = list(rows.single())
    return [rows.topic, *([row[i] for row in single] for i in range(3))]


def _positions(
    connection: duckdb.DuckDBPyConnection, table: TableReference
) -> tuple[str, str, str, str] | None:
    return positions_in(column.name for column in schema.columns(connection, table) or ())


def _has(connection: duckdb.DuckDBPyConnection, table: TableReference, column: str) -> bool:
    """Whether a table has a column, given as a dotted path into records. Its rows must have a position."""
    fields = schema.columns(connection, table) or ()
    if positions_in(field.name for field in fields) != POSITIONS[0]:
        return False
    for name in column.split("."):
        found = [field for field in fields if field.name.lower() == name.lower()]
        if not found:
            return False
        fields = found[0].fields
    return True


def _found(
    connection: duckdb.DuckDBPyConnection,
    table: TableReference,
    topic: str,
    column: str,
    value: str,
    limit: int,
) -> RowPlaces:
    path = ".".join(map(quoted, column.split(".")))
    rows = connection.execute(
        f"SELECT DISTINCT _kafka_partition, _kbq_epoch, _kafka_offset FROM {schema.name_of(connection, table)}"
        f" WHERE _kafka_topic = ? AND CAST({path} AS VARCHAR) = ? LIMIT ?",
        [topic, value, limit],
    ).fetchall()
    by_range: dict[tuple[int, int], list[int]] = defaultdict(list)
    for partition, epoch, offset in rows:
        by_range[partition, epoch].append(offset)
    return RowPlaces(topic, tuple((*at, offsets_of(own)) for at, own in sorted(by_range.items())))


def _counted(
    connection: duckdb.DuckDBPyConnection,
    table: TableReference,
    rows: RowPlaces,
    at: tuple[str, str, str, str],
) -> dict[tuple[int, int], ErasedRows]:
    found = connection.execute(
        f"SELECT {at[1]}, {at[2]}, count(*), count(*) FILTER ({loaded(connection, table)})"
        f" FROM {schema.name_of(connection, table)} WHERE {_IS_ERASED.format(*at)} GROUP BY 1, 2",
        _values(rows),
    ).fetchall()
    return {(p, e): ErasedRows(all_, own) for p, e, all_, own in found}
