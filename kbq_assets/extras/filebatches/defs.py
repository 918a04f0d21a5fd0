"""Batches of files in Dagster: an asset per table prefix with a partition per batch, a check that no batch waits for an
operator, the job that applies batches, and the sensor that polls for success objects.

The job materializes the partitions of the batches that it applies. A backfill, or a run of the asset, applies settled
batches again. Its configuration must give a reason, so nobody does it with a single click.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

import functools
from collections.abc import Callable, Iterator

import dagster as dg
from pydantic import Field

from kbq_assets.adapters.google.clients import GoogleClients
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError, NotFound, Refused
from kbq_assets.core.filebatches.planning import BatchState
from kbq_assets.core.filebatches.table_batches import SettledBatch
from kbq_assets.core.observation.check_names import BATCHES_APPLY
from kbq_assets.core.plurals import counted
from kbq_assets.defs.extraction.backfills import BACKFILL_TAG, whole_choice
from kbq_assets.defs.jobs import OpEvents, bounded_job
from kbq_assets.defs.runs import StepContext, find_run, skipped, tick
from kbq_assets.defs.sensors import POLL_SECONDS
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.extras.filebatches.open import open_file_batches
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.filebatches.runner import FileBatches, FilesReport, PrefixReport

FILES_TAG = "kbq/files"
_SHOWN = 20
#: Dagster's tag of a retry, or of a run that a user re-executes. Its value is the first run's id.
_FIRST_RUN_TAG = "dagster/root_run_id"

_POOL = "kbq_files"

Open = Callable[[], FileBatches]
_Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def file_definitions(
    deployment: Deployment, clients: GoogleClients | None, translator: AssetTranslator
) -> dg.Definitions:
    """The definitions for batches of files; empty without KBQ_FILES."""
    if not deployment.settings.extras.files.location:
        return dg.Definitions()
    opened = functools.cache(lambda: open_file_batches(deployment, clients))
    return definitions_of(deployment.settings, translator, opened)


def definitions_of(settings: Settings, translator: AssetTranslator, batches: Open) -> dg.Definitions:
    """The definitions. ``batches`` opens them when a run or tick needs them, and to find the tables that have a
    state."""
    prefixes = _known(batches)
    keys = [asset_key(translator, prefix) for prefix in prefixes]
    seconds, staging = 2 * int(settings.run.load_wait_seconds) + 1800, settings.staging_url
    job = _job(translator, batches, seconds, staging)
    return dg.Definitions(
        assets=[_asset(translator, prefix, batches) for prefix in prefixes],
        asset_checks=[_check(translator, prefix, batches) for prefix in prefixes],
        jobs=[job, _again_job(translator, batches, seconds, staging)],
        sensors=[_sensor(job, keys, batches, settings)],
    )


def asset_key(translator: AssetTranslator, prefix: str) -> dg.AssetKey:
    """The asset of a table prefix: `files/shop/orders`."""
    return translator.key("files", *prefix.split("/"))


def partitions(translator: AssetTranslator, prefix: str) -> dg.DynamicPartitionsDefinition:
    """A key per batch: its path below the table prefix."""
    return dg.DynamicPartitionsDefinition(name="/".join((*translator.prefix, "files", prefix)))


def partition_key(prefix: str, batch: str) -> str:
    """`historical/2020/01/02/03` for `shop/orders/historical/2020/01/02/03`; `.` for the prefix itself."""
    return batch.removeprefix(prefix).strip("/").replace("...", "..%2E") or "."


def _known(batches: Open) -> list[str]:
    """The table prefixes that have a state. If the store does not answer, none until the code is reloaded."""
    try:
        return sorted(batches().states.prefixes())
    except KbqError:
        return []


def _spec(translator: AssetTranslator, prefix: str) -> dg.AssetSpec:
    return translator.get_asset_spec(
        dg.AssetSpec(
            asset_key(translator, prefix),
            description=f"Batches of files below `{prefix}`. `kbq files status` shows what waits. Materializing a "
            "partition applies its batch again.",
            skippable=True,
            group_name="files",
            owners=list(translator.owners),
            partitions_def=partitions(translator, prefix),
        )
    )


class BackfillReason(dg.Config):
    """The reason for applying batches again."""

    reason: str = Field(description="The reason, for the table's list of decisions.")


def _asset(translator: AssetTranslator, prefix: str, batches: Open) -> dg.AssetsDefinition:
    spec = _spec(translator, prefix)

    def apply_again(context: dg.AssetExecutionContext, config: BackfillReason) -> Iterator[_Event]:
        def work(keys: list[str]) -> Iterator[_Event]:
            own = batches()
            _decide(
                context,
                own,
                prefix,
                config.reason,
                lambda: own.settled_among(prefix, lambda path: partition_key(prefix, path) in keys),
            )
            yield from _applied(context, translator, own.run([prefix]))

        yield from whole_choice(context, [spec.key], work)

    return dg.multi_asset(
        name=f"{spec.key.to_python_identifier()}__again",
        specs=[spec],
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=_POOL,
    )(apply_again)


def _check(translator: AssetTranslator, prefix: str, batches: Open) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=asset_key(translator, prefix), name=BATCHES_APPLY)
    def no_batch_waits_for_a_person() -> dg.AssetCheckResult:
        """Fails if a batch failed, is blocked by its configuration, or was set aside by a rule."""
        [report] = batches().status([prefix]).tables or [PrefixReport(prefix)]
        found = _evaluation(translator, report)
        return dg.AssetCheckResult(
            passed=found.passed, description=found.description, metadata=dict(found.metadata)
        )

    return no_batch_waits_for_a_person


def _evaluation(translator: AssetTranslator, report: PrefixReport) -> dg.AssetCheckEvaluation:
    lines = [f"{each.state}: {each.path}: {each.why}" for each in report.stopped]
    lines += [report.error] if report.error else []
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(translator, report.prefix),
        check_name=BATCHES_APPLY,
        passed=not lines,
        description="\n".join(lines[:_SHOWN]) or "no batch waits for an operator",
        metadata={"batches": len(lines), "next": f"kbq files status {report.prefix}"},
    )


def _job(translator: AssetTranslator, batches: Open, seconds: int, staging: str) -> dg.JobDefinition:
    @dg.op(name="apply_file_batches", pool=_POOL, out=dg.Out(dg.Nothing))
    def apply_file_batches(context: dg.OpExecutionContext) -> OpEvents:
        yield from _applied(context, translator, batches().run())
        yield dg.Output(None)

    @bounded_job("Apply every batch of files that is ready.", seconds, FILES_TAG, staging=staging)
    def files_job() -> None:
        apply_file_batches()

    return files_job


class ApplyAgain(dg.Config):
    """The batches to apply again."""

    table_prefix: str = Field(description="The table prefix, such as shop/orders.")
    first_batch: str = Field(description="The first batch: its path, or the beginning of the path.")
    reason: str = Field(description="The reason, for the table's list of decisions.")


def _again_job(translator: AssetTranslator, batches: Open, seconds: int, staging: str) -> dg.JobDefinition:
    @dg.op(name="apply_file_batches_again", pool=_POOL, out=dg.Out(dg.Nothing))
    def apply_file_batches_again(context: dg.OpExecutionContext, config: ApplyAgain) -> OpEvents:
        own = batches()
        prefix, first = config.table_prefix, config.first_batch
        _decide(context, own, prefix, config.reason, lambda: own.settled_from(prefix, first))
        yield from _applied(context, translator, own.run([prefix]))
        yield dg.Output(None)

    text = "Apply settled batches of files again, from a given one on."

    @bounded_job(text, seconds, FILES_TAG, staging=staging)
    def files_again_job() -> None:
        apply_file_batches_again()

    return files_again_job


def _decide(
    context: StepContext, own: FileBatches, prefix: str, reason: str, choose: Callable[[], dict[str, int]]
) -> None:
    """Decide to apply batches again, only once for a run and its retries, because Dagster retries a run whose worker
    died, and only once for a backfill, because each of its runs chooses all its batches. Raises Failure."""
    tags = context.run.tags
    by = f"Dagster run {tags.get(_FIRST_RUN_TAG, context.run.run_id)}"
    by = f"Dagster backfill {tags[BACKFILL_TAG]}" if BACKFILL_TAG in tags else by
    try:
        if any(entry.by == by for entry in own.decisions(prefix)):
            context.log.info(f"{by} has already decided this: applying the remaining batches")
            return
        chosen = choose()
        own.again(prefix, chosen, reason, by)
    except (NotFound, Refused) as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    context.log.info(f"applying {counted(len(chosen), 'batch', 'batches')} again, from {min(chosen)} on")


def _applied(context: StepContext, translator: AssetTranslator, report: FilesReport) -> Iterator[_Event]:
    """The events of a run. Raises Failure if a table prefix failed."""
    yield from _events(context, translator, report)
    failed = [each for each in report.tables if each.error and not each.transient]
    if failed or report.homeless:
        lines = [f"{each.prefix}: {each.error}" for each in failed]
        lines += [f"{path or 'the root'}: {why}" for path, why in report.homeless.items()]
        raise dg.Failure("next: kbq files status\n" + "\n".join(lines[:_SHOWN]), allow_retries=False)


def _events(context: StepContext, translator: AssetTranslator, report: FilesReport) -> Iterator[_Event]:
    """A materialization for each applied batch, in the partition of its path, and the check of each prefix."""
    for table in report.tables:
        keys = [partition_key(table.prefix, each.path) for each in table.done]
        if keys:
            context.instance.add_dynamic_partitions(partitions(translator, table.prefix).name or "", keys)
            context.log.info(
                f"{table.prefix}: {counted(len(keys), 'batch', 'batches')} applied, {counted(table.rows, 'row')}"
            )
        for key, batch in zip(keys, table.done, strict=True):
            yield dg.AssetMaterialization(
                asset_key(translator, table.prefix), partition=key, metadata=_metadata(table, batch)
            )
        yield _evaluation(translator, table)


def _metadata(table: PrefixReport, batch: SettledBatch) -> dict[str, int | str]:
    return {
        "rows": batch.rows,
        "files": batch.files,
        "job": batch.job_id,
        "backlog": len(table.batches),
        "batch": batch.path,
    }


def _sensor(
    job: dg.JobDefinition, assets: list[dg.AssetKey], batches: Open, settings: Settings
) -> dg.SensorDefinition:
    @tick
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if busy := find_run(context.instance, FILES_TAG, settings.staging_url, assets):
            return skipped(context, f"batches are being applied: {busy}")
        report = batches().status()
        now = [each for table in report.tables for each in table.batches]
        if any(each.state in (BatchState.READY, BatchState.IN_FLIGHT) for each in now):
            return dg.SensorResult(run_requests=[dg.RunRequest()])
        waiting = (
            f"; {counted(len(now), 'batch waits', 'batches wait')}: kbq files status shows the reasons"
            if now
            else ""
        )
        return skipped(context, f"no batch is ready{waiting}")

    return dg.SensorDefinition(
        name="file_batch_sensor",
        description="Requests a run when a batch with a success object is ready.",
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=min(POLL_SECONDS, int(settings.run.load_seconds)),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
