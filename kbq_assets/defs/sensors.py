"""Automation: sensors ask core what is pending, and say why they skip. Their cursors are hints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable

import dagster as dg

from kbq_assets.core.errors import TransientError
from kbq_assets.core.planning import ExtractionPlan, PartitionStop
from kbq_assets.defs import metadata
from kbq_assets.defs.jobs import EXTRACT_TAG, LOAD_TAG, Jobs
from kbq_assets.defs.runs import Steps
from kbq_assets.pipelines.platform import Platform

#: What a load was requested for, on its run. The same files are tried again, ever more slowly.
PENDING_TAG = "kbq/pending"
FIRST_RETRY_SECONDS = 30.0
LAST_RETRY_SECONDS = 600.0

_IN_PROGRESS = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def build_sensors(steps: Steps, jobs: Jobs) -> list[dg.SensorDefinition]:
    """The sensors of a platform, running by default."""
    return [_extraction_sensor(steps, jobs), _done_file_sensor(steps, jobs)]


def _extraction_sensor(steps: Steps, jobs: Jobs) -> dg.SensorDefinition:
    platform, key = steps.platform, steps.translator.staged_files

    def extraction_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if busy := find_run(context.instance, EXTRACT_TAG, key):
            return _skip(context, f"an extraction is under way: {busy}")
        try:
            plan = platform.plan_extraction()
        except TransientError as error:
            return _skip(context, error.message)
        seen = _digest(map(str, plan.stops))
        checks = [] if seen == context.cursor else [metadata.stops_check(key, plan.stops)]
        reason = None if has_work(plan) else idle_reason(plan.stops)
        return dg.SensorResult(
            run_requests=[dg.RunRequest()] if reason is None else [],
            skip_reason=reason,
            cursor=seen,
            asset_events=checks,
        )

    return dg.SensorDefinition(
        name="extraction_sensor",
        description="Requests an extraction when the broker holds records that are not committed.",
        evaluation_fn=extraction_sensor,
        job=jobs.extract,
        minimum_interval_seconds=int(platform.settings.run.extract_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def _done_file_sensor(steps: Steps, jobs: Jobs) -> dg.SensorDefinition:
    platform, key = steps.platform, steps.translator.warehouse_tables

    def done_file_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if busy := find_run(context.instance, LOAD_TAG, key):
            return _skip(context, f"a load is under way: {busy}")
        try:
            pending = pending_loads(platform)
        except TransientError as error:
            return _skip(context, error.message)
        if not pending:
            return _skip(context, "every committed file is loaded")
        digest = _digest(pending)
        tries, wait = tries_and_wait(context.instance, digest, time.time())
        if wait > 0:
            reason = f"{tries} loads left these {len(pending)} pending; the next in {wait:.0f} s"
            return _skip(context, reason)
        request = dg.RunRequest(run_key=f"{digest}-{tries}", tags={PENDING_TAG: digest})
        return dg.SensorResult(run_requests=[request], cursor=digest)

    return dg.SensorDefinition(
        name="done_file_sensor",
        description="Requests a load when committed files, or jobs of a dead run, are pending.",
        evaluation_fn=done_file_sensor,
        job=jobs.load,
        minimum_interval_seconds=int(platform.settings.run.load_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def has_work(plan: ExtractionPlan) -> bool:
    """Whether an extraction would do anything."""
    return bool(plan.units or plan.creations or plan.additions or plan.gaps)


def idle_reason(stops: Collection[PartitionStop]) -> str:
    """Why there is nothing to extract."""
    stopped = f"; {len(stops)} stopped partitions wait for an operator (see the check)" if stops else ""
    return f"everything is read up to the broker's end{stopped}"


def pending_loads(platform: Platform) -> list[str]:
    """Names of what a load run would work on: files to load, and flights that a dead run left."""
    files = [file.path for batch in platform.plan_load() for file in batch.files]
    flights = [f"flight of {t.table}" for t in platform.tables() if t.state == "flying"]
    return sorted(files + flights)


def find_run(instance: dg.DagsterInstance, tag: str, asset: dg.AssetKey) -> str:
    """A queued or running run that carries the tag or materialises the asset, in words; "" if none does."""
    for run in instance.get_runs(dg.RunsFilter(statuses=list(_IN_PROGRESS))):
        if tag in run.tags or asset in (run.asset_selection or ()):
            return f"run {run.run_id[:8]} is {run.status.value.lower()}"
    return ""


def tries_and_wait(instance: dg.DagsterInstance, digest: str, now: float) -> tuple[int, float]:
    """How many runs were requested for exactly these files, and the seconds until the next may be."""
    records = instance.get_run_records(dg.RunsFilter(tags={PENDING_TAG: digest}))
    if not records:
        return 0, 0.0
    pause = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** (len(records) - 1))
    last = max(record.create_timestamp.timestamp() for record in records)
    return len(records), max(0.0, last + pause - now)


def _skip(context: dg.SensorEvaluationContext, reason: str) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=context.cursor)


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
