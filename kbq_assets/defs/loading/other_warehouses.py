"""Loads of the warehouses after the first. Each has its own assets, checks, job and sensor, so an outage of one delays
no other.

A table of the warehouse `lake` is the asset `warehouses/lake/nyc/flights`. Notices are only about the first warehouse.
So the job of another one fails if a table was not loaded, and names the commands that show and fix it.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

import time
from collections.abc import Iterator
from dataclasses import replace

import dagster as dg
from dagster_pyspark import PySparkResource

from kbq_assets.core.config.roles import Role
from kbq_assets.defs.assets import LOAD_POOL, shown_by, tables_asset
from kbq_assets.defs.jobs import LOAD_TAG, OpEvents, bounded_job
from kbq_assets.defs.loading.datasets import dataset_spec
from kbq_assets.defs.loading.step import LoadStep
from kbq_assets.defs.observation.check_events import OF_RUNS
from kbq_assets.defs.observation.checks import check_spec, checks_of
from kbq_assets.defs.observation.page_checks import table_check_specs
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import find_run, skipped, tick
from kbq_assets.defs.sensors import POLL_SECONDS, decide_load, seconds_to_next_load
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.spine import Spine


def other_warehouse_definitions(spine: Spine, pages: Pages) -> dg.Definitions:
    """Assets, checks, a job and a sensor for each warehouse after the first."""
    names = spine.deployment.settings.other_warehouses
    found = [
        _of_warehouse(name, spine.for_warehouse(name), pages_of_warehouse(pages, name)) for name in names
    ]
    return dg.Definitions.merge(*found) if found else dg.Definitions()


def pages_of_warehouse(pages: Pages, name: str) -> Pages:
    """The tables that get rows in a warehouse after the first, under that warehouse's keys."""
    own = {topic for topic, entry in pages.topics.items() if name in entry.settings.destination.warehouses}
    tables = {table: found for table, found in pages.tables.items() if own.intersection(pages.feeding(table))}
    return replace(pages, translator=replace(pages.translator, warehouse=name), tables=tables)


def _of_warehouse(name: str, spine: Spine, pages: Pages) -> dg.Definitions:
    step = LoadStep(spine.loader, spine.observer, pages, warehouse=name)
    job = _job(name, step)
    names = OF_RUNS[Role.LOAD]
    checks = [*(check_spec(each, pages.translator) for each in names), *table_check_specs(pages, names)]
    return dg.Definitions(
        assets=list(_assets(name, step)),
        asset_checks=[checks_of(f"checks_{name}", spine.observer, pages, checks)],
        jobs=[job],
        sensors=[_sensor(name, spine.loader, job)],
    )


def _assets(name: str, step: LoadStep) -> Iterator[dg.AssetsDefinition | dg.AssetSpec]:
    settings, pages = step.loader.deployment.settings, step.pages
    own = shown_by(pages.translator)
    yield own(pages.translator.tables_spec(settings))
    by = f"load_sensor_{name}"
    if specs := [own(dataset_spec(settings, pages, table, by)) for table in pages.tables]:
        yield tables_asset(step, specs, f"tables_{name}", _pool(name))


def _tag(name: str) -> str:
    return f"{LOAD_TAG}_{name}"


def _pool(name: str) -> str:
    return f"{LOAD_POOL}_{name}"


def _job(name: str, step: LoadStep) -> dg.JobDefinition:
    @dg.op(name=f"load_{name}", pool=_pool(name), out=dg.Out(dg.Nothing))
    def load(context: dg.OpExecutionContext, lake_spark: dg.ResourceParam[PySparkResource]) -> OpEvents:
        yield from step.run(context, lake_spark)
        yield dg.Output(None)

    settings = step.loader.deployment.settings
    seconds = 2 * int(settings.run.load_wait_seconds) + 1800

    def body() -> None:
        load()

    body.__name__ = f"load_{name}_job"
    text = f"Load every committed file that {name} lacks."
    return bounded_job(text, seconds, _tag(name), staging=settings.staging_url)(body)


def _sensor(name: str, loader: Loader, job: dg.JobDefinition) -> dg.SensorDefinition:
    settings = loader.deployment.settings
    cadence, staging = int(settings.run.load_seconds), settings.staging_url

    @tick
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if busy := find_run(context.instance, _tag(name), staging, ()):
            return skipped(context, f"a load is under way: {busy}")
        pending = loader.poll(context.cursor or "")
        if pending.complete and not pending.names:
            loader.advance_hours()  # idle tables have no loads that would do this
        # Each warehouse has its own back-off for retries of the same files.
        own = replace(pending, names=type(pending.names)(f"{name}/{each}" for each in pending.names))
        wanted = decide_load(context.instance, own)
        wait = seconds_to_next_load(context.instance, {_tag(name): staging}, cadence, time.time())
        if wanted.request and wait > 0:
            return skipped(context, f"a load is due in {wait:.0f} s")
        return dg.SensorResult(
            run_requests=[wanted.request] if wanted.request else [],
            skip_reason=wanted.reason or None,
            cursor=wanted.start,
        )

    return dg.SensorDefinition(
        name=f"load_sensor_{name}",
        description=f"Requests a load of {name} when a poll of states finds pending files or load jobs.",
        evaluation_fn=sensor,
        job=job,
        minimum_interval_seconds=min(POLL_SECONDS, cadence),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
