"""Replays of error rows in one DuckDB file (`ports.errors_replay.ErrorReplays`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb import schema
from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.duckdb.statements import PERMANENT
from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.side_tables import ledger_table
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.ports.errors_replay import REPLAYED_AT, ErrorReplay, Replayed
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri

_SCRATCH: Final = "temp.kbq_replay"
_PLACE: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kbq_epoch")


class DuckDbErrorReplays:
    """Runs replays on a warehouse's connections, as `DuckDbStatements` does."""

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
        transaction: Callable[[duckdb.DuckDBPyConnection, str], AbstractContextManager[None]],
        open_uri: OpenUri,
    ) -> None:
        self._writing = writing
        self._transaction = transaction
        self._open_uri = open_uri

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add or apply the rows whose error rows are not marked yet, and mark those error rows."""
        with self._writing() as connection:
            self._load(connection, replay)
            errors = schema.name_of(connection, replay.errors)
            same = " AND ".join(f"f.{name} = e.{name}" for name in _PLACE)
            now = datetime.fromtimestamp(replay.now_ms / 1000, UTC)
            with self._transaction(connection, f"the replay into {replay.table}"):
                connection.execute(
                    f"DELETE FROM {_SCRATCH} AS f WHERE NOT EXISTS"
                    f" (SELECT 1 FROM {errors} AS e WHERE {same} AND e.{REPLAYED_AT} IS NULL)"
                )
                connection.execute(f"UPDATE {_SCRATCH} SET {REPLAYED_AT} = ?", [now])
                replayed = _change(connection, replay)
                connection.execute(
                    f"UPDATE {errors} AS e SET {REPLAYED_AT} = ? WHERE {REPLAYED_AT} IS NULL"
                    f" AND EXISTS (SELECT 1 FROM {_SCRATCH} AS f WHERE {same})",
                    [now],
                )
        return replayed

    def _load(self, connection: duckdb.DuckDBPyConnection, replay: ErrorReplay) -> None:
        """Load the files into a temporary table like the real one."""
        columns = schema.columns(connection, replay.table)
        if columns is None or schema.columns(connection, replay.errors) is None:
            raise JobFailed(f"{replay.table} or {replay.errors} does not exist", next_step="run it again")
        connection.execute(f"CREATE OR REPLACE TEMP TABLE kbq_replay ({', '.join(map(definition, columns))})")
        try:
            StagedFileLoader(connection, _SCRATCH, columns, self._open_uri).load(
                replay.source_uris, replay.files
            )
        except LoadError as error:
            raise JobFailed(f"the files do not load into {replay.table}: {error.message}") from error


def _change(connection: duckdb.DuckDBPyConnection, replay: ErrorReplay) -> Replayed:
    """Add or apply the rows of the scratch table."""
    own = replay.statement
    if own is None:
        name = schema.name_of(connection, replay.table)
        [(added,)] = connection.execute(f"INSERT INTO {name} BY NAME FROM {_SCRATCH}").fetchall()
        return Replayed(added)
    [(waiting,)] = connection.execute(f"SELECT count(*) FROM {_SCRATCH}").fetchall()
    if not waiting:
        return Replayed(0)
    ledger = schema.name_of(connection, ledger_table(replay.table))
    try:
        at = connection.execute(f"SELECT batch FROM {ledger}").fetchall()
        if at != [(own.batch,)]:
            raise JobFailed(
                f"the ledger of {replay.table} is not at batch {own.batch}: it was loaded meanwhile",
                next_step="run it again",
            )
        connection.execute(own.sql.replace(SCRATCH, _SCRATCH))
        [(effective,)] = connection.execute(own.effective.replace(SCRATCH, _SCRATCH)).fetchall()
    except PERMANENT as error:
        raise JobFailed(f"its statement fails: {error}", next_step=f"kbq plan load {replay.table}") from error
    return Replayed(effective, waiting - effective)


def counting(connection: duckdb.DuckDBPyConnection, table: TableReference) -> str:
    """A condition that excludes replayed error rows."""
    is_left_out = is_error_table(table) and _has_replays(connection, table)
    return f"{REPLAYED_AT} IS NULL" if is_left_out else "true"


def loaded(connection: duckdb.DuckDBPyConnection, table: TableReference) -> str:
    """A condition that excludes rows added by replays."""
    is_left_out = not is_error_table(table) and _has_replays(connection, table)
    return f"{REPLAYED_AT} IS NULL" if is_left_out else "true"


def _has_replays(connection: duckdb.DuckDBPyConnection, table: TableReference) -> bool:
    found = connection.execute(
        "SELECT 1 FROM duckdb_columns() WHERE database_name = current_database() AND schema_name = ?"
        " AND table_name = ? AND column_name = ?",
        [table.dataset, table.table, REPLAYED_AT],
    ).fetchall()
    return bool(found)
