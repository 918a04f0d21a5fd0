"""The jobs that automation and `kbq demo` run: op jobs, because a job of assets would ask for partitions.

They write the assets' materialisations themselves (see `runs`). Every job runs in its worker's own process: a
killed worker then takes its work with it, instead of leaving an orphan beside the next run.
"""

# Dagster reads the annotation of `context`: no postponed annotations here.

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import dagster as dg

from kbq_assets.defs.assets import EXTRACT_POOL, LOAD_POOL
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.defs.extraction.reprocess import reprocess_op
from kbq_assets.defs.runs import StepEvent, Steps

#: Run tags that `dagster.yaml` limits to one run each.
EXTRACT_TAG = "kbq/extract"
LOAD_TAG = "kbq/load"
#: A run whose worker and code server died together is noticed by this alone.
_MAX_RUNTIME_TAG = "dagster/max_runtime"
_BOTH = (EXTRACT_TAG, LOAD_TAG)

OpEvents = Iterator[StepEvent | dg.Output[None]]


@dataclass(frozen=True)
class Jobs:
    """All jobs."""

    extract_and_load: dg.JobDefinition
    extract: dg.JobDefinition
    load: dg.JobDefinition
    clean: dg.JobDefinition
    reprocess: dg.JobDefinition


def build_jobs(steps: Steps) -> Jobs:
    """The jobs of a deployment."""
    run = steps.deployment.settings.run
    extract, load, clean = _extract_op(steps), _load_op(steps), _clean_op(steps)
    # Beyond its own bound a run finishes what is in flight.
    extract_seconds, load_seconds = int(run.run_seconds) + 1800, 2 * int(run.load_wait_seconds) + 1800

    @bounded_job(
        "Bring every topic up to date and load what is committed.", extract_seconds + load_seconds, *_BOTH
    )
    def extract_and_load() -> None:
        load(extract())

    @bounded_job("Bring every topic up to date.", extract_seconds, EXTRACT_TAG)
    def extract_job() -> None:
        extract()

    @bounded_job("Load every committed file that is not loaded.", load_seconds, LOAD_TAG)
    def load_job() -> None:
        load()

    @bounded_job("Delete orphans and superseded done files.", 1800)
    def clean_job() -> None:
        clean()

    return Jobs(extract_and_load, extract_job, load_job, clean_job, _reprocess_job(steps))


def _reprocess_job(steps: Steps) -> dg.JobDefinition:
    reprocess = reprocess_op(steps)
    shown = "Read a range of a topic again, in a new epoch. Shows what it would do, unless told to `apply`."

    @bounded_job(shown, 1800, EXTRACT_TAG)
    def reprocess_job() -> None:
        reprocess()

    return reprocess_job


def bounded_job(
    description: str, seconds: int, *tags: str
) -> Callable[[Callable[[], None]], dg.JobDefinition]:
    """A job in its worker's own process, of at most so many seconds, one at a time with others of its tags."""
    limits = {**dict.fromkeys(tags, "1"), _MAX_RUNTIME_TAG: str(seconds)}
    return dg.job(description=description, executor_def=dg.in_process_executor, tags=limits)


def build_schedules(steps: Steps, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """The clean-up."""
    return [
        dg.ScheduleDefinition(
            name="clean_schedule",
            job=jobs.clean,
            cron_schedule=f"*/{steps.deployment.settings.run.clean_minutes} * * * *",
            default_status=dg.DefaultScheduleStatus.RUNNING,
        ),
    ]


def _extract_op(steps: Steps) -> dg.OpDefinition:
    def extract(context: dg.OpExecutionContext) -> OpEvents:
        keys = chosen_keys(context, steps.translator.staged_partitions)
        yield from steps.extract(context, getattr(context.resources, ENGINE), keys)
        yield dg.Output(None)

    return dg.op(
        name="extract",
        required_resource_keys={ENGINE},
        pool=EXTRACT_POOL,
        out=dg.Out(dg.Nothing),
        config_schema=_chosen("nyc.*, or nyc.flights.v1/0/nyc.flights"),
    )(extract)


def _load_op(steps: Steps) -> dg.OpDefinition:
    def load(context: dg.OpExecutionContext) -> OpEvents:
        translator = steps.translator
        yield from steps.load(
            context, chosen_keys(context, translator.table_partitions, translator.error_partitions)
        )
        yield dg.Output(None)

    ins, chosen = {"extracted": dg.In(dg.Nothing)}, _chosen("nyc.flights, or nyc.*")
    return dg.op(name="load", ins=ins, pool=LOAD_POOL, out=dg.Out(dg.Nothing), config_schema=chosen)(load)


def _chosen(example: str) -> dict[str, dg.Field]:
    """The configuration by which a run is narrowed: keys may be as scattered as one likes, it stays one run."""
    description = f"Partition keys to bring up to date, patterns allowed: {example}. None are all there are."
    return {"keys": dg.Field([str], default_value=[], description=description)}


def chosen_keys(
    context: dg.OpExecutionContext, *definitions: dg.DynamicPartitionsDefinition
) -> list[str] | None:
    """The known keys that the run's configuration names, None for all. Raises dagster.Failure for what matches none."""
    patterns: list[str] = context.op_config["keys"]
    if not patterns:
        return None
    known = [key for d in definitions for key in context.instance.get_dynamic_partitions(d.name or "")]
    found = {pattern: fnmatch.filter(known, pattern) for pattern in patterns}
    if unknown := [pattern for pattern, keys in found.items() if not keys]:
        raise dg.Failure(f"no partition is called {', '.join(unknown)}", allow_retries=False)
    return sorted({key for keys in found.values() for key in keys})


def _clean_op(steps: Steps) -> dg.OpDefinition:
    def clean(context: dg.OpExecutionContext) -> None:
        steps.clean(context)

    return dg.op(name="clean", out=dg.Out(dg.Nothing))(clean)
