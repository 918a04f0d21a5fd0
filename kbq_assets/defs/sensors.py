"""Automation: sensors request a run if there is work; otherwise they show why not. Their cursors are hints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.jobs import EXTRACT_TAG, LOAD_TAG, Jobs
from kbq_assets.defs.observation.catch_up import CatchUp
from kbq_assets.defs.observation.page_checks import stop_evaluations
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import find_run, skipped, tick
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.pending import find_done_files, has_work
from kbq_assets.pipelines.observation.pending_loads import PendingLoads

#: Most seconds between two ticks of `done_file_sensor`.
POLL_SECONDS = 60
#: Tag of a load run: a digest of the pending files for which it was requested. Retries of the same files back off.
PENDING_TAG = "kbq/pending"
FIRST_RETRY_SECONDS = 30.0
LAST_RETRY_SECONDS = 600.0
_IDLE = "every committed file is loaded, or its table waits: kbq status shows the reason"
_POLL_CONTINUES = "nothing found so far: the poll ran out of time, and the next tick continues it"


def extraction_sensor_of(extractor: Extractor, pages: Pages, jobs: Jobs) -> dg.SensorDefinition:
    """The sensor that requests extractions. It is on by default."""
    deployment = extractor.deployment

    @tick
    def extraction_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        staging = deployment.settings.staging_url
        if busy := find_run(context.instance, EXTRACT_TAG, staging, pages.staged):
            return skipped(context, f"an extraction is under way: {busy}")
        shown, _, start = (context.cursor or "").partition(" ")
        asked_ms = deployment.clock.now_ms()
        polled = extractor.poll(start)
        stops = [stop for plan in polled.answers for stop in plan.stops]
        seen = _digest(map(str, stops)) if polled.complete else shown
        failures = {tp: message for plan in polled.answers for tp, message in plan.failures.items()}
        reason = None if has_work(polled.answers[-1]) else idle_reason(stops, polled.complete, failures)
        if reason is not None:
            extractor.mark_ends(polled.answers, asked_ms)
        return dg.SensorResult(
            run_requests=[dg.RunRequest()] if reason is None else [],
            skip_reason=reason,
            cursor=f"{seen} {polled.start}",
            asset_events=[] if seen == shown else list(stop_evaluations(context.instance, pages, (), stops)),
        )

    return dg.SensorDefinition(
        name="extraction_sensor",
        description="Requests an extraction when the broker has records that are not committed.",
        evaluation_fn=extraction_sensor,
        job=jobs.extract,
        minimum_interval_seconds=int(deployment.settings.run.extract_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def done_file_sensor_of(loader: Loader, observer: Observer, pages: Pages, jobs: Jobs) -> dg.SensorDefinition:
    """The sensor that requests loads. It is on by default. Its first tick reports earlier work of commands."""
    deployment, dagster = loader.deployment, loader.deployment.settings.dagster
    cadence, staging = int(deployment.settings.run.load_seconds), deployment.settings.staging_url
    own = {LOAD_TAG: staging}
    before = CatchUp(observer, pages, dagster.partition_events)

    @tick
    def done_file_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        if busy := find_run(instance, LOAD_TAG, staging, pages.loaded):
            return skipped(context, f"a load is under way: {busy}")
        seen, _, start = (context.cursor or "").partition(" ")
        done = find_done_files(deployment.load_store, seen, deployment.clock.monotonic)
        if done.names:
            wanted = LoadDecision(dg.RunRequest(run_key=f"done-{_digest(done.names)}"), "", start)
        else:
            wanted = decide_load(instance, loader.poll(start))
        unseen = before.events(instance)
        if wanted.request and (wait := seconds_to_next_load(instance, own, cadence, time.time())) > 0:
            due = f"a load is due in {wait:.0f} s: one starts every {cadence} s (KBQ_LOAD_SECONDS)"
            return dg.SensorResult(skip_reason=due, cursor=context.cursor, asset_events=unseen)
        return dg.SensorResult(
            run_requests=[wanted.request] if wanted.request else [],
            skip_reason=wanted.reason or None,
            cursor=f"{done.seen} {wanted.start}",
            asset_events=unseen,
        )

    return dg.SensorDefinition(
        name="done_file_sensor",
        description="Requests a load when there is a new done file, or when a poll of states finds pending files or "
        "load jobs.",
        evaluation_fn=done_file_sensor,
        job=jobs.load,
        minimum_interval_seconds=min(POLL_SECONDS, cadence),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


@dataclass(frozen=True)
class LoadDecision:
    """The load to request, or the reason for none. The next poll begins at ``start``."""

    request: dg.RunRequest | None
    reason: str
    start: str


def decide_load(instance: dg.DagsterInstance, pending: PendingLoads) -> LoadDecision:
    """The load that a poll of states requires, unless retries of its files must wait."""
    if not pending.names:
        return LoadDecision(None, _IDLE if pending.complete else _POLL_CONTINUES, pending.start)
    digest = _digest(pending.names)
    tried = find_tries(instance, digest, time.time())
    if tried.wait > 0:
        left = f"{counted(tried.count, 'load')} left {counted(len(pending.names), 'item')} pending"
        reason = f"{left}; the next in {tried.wait:.0f} s"
        return LoadDecision(None, reason, pending.start)
    request = dg.RunRequest(run_key=f"{digest}-{tried.last}", tags={PENDING_TAG: digest})
    return LoadDecision(request, "", pending.start)


def seconds_to_next_load(
    instance: dg.DagsterInstance, tags: Mapping[str, str], cadence: float, now: float
) -> float:
    """Seconds until ``cadence`` has passed since the newest run with the tags was created; 0 or less if it has."""
    newest = instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=1)
    return newest[0].create_timestamp.timestamp() + cadence - now if newest else 0.0


def idle_reason(
    stops: Collection[PartitionStop],
    complete: bool = True,
    failures: Mapping[TopicPartition, str] | None = None,
) -> str:
    """The reason why there is nothing to extract, or the first of the ``failures`` to find out."""
    if failures:
        tp, message = min(failures.items())
        return f"{counted(len(failures), 'partition')} could not be planned: {tp}: {message}"
    if not complete:
        return _POLL_CONTINUES
    stopped = (
        f"; {counted(len(stops), 'stopped partition waits', 'stopped partitions wait')} for an operator (see the check)"
        if stops
        else ""
    )
    return f"everything is read up to the broker's end{stopped}"


@dataclass(frozen=True)
class Tries:
    """Recent runs for the same pending files: their number, the last one's id ("" for none), and the seconds until the
    next one may start."""

    count: int
    last: str
    wait: float


def find_tries(instance: dg.DagsterInstance, digest: str, now: float) -> Tries:
    """Runs for exactly these files. Only the last one and those of the last hour count: older ones may be deleted."""
    tags = {PENDING_TAG: digest}
    newest = instance.get_run_records(dg.RunsFilter(tags=tags), limit=1)
    if not newest:
        return Tries(0, "", 0.0)
    since = datetime.fromtimestamp(now - 6 * LAST_RETRY_SECONDS, UTC)
    count = instance.get_runs_count(dg.RunsFilter(tags=tags, created_after=since))
    pause = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** max(0, count - 1))
    [record] = newest
    return Tries(
        count,
        record.dagster_run.run_id,
        max(0.0, record.create_timestamp.timestamp() + pause - now),
    )


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
