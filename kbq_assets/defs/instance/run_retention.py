"""A daily job that deletes Dagster's old runs and sensors' old reports. Dagster itself keeps them forever.

The latest run and report of each asset, partition and check stay, because the assets' pages show them.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg

from kbq_assets.core.plurals import counted

_FINISHED: Final = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
#: Most runs per day, at about 50 ms each. The next day continues.
RUNS_AT_ONCE: Final = 20_000
_IDS_AT_ONCE: Final = 500


def build_history(days: int) -> tuple[dg.JobDefinition, dg.ScheduleDefinition]:
    """The job that deletes runs older than ``days``, and its schedule. With 0 days, the schedule is off."""

    def delete_runs(context: dg.OpExecutionContext) -> None:
        if days == 0:
            context.log.info("KBQ_DAGSTER_RUN_DAYS is 0: all runs are kept")
            return
        before = datetime.now(UTC) - timedelta(days=days)
        deleted, kept = delete_old_runs(context.instance, before)
        context.log.info(
            f"deleted {counted(deleted, 'run')} older than {counted(days, 'day')};"
            f" kept {kept} that made the latest materializations"
        )
        # This imports Dagster's tables, and their module reads the environment.
        from kbq_assets.defs.instance.reports import delete_old_reports

        reported = delete_old_reports(context.instance, before)
        context.log.info(f"deleted {counted(reported, 'row')} of sensors' reports")

    op = dg.op(name="delete_old_runs", out=dg.Out(dg.Nothing))(delete_runs)
    job = dg.GraphDefinition(
        name="history_job",
        node_defs=[op],
        description="Delete Dagster's old runs with their events and logs, and sensors' old reports. They contain none"
        " of KBQ's state.",
    ).to_job(executor_def=dg.in_process_executor, tags={"dagster/max_runtime": "7200"})
    status = dg.DefaultScheduleStatus.RUNNING if days else dg.DefaultScheduleStatus.STOPPED
    return job, dg.ScheduleDefinition(
        name="history_schedule", job=job, cron_schedule="30 3 * * *", default_status=status
    )


def delete_old_runs(instance: dg.DagsterInstance, before: datetime) -> tuple[int, int]:
    """Delete runs that ended and were created before a time; return how many were deleted and how many kept.

    The run of a partition's latest materialization is kept: without it, the partition would look as if it had never
    been materialized.
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
    """Ids of the runs that made the latest materialization of each asset and partition."""
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
    """Delete a run with its events, its output, and its SQLite file."""
    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    for file in (Path(instance.root_directory) / "history" / "runs").glob(f"{run_id}.db*"):
        file.unlink()
