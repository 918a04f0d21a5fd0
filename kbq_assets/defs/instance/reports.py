"""Deletes old events that sensors reported without a run (ADR 14). Dagster itself deletes events only with their run.

Import this module late, because Dagster's storage reads the environment at import.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Final

import dagster as dg
import sqlalchemy
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)

#: Most rows per day, at a quarter of a millisecond each. The next day continues.
ROWS_AT_ONCE: Final = 100_000
_IDS_AT_ONCE: Final = 500
_REPORTED: Final = tuple(
    kind.value
    for kind in (
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_OBSERVATION,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    )
)


def delete_old_reports(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete older events without a run and older check evaluations; return the number of rows.

    The latest of each partition and check stays. SQLite stores an event twice: in its index, and in the file of the
    run, whose id is empty here.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    before = before.astimezone(UTC).replace(tzinfo=None)
    deleted = _delete_old(storage.index_connection, _old_evaluations(before), AssetCheckExecutionsTable.c.id)
    deleted += _delete_old(
        storage.index_connection,
        _old_events(before),
        SqlEventLogStorageTable.c.id,
        AssetEventTagsTable.c.event_id,
    )
    if storage.is_run_sharded:
        _delete_old(
            lambda: storage.run_connection(RUNLESS_RUN_ID), _old_events(before), SqlEventLogStorageTable.c.id
        )
    return deleted


def _old_events(before: datetime) -> sqlalchemy.Select[tuple[int]]:
    """Ids of events without a run, except the latest of each kind, asset and partition."""
    kind = SqlEventLogStorageTable.c.dagster_event_type.in_(_REPORTED)
    latest = sqlalchemy.select(sqlalchemy.func.max(SqlEventLogStorageTable.c.id)).where(kind)
    latest = latest.group_by(
        SqlEventLogStorageTable.c.dagster_event_type,
        SqlEventLogStorageTable.c.asset_key,
        SqlEventLogStorageTable.c.partition,
    )
    old = sqlalchemy.select(SqlEventLogStorageTable.c.id).where(
        SqlEventLogStorageTable.c.run_id == RUNLESS_RUN_ID, kind
    )
    return old.where(
        SqlEventLogStorageTable.c.timestamp < before, SqlEventLogStorageTable.c.id.not_in(latest)
    ).order_by(SqlEventLogStorageTable.c.id)


def _old_evaluations(before: datetime) -> sqlalchemy.Select[tuple[int]]:
    """Ids of evaluations, except the latest of each check and status. Dagster does not delete them with their run."""
    c = AssetCheckExecutionsTable.c
    latest = sqlalchemy.select(sqlalchemy.func.max(c.id))
    latest = latest.group_by(c.asset_key, c.check_name, c.partition, c.execution_status)
    old = sqlalchemy.select(c.id).where(c.evaluation_event_timestamp < before, c.id.not_in(latest))
    return old.order_by(c.id)


def _delete_old(
    connect: Callable[[], AbstractContextManager[sqlalchemy.Connection]],
    old: sqlalchemy.Select[tuple[int]],
    *columns: sqlalchemy.Column[int],
) -> int:
    """Delete rows with old ids in the given columns, in short transactions."""
    with connect() as connection:
        ids = [row[0] for row in connection.execute(old.limit(ROWS_AT_ONCE))]
    for first in range(0, len(ids), _IDS_AT_ONCE):
        with connect() as connection:
            for column in reversed(columns):
                chunk = column.in_(ids[first : first + _IDS_AT_ONCE])
                connection.execute(sqlalchemy.delete(column.table).where(chunk))
    return len(ids)
