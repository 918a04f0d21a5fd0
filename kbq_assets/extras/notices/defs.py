"""Two sensors: `notice_sensor` reports problems and news, and `run_failure_sensor` reports failed runs.

Both are on by default if `KBQ_NOTIFY` is set. Dagster also gets the news, as observations of tables and topics.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import dagster as dg

from kbq_assets.core.config.notices import NotifySettings
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.observation.check_names import COUNTS_AGREE
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.observation.page_checks import last_evaluation
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.extras.notices.model import (
    FAILED_RUN,
    INFO,
    NEW_TOPIC,
    RESOLVED,
    Condition,
    Message,
    Notifier,
)
from kbq_assets.extras.notices.observe import Observation
from kbq_assets.extras.notices.send import Delivery, NoticePorts, failures, send_changes, send_now

OpenPorts: TypeAlias = Callable[[], NoticePorts]
NOBODY: Final = "KBQ_NOTIFY is not set"
#: Dagster's own names: a run's backfill, and a run that Dagster retries.
_BACKFILL_TAG: Final = "dagster/backfill"
_WILL_RETRY_TAG: Final = "dagster/will_retry"
_ENDED: Final = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]


def notice_definitions(
    settings: NotifySettings, translator: AssetTranslator, ports: OpenPorts, reported: dg.Definitions
) -> dg.Definitions:
    """Both sensors. ``ports`` opens what a sensor needs when it first runs. Failed runs of ``reported`` are reported,
    and none of a project's own jobs."""
    status = dg.DefaultSensorStatus.RUNNING if settings.notifiers else dg.DefaultSensorStatus.STOPPED
    run_failure_sensor = dg.run_failure_sensor(
        name="run_failure_sensor",
        description="Reports failed runs of KBQ's jobs and assets that Dagster does not retry. If a job keeps failing, "
        "only the first run.",
        minimum_interval_seconds=settings.every_seconds,
        default_status=status,
    )
    notice_sensor = dg.SensorDefinition(
        name="notice_sensor",
        description="Reports each problem once, and again when it ends; and news.",
        evaluation_fn=_notice_sensor(translator, ports),
        minimum_interval_seconds=settings.every_seconds,
        default_status=status,
    )
    on_failure = _on_failure(settings.ui_url, ports, runs_of(reported))
    return dg.Definitions(sensors=[run_failure_sensor(on_failure), notice_sensor])


def runs_of(definitions: dg.Definitions) -> Callable[[dg.DagsterRun], bool]:
    """Whether a run is of one of the jobs, or selects one of the assets or their checks."""
    jobs = {job.name for job in definitions.jobs or ()}
    assets: set[dg.AssetKey] = set()
    for each in definitions.assets or ():
        if isinstance(each, dg.AssetsDefinition):
            assets |= set(each.keys)
        elif isinstance(each, dg.AssetSpec):
            assets.add(each.key)

    def is_of(run: dg.DagsterRun) -> bool:
        checked = {check.asset_key for check in run.asset_check_selection or ()}
        return run.job_name in jobs or not assets.isdisjoint({*(run.asset_selection or ()), *checked})

    return is_of


def _notice_sensor(
    translator: AssetTranslator, ports: OpenPorts
) -> Callable[[dg.SensorEvaluationContext], dg.SensorResult]:
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        opened, events = ports(), list[dg.AssetObservation]()
        # Dagster is a notifier with a ledger, like any other.
        dagster = Notifier("dagster", "dagster", lambda message: events.extend(_news(translator, message)))
        opened = dataclasses.replace(opened, notifiers=(*opened.notifiers, dagster))
        deliveries = send_changes(opened, _counts(context.instance, translator))
        if failures(deliveries):  # a failed tick reports no events, and Dagster's ledger has these already
            for event in events:
                context.instance.report_runless_asset_event(event)
        return dg.SensorResult(skip_reason=_shown(deliveries), asset_events=events)

    return evaluate


def _news(translator: AssetTranslator, message: Message) -> Iterator[dg.AssetObservation]:
    """An observation for each piece of news, on the asset that it is about."""
    for item in message.items:
        if item.severity == INFO and item.phase != RESOLVED:
            is_topic, name = item.kind == NEW_TOPIC, item.subject
            key = (
                translator.topic_key(name) if is_topic else translator.dataset_key(TableReference.parse(name))
            )
            yield dg.AssetObservation(key, metadata={"news": item.kind, "text": item.text})


def _counts(instance: dg.DagsterInstance, translator: AssetTranslator) -> Observation:
    """The condition of the last count of the warehouse, if it failed. A poll does not count, because queries cost
    money."""
    key = dg.AssetCheckKey(translator.warehouse_tables, COUNTS_AGREE)
    check = last_evaluation(instance, key)
    if check is None or check.passed:
        return Observation()
    text = (check.description or "").partition("\n")[0]
    return Observation(
        (Condition(COUNTS_AGREE, "the warehouse", text, commands=("kbq reconcile --counts",)),)
    )


def _on_failure(
    ui_url: str, ports: OpenPorts, is_reported: Callable[[dg.DagsterRun], bool]
) -> Callable[[dg.RunFailureSensorContext], dg.SkipReason]:
    #: Subjects that this process has reported. Another process may report one of them again.
    reported: set[str] = set()

    def evaluate(context: dg.RunFailureSensorContext) -> dg.SkipReason:
        run = context.dagster_run
        if not is_reported(run):
            return dg.SkipReason(f"run {run.run_id[:8]} is not of KBQ")
        opened = ports()
        if run.tags.get(_WILL_RETRY_TAG) == "true":
            return dg.SkipReason(f"Dagster retries run {run.run_id[:8]}")
        if not opened.notifiers:
            return dg.SkipReason(NOBODY)
        failed = failed_run(run, _error(context), ui_url)
        if failed.subject in reported and not _succeeded_before(context.instance, run):
            return dg.SkipReason(f"{failed.subject} was already reported")
        for_all = [notifier for notifier in opened.notifiers if not notifier.team]
        shown = _shown(send_now(for_all, Message((failed,), time.time_ns() // 1_000_000)))
        reported.add(failed.subject)
        return dg.SkipReason(shown)

    return evaluate


def _succeeded_before(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether the job's last ended run before this one succeeded."""
    tags = {tag: run.tags[tag] for tag in (_BACKFILL_TAG,) if tag in run.tags}
    found = instance.get_run_record_by_id(run.run_id)
    # The job may have failed again before the sensor looked.
    earlier = dg.RunsFilter(
        job_name=run.job_name,
        statuses=_ENDED,
        tags=tags,
        created_before=found.create_timestamp if found else None,
    )
    runs = instance.get_runs(earlier, limit=20)
    ended = [r for r in runs if r.run_id != run.run_id and r.tags.get(_WILL_RETRY_TAG) != "true"]
    return bool(ended) and ended[0].status == dg.DagsterRunStatus.SUCCESS


def failed_run(run: dg.DagsterRun, error: str, ui_url: str) -> Condition:
    """The condition of a failed run: its job, id, the error in one line, and a link if the UI's address is known."""
    subject, short = run.job_name, run.run_id[:8]
    if backfill := run.tags.get(_BACKFILL_TAG):
        subject = f"backfill {backfill}"
    elif run.asset_selection:
        assets = ", ".join(sorted(key.to_user_string() for key in run.asset_selection))
        subject = f"materialization of {assets} ({short})"
    text = f"run {short}: {error}"
    link = f"{ui_url}/runs/{run.run_id}" if ui_url else ""
    return Condition(FAILED_RUN, subject, text, commands=("kbq status", "kbq check"), link=link)


def _error(context: dg.RunFailureSensorContext) -> str:
    """The error of the failed step. KBQ's own error is preferred to its cause, because it has the next step."""
    for event in context.get_step_failure_events():
        messages, error = [], event.step_failure_data.error
        while error is not None:
            messages.append(error.message)
            error = error.cause
        if messages:
            return next((m for m in messages if m.startswith("kbq_assets.")), messages[-1])
    return context.failure_event.message or "no message"


def _shown(deliveries: Iterable[Delivery]) -> str:
    """A line for the tick: the texts sent, by notifier. Raises Unavailable if one failed, because only a failed tick
    shows that."""
    deliveries = tuple(deliveries)
    if failed := failures(deliveries):
        raise Unavailable("\n".join(failed))
    return "; ".join(f"{d.notifier}: {d.sent or 'nothing new'}" for d in deliveries)
