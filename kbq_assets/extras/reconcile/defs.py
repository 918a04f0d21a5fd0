"""The warehouse's count in Dagster: an asset check, a job, and a daily schedule that is off by default."""

# No postponed annotations here: Dagster reads the annotation of `context`.

from collections.abc import Callable

import dagster as dg

from kbq_assets.core.observation.check_names import COUNTS_AGREE
from kbq_assets.defs.jobs import OpEvents, bounded_job
from kbq_assets.defs.metadata import SHOWN_LINES, Metadata
from kbq_assets.defs.observation import check_events
from kbq_assets.defs.observation.checks import as_result, check_spec
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.extras.reconcile.count_comparison import TableCount
from kbq_assets.extras.reconcile.counts import CountReport, CountSelection
from kbq_assets.extras.reconcile.reconciler import Reconciler


def reconcile_definitions(reconciler: Reconciler, translator: AssetTranslator) -> dg.Definitions:
    """The check ``warehouse_counts_agree``, the job ``reconcile`` and its schedule."""
    key = translator.warehouse_tables

    def counted() -> dg.AssetCheckEvaluation:
        return counts_check(key, reconciler.counts(CountSelection(since=reconciler.counted_since)))

    def warehouse_counts_agree() -> dg.AssetCheckResult:
        return as_result(counted())

    spec = check_spec(COUNTS_AGREE, translator)
    check = dg.asset_check(asset=spec.asset_key, name=spec.name, description=spec.description)
    job = _reconcile_job(counted)
    return dg.Definitions(
        asset_checks=[check(warehouse_counts_agree)],
        jobs=[job],
        # BigQuery bills a count, so the schedule is off by default.
        schedules=[dg.ScheduleDefinition(name="reconcile_schedule", job=job, cron_schedule="0 4 * * *")],
    )


def _reconcile_job(counted: Callable[[], dg.AssetCheckEvaluation]) -> dg.JobDefinition:
    def reconcile(context: dg.OpExecutionContext) -> OpEvents:
        check = counted()
        context.log.info(check.description or "")
        yield check  # a difference is a failed check, not a failed run
        yield dg.Output(None)

    op = dg.op(name="reconcile", out=dg.Out(dg.Nothing))(reconcile)

    @bounded_job("Count the warehouse's rows and compare them with the rows loaded and committed.", 7200)
    def reconcile_job() -> None:
        op()

    return reconcile_job


def counts_check(key: dg.AssetKey, report: CountReport) -> dg.AssetCheckEvaluation:
    """The check that the warehouse has the rows that were loaded and committed. Tables that differ come first."""
    counts = sorted(report.tables, key=lambda count: not count.findings)
    scope = "all rows" if report.since is None else f"rows since {report.since}"
    numbers: Metadata = {
        "problems": len(report.findings),
        "counted": scope,
        "rows": sum(count.rows for count in counts),
        "duplicates": sum(count.duplicates for count in counts),
    }
    if counts:  # Dagster rejects a table without rows
        numbers["counts"] = dg.MetadataValue.table([_count_record(count) for count in counts[:SHOWN_LINES]])
    if report.findings:
        numbers["next"] = dg.MetadataValue.md("\n".join(f"- {f}" for f in report.findings[:SHOWN_LINES]))
    fine = "\n".join((f"{scope} agree with what was loaded and committed", *report.all_notes[:SHOWN_LINES]))
    return check_events.evaluation_of(key, COUNTS_AGREE, report.findings, fine, numbers)


def _count_record(count: TableCount) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "table": str(count.table),
            "partition": str(count.range.topic_partition),
            "epoch": count.range.epoch,
            "rows": count.rows,
            "offsets": count.distinct,
            "loaded": count.loaded,
            "in_flight": count.in_flight,
        }
    )
