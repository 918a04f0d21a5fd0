"""Dagster keeps everything for ever: a daily job deletes old runs, and what sensors reported without a run, but nothing
that an asset's page still stands on."""

# Dagster reads the annotation of `context`: no postponed annotations here.

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
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

_FINISHED: Final = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
#: The job goes on the next day after so many: a run takes some 50 ms.
RUNS_AT_ONCE: Final = 20_000
#: Likewise for rows of what was reported without a run: a quarter of a millisecond each.
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


def build_history(days: int) -> tuple[dg.JobDefinition, dg.ScheduleDefinition]:
    """The job that deletes runs older than ``days``, and its schedule; with 0 days the schedule is off."""

    def delete_runs(context: dg.OpExecutionContext) -> None:
        if days == 0:
            context.log.info("KBQ_DAGSTER_RUN_DAYS is 0: every run is kept")
            return
        before = datetime.now(UTC) - timedelta(days=days)
        deleted, kept = delete_old_runs(context.instance, before)
        context.log.info(
            f"{deleted} runs older than {days} days deleted; {kept} kept, as what they made was not made again"
        )
        reported = delete_old_reports(context.instance, before)
        context.log.info(f"{reported} rows of what sensors reported deleted")

    op = dg.op(name="delete_old_runs", out=dg.Out(dg.Nothing))(delete_runs)
    job = dg.GraphDefinition(
        name="history_job",
        node_defs=[op],
        description="Delete Dagster's old runs with their events and logs, and what sensors reported. Nothing of KBQ's"
        " own stands in them.",
    ).to_job(executor_def=dg.in_process_executor, tags={"dagster/max_runtime": "7200"})
    status = dg.DefaultScheduleStatus.RUNNING if days else dg.DefaultScheduleStatus.STOPPED
    return job, dg.ScheduleDefinition(
        name="history_schedule", job=job, cron_schedule="30 3 * * *", default_status=status
    )


def delete_old_runs(instance: dg.DagsterInstance, before: datetime) -> tuple[int, int]:
    """Delete runs that ended and were created before a time; return how many were deleted and how many kept.

    A run that made the latest materialisation of an asset's partition is kept: without it the partition would look
    as if it had never been made.
    """
    filters = dg.RunsFilter(statuses=list(_FINISHED), created_before=before)
    old = instance.get_run_ids(filters)
    needed = set(_runs_of_latest(instance)) if old else set()
    unneeded = [run_id for run_id in old if run_id not in needed]
    # The ids come newest first.
    for run_id in unneeded[::-1][:RUNS_AT_ONCE]:
        _delete(instance, run_id)
    return min(len(unneeded), RUNS_AT_ONCE), len(old) - len(unneeded)


def _runs_of_latest(instance: dg.DagsterInstance) -> Iterator[str]:
    """Runs that made the latest materialisation of an asset, or of a partition."""
    for key in instance.get_asset_keys():
        newest = instance.get_latest_materialization_event(key)
        if newest is not None:
            yield newest.run_id
        latest = instance.event_log_storage.get_latest_storage_id_by_partition(
            key, dg.DagsterEventType.ASSET_MATERIALIZATION
        )
        ids = sorted(latest.values())
        for first in range(0, len(ids), _IDS_AT_ONCE):
            found = dg.AssetRecordsFilter(key, storage_ids=ids[first : first + _IDS_AT_ONCE])
            yield from (r.run_id for r in instance.fetch_materializations(found, limit=_IDS_AT_ONCE).records)


def _delete(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete a run, its events, what its steps printed, and the file that SQLite kept for it."""
    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink()


def delete_old_reports(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete what was reported without a run before a time, and old evaluations of checks; return how many rows.

    The latest of each partition, and of each check, stays. Dagster deletes events by their run alone, so its tables are
    named here. SQLite has two copies of an event, in the index and in a file of the run's name, which is none.
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
    """Ids of events without a run, but the latest of each kind, asset and partition."""
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
    """Ids of evaluations, which Dagster keeps when it deletes their run, but the latest of each check and status."""
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
    """Delete rows with old ids from the tables of these columns, in transactions that nobody waits for long."""
    with connect() as connection:
        ids = [row[0] for row in connection.execute(old.limit(ROWS_AT_ONCE))]
    for first in range(0, len(ids), _IDS_AT_ONCE):
        with connect() as connection:
            for column in reversed(columns):
                chunk = column.in_(ids[first : first + _IDS_AT_ONCE])
                connection.execute(sqlalchemy.delete(column.table).where(chunk))
    return len(ids)
