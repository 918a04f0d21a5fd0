"""Sensors that tell people: one for runs that failed, one for everything else that is wrong.

Both run by default where `KBQ_NOTIFY` names somebody. What was told is kept beside the state, not in a cursor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import dagster as dg

from kbq_assets.core.errors import TransientError, Unavailable
from kbq_assets.core.notices import FAILED_RUN, FailedRun
from kbq_assets.defs.runs import Steps
from kbq_assets.pipelines import notices
from kbq_assets.pipelines.notices import Delivery
from kbq_assets.pipelines.platform import Platform

NOBODY = "nobody is told: KBQ_NOTIFY is not set"
#: Dagster's own names: a run's backfill, and a run that is tried again.
_BACKFILL_TAG = "dagster/backfill"
_WILL_RETRY_TAG = "dagster/will_retry"
_ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)
_SHOWN_ASSETS = 3


def build_notice_sensors(steps: Steps) -> list[dg.SensorDefinition]:
    """Both sensors."""
    return [_run_failure_sensor(steps.platform), _notice_sensor(steps.platform)]


def _default_status(platform: Platform) -> dg.DefaultSensorStatus:
    is_told = bool(platform.settings.notify.notifiers)
    return dg.DefaultSensorStatus.RUNNING if is_told else dg.DefaultSensorStatus.STOPPED


def _run_failure_sensor(platform: Platform) -> dg.SensorDefinition:
    def run_failure_sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason:
        run = context.dagster_run
        if run.tags.get(_WILL_RETRY_TAG) == "true":
            return dg.SkipReason(f"run {run.run_id[:8]} is tried again")
        if not platform.notices.notifiers:
            return dg.SkipReason(NOBODY)
        failed = failed_run(
            run, _failure_text(context), platform.load_store.now_ms(), platform.settings.notify.ui_url
        )
        notices.note_failed_run(platform.load_store, failed)
        return dg.SkipReason(summary(notices.tell(platform.notices)))

    return dg.run_failure_sensor(
        name="run_failure_sensor",
        description="Tells who is on call of a run that failed and is not tried again.",
        minimum_interval_seconds=platform.settings.notify.every_seconds,
        default_status=_default_status(platform),
    )(run_failure_sensor)


def _notice_sensor(platform: Platform) -> dg.SensorDefinition:
    def notice_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if not platform.notices.notifiers:
            return dg.SkipReason(NOBODY)
        try:
            known = notices.failed_runs(platform.load_store).runs
            notices.note_successes(platform.load_store, recovered(context.instance, known))
            deliveries = notices.tell(platform.notices)
        except TransientError as error:
            return dg.SkipReason(error.message)
        if failures := [d.failure for d in deliveries if d.failure]:
            # A failed tick shows red: who is to be told must not be the only one who could notice.
            raise Unavailable(f"{summary(deliveries)}\n" + "\n".join(failures))
        return dg.SkipReason(summary(deliveries))

    return dg.SensorDefinition(
        name="notice_sensor",
        description="Tells who is on call what is wrong, once, again while it lasts, and when it has ended; and what is"
        " new.",
        evaluation_fn=notice_sensor,
        minimum_interval_seconds=platform.settings.notify.every_seconds,
        default_status=_default_status(platform),
    )


def failed_run(run: dg.DagsterRun, text: str, now_ms: int, ui_url: str) -> FailedRun:
    """What is told of a run: its job, id, the error's first line, and a link where the UI's address is known."""
    name, lasts = _subject(run)
    link = f"{ui_url}/runs/{run.run_id}" if ui_url else ""
    return FailedRun(name, run.run_id, f"run {run.run_id[:8]}: {_in_a_line(text)}", now_ms, link, lasts)


def _subject(run: dg.DagsterRun) -> tuple[str, bool]:
    """What failed, and whether it is a job that is run again and again."""
    short = run.run_id[:8]
    if backfill := run.tags.get(_BACKFILL_TAG):
        return f"backfill {backfill}", False
    if run.asset_selection:
        keys = sorted(key.to_user_string() for key in run.asset_selection)
        more = f" and {len(keys) - _SHOWN_ASSETS} more" if len(keys) > _SHOWN_ASSETS else ""
        return f"materialisation of {', '.join(keys[:_SHOWN_ASSETS])}{more} ({short})", False
    return run.job_name, True


def _failure_text(context: dg.RunFailureSensorContext) -> str:
    """What was raised in the step that failed, or what Dagster says of the run."""
    for event in context.get_step_failure_events():
        errors, error = [], event.step_failure_data.error
        while error is not None:
            errors.append(error)
            error = error.cause
        # An error of ours says what to do; what caused it, or Dagster wrapped around it, does not.
        ours = [e.message for e in errors if e.message.startswith("kbq_assets.")]
        if errors:
            return (ours or [errors[-1].message])[0]
    return context.failure_event.message or ""


def _in_a_line(text: str) -> str:
    """An error's first line without the module of its class, and its next step."""
    first, *others = text.strip().splitlines() or ["it says nothing"]
    steps = [line.strip() for line in others if line.strip().startswith("next: ")]
    return "; ".join([re.sub(r"^[\w.]+\.(?=\w+: )", "", first), *steps[:1]])


def recovered(instance: dg.DagsterInstance, known: Mapping[str, FailedRun]) -> Iterator[str]:
    """Jobs whose last run that ended was successful, though an earlier one failed."""
    for subject, failed in known.items():
        if not failed.lasts or failed.kind != FAILED_RUN:
            continue
        filters = dg.RunsFilter(job_name=subject, statuses=list(_ENDED))
        for run in instance.get_runs(filters, limit=1):
            if run.status == dg.DagsterRunStatus.SUCCESS:
                yield subject


def summary(deliveries: Iterable[Delivery]) -> str:
    """What a look told, in a line per notifier."""
    return "; ".join(
        f"{d.notifier}: {', '.join(d.sent) or 'nothing new'}{' (failed)' if d.failure else ''}"
        for d in deliveries
    )
