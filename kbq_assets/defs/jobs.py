"""The jobs that automation and `kbq demo` run: op jobs, because a job of assets would ask for partitions.

They write the assets' materialisations themselves (see `runs`). Every job runs in its worker's own process: a
killed worker then takes its work with it, instead of leaving an orphan beside the next run.
"""

# Dagster reads the annotation of `context`: no postponed annotations here.

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from kbq_assets.defs.assets import EXTRACT_POOL, LOAD_POOL
from kbq_assets.defs.engine import ENGINE
from kbq_assets.defs.runs import StepEvent, Steps

#: Run tags that `dagster.yaml` limits to one run each.
EXTRACT_TAG = "kbq/extract"
LOAD_TAG = "kbq/load"
#: A run whose worker and code server died together is noticed by this alone.
_MAX_RUNTIME_TAG = "dagster/max_runtime"

OpEvents = Iterator[StepEvent | dg.Output[None]]


@dataclass(frozen=True)
class Jobs:
    """All jobs."""

    extract_and_load: dg.JobDefinition
    extract: dg.JobDefinition
    load: dg.JobDefinition
    clean: dg.JobDefinition
    reconcile: dg.JobDefinition


def build_jobs(steps: Steps) -> Jobs:
    """The jobs of a platform."""
    run = steps.platform.settings.run
    extract, load, clean = _extract_op(steps), _load_op(steps), _clean_op(steps)
    reconcile = _reconcile_op(steps)
    # Beyond its own bound a run finishes what is in flight.
    extract_seconds, load_seconds = int(run.run_seconds) + 1800, 2 * int(run.load_wait_seconds) + 1800

    @dg.job(
        description="Bring every topic up to date and load what is committed.",
        executor_def=dg.in_process_executor,
        tags={EXTRACT_TAG: "1", LOAD_TAG: "1", _MAX_RUNTIME_TAG: str(extract_seconds + load_seconds)},
    )
    def extract_and_load() -> None:
        load(extract())

    @dg.job(
        description="Bring every topic up to date.",
        executor_def=dg.in_process_executor,
        tags={EXTRACT_TAG: "1", _MAX_RUNTIME_TAG: str(extract_seconds)},
    )
    def extract_job() -> None:
        extract()

    @dg.job(
        description="Load every committed file that is not loaded.",
        executor_def=dg.in_process_executor,
        tags={LOAD_TAG: "1", _MAX_RUNTIME_TAG: str(load_seconds)},
    )
    def load_job() -> None:
        load()

    @dg.job(
        description="Delete orphans and superseded done files.",
        executor_def=dg.in_process_executor,
        tags={_MAX_RUNTIME_TAG: "1800"},
    )
    def clean_job() -> None:
        clean()

    @dg.job(
        description="Count the warehouse and compare with what was loaded and committed.",
        executor_def=dg.in_process_executor,
        tags={_MAX_RUNTIME_TAG: "7200"},
    )
    def reconcile_job() -> None:
        reconcile()

    return Jobs(extract_and_load, extract_job, load_job, clean_job, reconcile_job)


def build_schedules(steps: Steps, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """The clean-up; and the daily count, which costs bytes on BigQuery: off until someone turns it on."""
    return [
        dg.ScheduleDefinition(
            name="clean_schedule",
            job=jobs.clean,
            cron_schedule=f"*/{steps.platform.settings.run.clean_minutes} * * * *",
            default_status=dg.DefaultScheduleStatus.RUNNING,
        ),
        dg.ScheduleDefinition(name="reconcile_schedule", job=jobs.reconcile, cron_schedule="0 4 * * *"),
    ]


def _extract_op(steps: Steps) -> dg.OpDefinition:
    def extract(context: dg.OpExecutionContext) -> OpEvents:
        yield from steps.extract(context, getattr(context.resources, ENGINE))
        yield dg.Output(None)

    return dg.op(name="extract", required_resource_keys={ENGINE}, pool=EXTRACT_POOL, out=dg.Out(dg.Nothing))(
        extract
    )


def _load_op(steps: Steps) -> dg.OpDefinition:
    def load(context: dg.OpExecutionContext) -> OpEvents:
        yield from steps.load(context)
        yield dg.Output(None)

    ins = {"extracted": dg.In(dg.Nothing)}
    return dg.op(name="load", ins=ins, pool=LOAD_POOL, out=dg.Out(dg.Nothing))(load)


def _reconcile_op(steps: Steps) -> dg.OpDefinition:
    def reconcile(context: dg.OpExecutionContext) -> OpEvents:
        yield from steps.reconcile(context)
        yield dg.Output(None)

    return dg.op(name="reconcile", out=dg.Out(dg.Nothing))(reconcile)


def _clean_op(steps: Steps) -> dg.OpDefinition:
    def clean(context: dg.OpExecutionContext) -> None:
        steps.clean(context)

    return dg.op(name="clean", out=dg.Out(dg.Nothing))(clean)
