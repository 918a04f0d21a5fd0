"""Sensors that tell people: one for runs that failed, one for everything else that is wrong.

Both run by default where `KBQ_NOTIFY` names somebody. What was told is kept beside the state, not in a cursor. A run
that fails because the staging area is away cannot be noted there: it is told at once, and `notice_sensor`, which looks
at Dagster's failed runs too, notes it when the staging area is back. Twice at worst, never not at all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import dagster as dg

from kbq_assets.core.errors import KbqError, TransientError, Unavailable
from kbq_assets.extras.notices import pipeline as notices
from kbq_assets.extras.notices.model import FAILED_RUN, FailedRun
from kbq_assets.extras.notices.pipeline import Delivery, NoticePorts
from kbq_assets.pipelines.deployment import Deployment

NOBODY = "nobody is told: KBQ_NOTIFY is not set"
#: Dagster's own names: a run's backfill, and a run that is tried again.
_BACKFILL_TAG = "dagster/backfill"
_WILL_RETRY_TAG = "dagster/will_retry"
_ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE)
_SHOWN_ASSETS = 3
#: Failed runs that a look asks for; the next one goes on after them.
_MOST_FAILURES: Final = 50
#: A run's end is written by another process, with the time it had: what is that old is looked at again.
_LATE: Final = timedelta(minutes=5)
#: After a long time off nothing older is told.
_OLDEST: Final = timedelta(days=1)


OpenPorts: TypeAlias = Callable[[], NoticePorts]


def notice_definitions(deployment: Deployment, ports: OpenPorts) -> dg.Definitions:
    """Both sensors. ``ports`` opens what notices are made from when a sensor first needs it."""
    return dg.Definitions(sensors=[_run_failure_sensor(deployment, ports), _notice_sensor(deployment, ports)])


def _default_status(deployment: Deployment) -> dg.DefaultSensorStatus:
    is_told = bool(deployment.settings.notify.notifiers)
    return dg.DefaultSensorStatus.RUNNING if is_told else dg.DefaultSensorStatus.STOPPED


def _run_failure_sensor(deployment: Deployment, ports: OpenPorts) -> dg.SensorDefinition:
    told_unrecorded: set[str] = set()

    def run_failure_sensor(context: dg.RunFailureSensorContext) -> dg.SkipReason:
        run = context.dagster_run
        if run.tags.get(_WILL_RETRY_TAG) == "true":
            return dg.SkipReason(f"run {run.run_id[:8]} is tried again")
        if not ports().notifiers:
            return dg.SkipReason(NOBODY)
        now_ms, ui_url = deployment.clock.now_ms(), deployment.settings.notify.ui_url
        failed = failed_run(run, _failure_text(context.instance, run.run_id), now_ms, ui_url)
        try:
            at_ms = deployment.load_store.now_ms()
            notices.note_failed_run(deployment.load_store, dataclasses.replace(failed, at_ms=at_ms))
        except KbqError as error:
            return tell_unrecorded(failed, error)
        told_unrecorded.clear()
        try:
            return dg.SkipReason(summary(notices.tell(ports())))
        except TransientError as error:
            return dg.SkipReason(f"noted, told by the next look: {error.message}")

    def tell_unrecorded(failed: FailedRun, why: KbqError) -> dg.SkipReason:
        """A subject once, as far as this process remembers: while the store is away every run fails."""
        if failed.subject in told_unrecorded:
            return dg.SkipReason(f"{failed.subject} was told already: {why.message}")
        deliveries = notices.tell_unrecorded(ports(), failed.condition, failed.at_ms)
        _raise_failures(deliveries)
        told_unrecorded.add(failed.subject)
        return dg.SkipReason(f"{summary(deliveries)}; not noted: {why.message}")

    return dg.run_failure_sensor(
        name="run_failure_sensor",
        description="Tells who is on call of a run that failed and is not tried again.",
        minimum_interval_seconds=deployment.settings.notify.every_seconds,
        default_status=_default_status(deployment),
    )(run_failure_sensor)


def _raise_failures(deliveries: Iterable[Delivery]) -> None:
    """A failed tick shows red: who is to be told must not be the only one who could notice."""
    if failures := [d.failure for d in deliveries if d.failure]:
        raise Unavailable(f"{summary(deliveries)}\n" + "\n".join(failures))


def _notice_sensor(deployment: Deployment, ports: OpenPorts) -> dg.SensorDefinition:
    def notice_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        if not ports().notifiers:
            return dg.SkipReason(NOBODY)
        cursor = NoticeCursor.parse(context.cursor)
        try:
            seen = note_runs(context, deployment, cursor.seen)
            deliveries = notices.tell(ports())
        except TransientError as error:
            now_ms = deployment.clock.now_ms()
            away = dataclasses.replace(cursor, away_ms=cursor.away_ms or now_ms)
            if now_ms - away.away_ms >= notices.GRACE_MS:
                raise  # shows red: nobody is told anything
            context.update_cursor(away.format())
            return dg.SkipReason(error.message)
        context.update_cursor(NoticeCursor(seen).format())
        _raise_failures(deliveries)
        return dg.SkipReason(summary(deliveries))

    return dg.SensorDefinition(
        name="notice_sensor",
        description="Tells who is on call what is wrong, once, again while it lasts, and when it has ended; and what is"
        " new.",
        evaluation_fn=notice_sensor,
        minimum_interval_seconds=deployment.settings.notify.every_seconds,
        default_status=_default_status(deployment),
    )


@dataclass(frozen=True)
class NoticeCursor:
    """Until when Dagster's failed runs were seen, and since when the staging area does not answer, 0 while it does."""

    seen: datetime
    away_ms: int = 0

    @classmethod
    def parse(cls, text: str | None) -> NoticeCursor:
        """What a cursor says. Without one that can be read, looking begins now; and never more than a day ago."""
        now = datetime.now(UTC)
        try:
            seen, _, away_ms = (text or "").partition(" ")
            return cls(max(datetime.fromisoformat(seen), now - _OLDEST), int(away_ms or 0))
        except (ValueError, TypeError):
            return cls(now)

    def format(self) -> str:
        """As it is kept."""
        return f"{self.seen.isoformat()} {self.away_ms}"


def note_runs(context: dg.SensorEvaluationContext, deployment: Deployment, since: datetime) -> datetime:
    """Note runs that failed and that nobody could note, and jobs that succeeded since; return until when was seen."""
    instance, store, ui_url = context.instance, deployment.load_store, deployment.settings.notify.ui_url
    known = notices.failed_runs(store).runs
    filters = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since - _LATE)
    records = instance.get_run_records(
        filters, limit=_MOST_FAILURES, order_by="update_timestamp", ascending=True
    )
    last = {_subject(run)[0]: run for run in _to_tell(context, (record.dagster_run for record in records))}
    missed = {
        subject: failed_run(run, _failure_text(instance, run.run_id), store.now_ms(), ui_url)
        for subject, run in last.items()
        if subject not in known or known[subject].run_id != run.run_id
    }
    well = frozenset(recovered(instance, {**known, **missed}))
    notices.note_failed_run(store, *(run for subject, run in missed.items() if subject not in well))
    notices.note_successes(store, well & known.keys())
    # A full page is not asked for again: the next one begins after it.
    seen = [record.update_timestamp for record in records]
    return max([since, *seen]) if len(records) < _MOST_FAILURES else seen[-1] + _LATE


def _to_tell(context: dg.SensorEvaluationContext, runs: Iterable[dg.DagsterRun]) -> Iterator[dg.DagsterRun]:
    """Runs of this code location that are not tried again."""
    here = context.code_location_origin.location_name if context.code_location_origin else None
    for run in runs:
        if _location(run) == here and run.tags.get(_WILL_RETRY_TAG) != "true":
            yield run


def _location(run: dg.DagsterRun) -> str | None:
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin else None


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


def _failure_text(instance: dg.DagsterInstance, run_id: str) -> str:
    """What was raised in the step that failed, or what Dagster says of the run."""
    for event in _events(instance, run_id, dg.DagsterEventType.STEP_FAILURE):
        errors, error = [], event.step_failure_data.error
        while error is not None:
            errors.append(error)
            error = error.cause
        # An error of ours says what to do; what caused it, or Dagster wrapped around it, does not.
        ours = [e.message for e in errors if e.message.startswith("kbq_assets.")]
        if errors:
            return (ours or [errors[-1].message])[0]
    ended = [event.message or "" for event in _events(instance, run_id, dg.DagsterEventType.RUN_FAILURE)]
    return ended[-1] if ended else ""


def _events(
    instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType
) -> Iterator[dg.DagsterEvent]:
    for record in instance.get_records_for_run(run_id, of_type=kind).records:
        if event := record.event_log_entry.dagster_event:
            yield event


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
