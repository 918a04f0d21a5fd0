"""Compaction in Dagster: an asset `compacted` per lake table, with a partition per hour or day, and an hourly job per
lake.

If you materialize partitions by hand or in a backfill, their small files are merged regardless of the table's policy.
The job does the same for all tables as `kbq compact` and `kbq expire`, and reports the assets' materializations. A
sensor, which is off by default, requests partitions as soon as their hours are complete.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.loading.partitions import HOUR
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.compaction.periods import Periods, periods_of
from kbq_assets.defs.compaction.sensor import compaction_sensor
from kbq_assets.defs.jobs import bounded_job
from kbq_assets.defs.loading.other_warehouses import pages_of_warehouse
from kbq_assets.defs.pages import Pages
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.compaction.expiry import ExpiryReport
from kbq_assets.pipelines.compaction.table import CompactionReport
from kbq_assets.pipelines.spine import Spine
from kbq_assets.worker.engines import open_rewriter

POOL: Final = "kbq_compact"
COMPACT_TAG: Final = "kbq/compact"
#: Most partitions in one run of a backfill. The event of each takes Dagster 25 ms.
MOST_PARTITIONS: Final = 1_000
#: Most partitions of a table that a run of the job reports: the newest ones.
_MOST_REPORTED: Final = 500
#: Time limit of a run. The next run does the rest.
_SECONDS: Final = 6 * 3600


def compaction_definitions(spine: Spine, pages: Pages) -> dg.Definitions:
    """Assets, jobs, schedules and sensors of the warehouses that are lakes."""
    settings = spine.deployment.settings
    named = {"": spine, **{name: spine.for_warehouse(name) for name in settings.other_warehouses}}
    found = [
        _of_lake(name, each, pages)
        for name, each in named.items()
        if isinstance(each.deployment.settings.warehouse, LakeAddress)
    ]
    return dg.Definitions.merge(*found) if found else dg.Definitions()


def _of_lake(name: str, spine: Spine, pages: Pages) -> dg.Definitions:
    compactor = spine.compactor
    keys = {table: compacted_key(key, name) for key, table in pages.loaded.items()}
    periods = {table: periods_of(_unit(pages, table)) for table in keys}
    job = _job(name, compactor, keys, periods)
    schedule = dg.ScheduleDefinition(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule="25 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    own = pages_of_warehouse(pages, name) if name else pages
    assets = [
        _asset(compactor, table, key, own if table in own.tables else pages, periods[table], _pool(name))
        for table, key in keys.items()
    ]
    suffix = f"_{name}" if name else ""
    sensor = compaction_sensor(f"compaction{suffix}_sensor", keys, periods, compactor, spine.observer)
    return dg.Definitions(assets=assets, jobs=[job], schedules=[schedule], sensors=[sensor] if keys else [])


def _pool(name: str) -> str:
    """The pool of a lake's compactions. ``name`` is "" for the first warehouse."""
    return f"{POOL}_{name}" if name else POOL


def _unit(pages: Pages, table: TableReference) -> str:
    """The time unit by which a lake partitions a new table, according to the table's topics."""
    settings = {topic: pages.topics[topic].settings_of(topic) for topic in pages.feeding(table)}
    return table_options(table, settings, settings).partition_unit or HOUR


def compacted_key(table: dg.AssetKey, warehouse: str) -> dg.AssetKey:
    """The key of a table's compacted files. ``warehouse`` is "" for the first one."""
    return dg.AssetKey([*table.path, "compacted", *([warehouse] if warehouse else [])])


def _asset(
    compactor: Compactor,
    table: TableReference,
    key: dg.AssetKey,
    pages: Pages,
    periods: Periods,
    pool: str,
) -> dg.AssetsDefinition:
    by = "hour by hour" if periods.hours == 1 else "day by day"

    @dg.asset(
        key=key,
        deps=[pages.translator.dataset_key(table)],
        partitions_def=periods.definition,
        backfill_policy=dg.BackfillPolicy.multi_run(MOST_PARTITIONS),
        pool=pool,
        kinds={"iceberg", "spark"},
        group_name="lake",
        owners=list(pages.translator.owners),
        description=f"The small files of `{table}`, merged {by}.",
    )
    def compacted(
        context: dg.AssetExecutionContext, lake_spark: dg.ResourceParam[PySparkResource]
    ) -> dg.MaterializeResult[None]:
        report = on_spark(compactor, lake_spark).compact(table, periods.chosen(context.partition_keys))
        _raise_failures([report])
        return dg.MaterializeResult(metadata=_metadata(report))

    return compacted


def _job(
    name: str,
    compactor: Compactor,
    keys: Mapping[TableReference, dg.AssetKey],
    periods: Mapping[TableReference, Periods],
) -> dg.JobDefinition:
    suffix = f"_{name}" if name else ""

    @dg.op(name=f"compact{suffix}", pool=_pool(name), out=dg.Out(dg.Nothing))
    def compact(context: dg.OpExecutionContext, lake_spark: dg.ResourceParam[PySparkResource]) -> None:
        own = on_spark(compactor, lake_spark)
        reports: list[CompactionReport | ExpiryReport] = []
        for table in own.chosen(()):
            expired, compacted = own.expire(table), own.compact(table)
            reports += [expired, compacted]
            files = f"{counted(compacted.files_before, 'file')} became {compacted.files_after:,}"
            context.log.info(f"{table}: {files}; {counted(expired.rows, 'row')} expired")
            for event in _events(keys, periods, compacted):
                context.log_event(event)
        _raise_failures(reports)

    def body() -> None:
        compact()

    body.__name__ = f"compact{suffix}_job"
    text = "Merge small files of the lake's tables, and drop rows, snapshots and files that are too old."
    return bounded_job(text, _SECONDS, f"{COMPACT_TAG}{suffix}")(body)


def on_spark(compactor: Compactor, pyspark: PySparkResource) -> Compactor:
    """The same compactor on a run's `pyspark` resource. Spark starts with the first large plan."""
    settings = compactor.deployment.settings
    return dataclasses.replace(
        compactor, open_rewriter=partial(open_rewriter, settings, lambda: pyspark.spark_context)
    )


def _events(
    keys: Mapping[TableReference, dg.AssetKey],
    periods: Mapping[TableReference, Periods],
    report: CompactionReport,
) -> Iterator[dg.AssetMaterialization]:
    """Materializations of a table's newest compacted partitions."""
    if key := keys.get(report.table):
        for partition in periods[report.table].partitions(report.hours)[-_MOST_REPORTED:]:
            yield dg.AssetMaterialization(key, partition=partition, metadata=_metadata(report))


def _metadata(report: CompactionReport) -> dict[str, int]:
    return {
        "files_before": report.files_before,
        "files_after": report.files_after,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "commits": report.commits,
    }


def _raise_failures(reports: list[CompactionReport] | list[CompactionReport | ExpiryReport]) -> None:
    """Fail the run if a table was stopped early or a partition failed. Systems that did not answer do not fail it."""
    lines = [f"{each.table}: {each.message}" for each in reports if each.message]
    lines += [
        f"{each.table}: {partition}: {why}"
        for each in reports
        if isinstance(each, CompactionReport)
        for partition, why in each.failures.items()
    ]
    if lines:
        raise dg.Failure("not everything was compacted; the next run tries again\n" + "\n".join(lines))
