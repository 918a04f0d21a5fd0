"""Loads of the warehouses besides the first: a job and a sensor for each, so that one that is down delays no other.

Their tables have no pages: a run fails if a table was not loaded, and names the commands that show and fix it.
"""

# Dagster reads the annotation of `context`: no postponed annotations here.

import time
from collections.abc import Mapping
from dataclasses import replace

import dagster as dg

from kbq_assets.core.errors import TransientError
from kbq_assets.defs.assets import LOAD_POOL
from kbq_assets.defs.jobs import LOAD_TAG, bounded_job
from kbq_assets.defs.runs import find_run
from kbq_assets.defs.sensors import POLL_SECONDS, decide_load, seconds_to_next_load
from kbq_assets.pipelines.loading.loader import Loader


def other_warehouse_definitions(loaders: Mapping[str, Loader]) -> dg.Definitions:
    """A job and a sensor for each warehouse, by name."""
    jobs = {name: _job(name, loader) for name, loader in loaders.items()}
    sensors = [_sensor(name, loader, jobs[name]) for name, loader in loaders.items()]
    return dg.Definitions(jobs=list(jobs.values()), sensors=sensors)


def _tag(name: str) -> str:
    return f"{LOAD_TAG}_{name}"


def _job(name: str, loader: Loader) -> dg.JobDefinition:
    @dg.op(name=f"load_{name}", pool=f"{LOAD_POOL}_{name}", out=dg.Out(dg.Nothing))
    def load(context: dg.OpExecutionContext) -> None:
        report = loader.load()
        context.log.info(f"loaded {report.rows:,} rows into {name}")
        troubled = [t for t in report.tables if t.state in ("blocked", "parked", "failed")]
        if troubled:
            lines = "\n".join(f"{t.table}: {t.state}: {t.message}" for t in troubled)
            raise dg.Failure(
                f"{len(troubled)} tables of {name} were not loaded; next: kbq --warehouse {name} status\n{lines}",
                allow_retries=False,
            )

    seconds = 2 * int(loader.deployment.settings.run.load_wait_seconds) + 1800

    def body() -> None:
        load()

    body.__name__ = f"load_{name}_job"
    return bounded_job(f"Load every committed file that {name} lacks.", seconds, _tag(name))(body)


def _sensor(name: str, loader: Loader, job: dg.JobDefinition) -> dg.SensorDefinition:
    cadence = int(loader.deployment.settings.run.load_seconds)

    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if busy := find_run(context.instance, _tag(name), ()):
            return dg.SensorResult(skip_reason=f"a load is under way: {busy}", cursor=context.cursor)
        try:
            pending = loader.poll(context.cursor or "")
            if pending.complete and not pending.names:
                loader.advance_hours()  # idle tables have no loads that do so
        except TransientError as error:
            return dg.SensorResult(skip_reason=error.message, cursor=context.cursor)
        # Retries of the same files slow down by warehouse.
        own = replace(pending, names=type(pending.names)(f"{name}/{each}" for each in pending.names))
        wanted = decide_load(context.instance, own)
        wait = seconds_to_next_load(context.instance, cadence, time.time(), _tag(name))
        if wanted.request and wait > 0:
            return dg.SensorResult(skip_reason=f"a load is due in {wait:.0f} s", cursor=context.cursor)
        return dg.SensorResult(
            run_requests=[wanted.request] if wanted.request else [],
            skip_reason=wanted.reason or None,
            cursor=wanted.start,
        )

    return dg.SensorDefinition(
        name=f"load_sensor_{name}",
        description=f"Requests a load of {name} when a poll of states finds files or load jobs pending.",
        evaluation_fn=sensor,
        job=job,
        minimum_interval_seconds=min(POLL_SECONDS, cadence),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
