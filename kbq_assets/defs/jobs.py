"""The jobs that automation and `kbq demo` run. They are op jobs, because an asset job would require partitions.

They report the assets' materializations themselves (see `runs`). A job runs in its worker's own process: if the worker
is killed, its work ends too, instead of continuing as an orphan during the next run.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import dagster as dg
from dagster_pyspark import PySparkResource
from pydantic import Field

from kbq_assets.core.plurals import counted
from kbq_assets.defs.assets import EXTRACT_POOL, LOAD_POOL
from kbq_assets.defs.extraction.reprocess import reprocess_op
from kbq_assets.defs.extraction.step import ExtractionStep
from kbq_assets.defs.loading.step import LoadStep
from kbq_assets.defs.runs import StepEvent, find_run
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.engine import ExtractionEngine

#: Run tags. `dagster.yaml` allows one run per tag. Their value is the staging area, because several deployments may
#: share a Dagster instance, and none may take another's run for its own.
EXTRACT_TAG = "kbq/extract"
LOAD_TAG = "kbq/load"
#: The only limit for a run whose worker and code server died together.
_MAX_RUNTIME_TAG = "dagster/max_runtime"
_MAX_RETRIES_TAG = "dagster/max_retries"
_BOTH = (EXTRACT_TAG, LOAD_TAG)

OpEvents = Iterator[StepEvent | dg.Output[None]]


@dataclass(frozen=True)
class Jobs:
    """KBQ's jobs."""

    extract_and_load: dg.JobDefinition
    extract: dg.JobDefinition
    load: dg.JobDefinition
    clean: dg.JobDefinition
    reprocess: dg.JobDefinition


def build_jobs(extraction: ExtractionStep, loading: LoadStep, operator: Operator) -> Jobs:
    settings = operator.deployment.settings
    run = settings.run
    extract, load, clean = _extract_op(extraction), _load_op(loading), _clean_op(operator)
    # After its time limit, a run still finishes the work in flight.
    extract_seconds, load_seconds = int(run.run_seconds) + 1800, 2 * int(run.load_wait_seconds) + 1800

    @bounded_job(
        "Bring every topic up to date and load what is committed.",
        extract_seconds + load_seconds,
        *_BOTH,
        staging=settings.staging_url,
    )
    def extract_and_load() -> None:
        load(extract())

    @bounded_job(
        "Bring every topic up to date; with KBQ_RESIDENT_SECONDS, repeatedly.",
        extract_seconds + settings.dagster.resident_seconds,
        EXTRACT_TAG,
        staging=settings.staging_url,
    )
    def extract_job() -> None:
        extract()

    loads = "Load every committed file that is not loaded."

    @bounded_job(loads, load_seconds, LOAD_TAG, staging=settings.staging_url)
    def load_job() -> None:
        load()

    @bounded_job("Delete orphans and superseded done files.", 1800)
    def clean_job() -> None:
        clean()

    return Jobs(extract_and_load, extract_job, load_job, clean_job, _reprocess_job(operator))


def _reprocess_job(operator: Operator) -> dg.JobDefinition:
    reprocess = reprocess_op(operator)
    shown = "Read a range of a topic again, in a new epoch. Only shows the effect unless `apply` is set."

    # Dagster retries runs whose worker died, but a second reset would read the range once more.
    staging = operator.deployment.settings.staging_url

    @bounded_job(shown, 1800, EXTRACT_TAG, staging=staging, is_retried=False)
    def reprocess_job() -> None:
        reprocess()

    return reprocess_job


def bounded_job(
    description: str, seconds: int, *tags: str, staging: str = "1", is_retried: bool = True
) -> Callable[[Callable[[], None]], dg.JobDefinition]:
    """A decorator for a job that runs in its worker's own process for at most ``seconds``, one run at a time per tag.
    The tags have the value ``staging``. If ``is_retried``, Dagster retries a run whose worker died."""
    limits = {**dict.fromkeys(tags, staging), _MAX_RUNTIME_TAG: str(seconds)}
    if not is_retried:
        limits[_MAX_RETRIES_TAG] = "0"
    return dg.job(description=description, executor_def=dg.in_process_executor, tags=limits)


def clean_schedule(jobs: Jobs, minutes: int) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name="clean_schedule",
        job=jobs.clean,
        cron_schedule=f"*/{minutes} * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )


class StagedKeys(dg.Config):
    """Limits an extraction to some partitions. It is one run even if the keys are scattered."""

    keys: list[str] = Field(
        [],
        description="Partition keys to bring up to date, or patterns: nyc.*, or nyc.flights.v1/0/nyc.flights. "
        "An empty list means all.",
    )


class TableKeys(dg.Config):
    """Limits a load to some tables."""

    keys: list[str] = Field(
        [],
        description="Tables to bring up to date, or patterns: nyc.flights, or nyc.*. An empty list means all.",
    )


def _extract_op(step: ExtractionStep) -> dg.OpDefinition:
    @dg.op(pool=EXTRACT_POOL, out=dg.Out(dg.Nothing))
    def extract(
        context: dg.OpExecutionContext,
        config: StagedKeys,
        extraction_engine: dg.ResourceParam[ExtractionEngine],
    ) -> OpEvents:
        keys = chosen_keys(config.keys, lambda: _staged_keys(context, step))
        seconds = step.extractor.deployment.settings.dagster.resident_seconds
        if seconds and keys is None and LOAD_TAG not in context.run.tags:
            yield from step.keep_running(
                context, extraction_engine, seconds, lambda: _is_slot_wanted(context, step)
            )
        else:
            yield from step.run(context, extraction_engine, keys)
        yield dg.Output(None)

    return extract


def _is_slot_wanted(context: dg.OpExecutionContext, step: ExtractionStep) -> bool:
    queued = [dg.DagsterRunStatus.QUEUED]
    return bool(find_run(context.instance, EXTRACT_TAG, None, step.pages.staged, queued))


def _staged_keys(context: dg.OpExecutionContext, step: ExtractionStep) -> Iterator[str]:
    """The partition keys of all topics that were ever extracted."""
    for topic in sorted(state.topic_registry(step.extractor.deployment.store).topics):
        yield from context.instance.get_dynamic_partitions(
            step.translator.staged_partitions(topic).name or ""
        )


def _load_op(step: LoadStep) -> dg.OpDefinition:
    def tables() -> Iterator[str]:
        return map(str, state.table_registry(step.loader.deployment.load_store).tables)

    @dg.op(ins={"extracted": dg.In(dg.Nothing)}, pool=LOAD_POOL, out=dg.Out(dg.Nothing))
    def load(
        context: dg.OpExecutionContext, config: TableKeys, lake_spark: dg.ResourceParam[PySparkResource]
    ) -> OpEvents:
        yield from step.run(context, lake_spark, chosen_keys(config.keys, tables))
        yield dg.Output(None)

    return load


def chosen_keys(patterns: list[str], read_known: Callable[[], Iterable[str]]) -> list[str] | None:
    """The known keys that match the patterns; None for no patterns. Raises dagster.Failure if one matches nothing."""
    if not patterns:
        return None
    known = list(read_known())
    found = {pattern: fnmatch.filter(known, pattern) for pattern in patterns}
    if unknown := [pattern for pattern, keys in found.items() if not keys]:
        raise dg.Failure(f"nothing matches {', '.join(unknown)}", allow_retries=False)
    return sorted({key for keys in found.values() for key in keys})


def _clean_op(operator: Operator) -> dg.OpDefinition:
    def clean(context: dg.OpExecutionContext) -> None:
        report = operator.clean()
        context.log.info(
            f"deleted {counted(report.orphans, 'orphan')}, {counted(report.done_files, 'superseded done file')}, "
            f"{counted(report.temporary, 'temporary file')}"
        )
        for failure in report.failures:
            context.log.warning(f"not deleted: {failure}")

    return dg.op(name="clean", out=dg.Out(dg.Nothing))(clean)
