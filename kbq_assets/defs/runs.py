"""Functions shared by the steps of Dagster's jobs and assets. A step calls the spine and yields the result as events.

Automated runs report only changes: one materialization per changed partition, and no planned events. Partitions that a
user chose are reported even if they were up to date. Dagster keeps the events that a step yields before it fails.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

import dagster as dg

from kbq_assets.core.config.roles import Role
from kbq_assets.core.errors import InvalidName, KbqError, TransientError
from kbq_assets.core.observation.run_totals import LASTING_MS
from kbq_assets.defs.observation import check_events, page_checks
from kbq_assets.defs.pages import Pages
from kbq_assets.pipelines.observation.observer import Observer

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext
StepEvent = dg.DagsterEvent | dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
StepEvents = Iterator[StepEvent]
Parsed = TypeVar("Parsed")
Read = TypeVar("Read")

Tick = Callable[[dg.SensorEvaluationContext], dg.SensorResult]

IN_PROGRESS = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def state_checks(
    context: StepContext, observer: Observer, pages: Pages, side: Role, *of_broker: str
) -> Iterator[dg.AssetCheckEvaluation]:
    """The checks that a run of this role can answer from state, and the checks ``of_broker``. An error does not fail
    the run, because its work is done."""
    report = or_else(context, lambda: observer.state_checks(side, broker=bool(of_broker)), None)
    if report is not None:
        names = (*of_broker, *check_events.OF_RUNS[side])
        yield from logged(context, page_checks.evaluations(context.instance, pages, report, names))


def logged(
    context: StepContext, found: Iterable[dg.AssetCheckEvaluation]
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluations. Each failed one is also written to the run's log, as an error or a warning."""
    for check in found:
        if not check.passed:
            write = (
                context.log.error if check.severity == dg.AssetCheckSeverity.ERROR else context.log.warning
            )
            write(f"{check.asset_key.to_user_string()}: {check.check_name} fails: {check.description}")
        yield check


def or_else(context: StepContext, read: Callable[[], Read], otherwise: Read) -> Read:
    """A value for reports. An error is only logged: the work is committed, and a failed run would lose its events."""
    try:
        return read()
    except KbqError as error:
        context.log.warning(f"not reported: {error.message}")
        return otherwise


def parsed(context: StepContext, chosen: Iterable[str], parse: Callable[[str], Parsed]) -> dict[str, Parsed]:
    """The chosen keys, parsed. Users may add keys in the UI, so an invalid one is skipped with a warning.

    Raises dagster.Failure if all are invalid.
    """
    found, wrong = {}, []
    for key in chosen:
        try:
            found[key] = parse(key)
        except InvalidName as error:
            wrong.append(str(error))
    if wrong and not found:
        raise dg.Failure("\n".join(wrong), allow_retries=False)
    for message in wrong:
        context.log.warning(message)
    return found


def register(context: StepContext, definition: dg.DynamicPartitionsDefinition, keys: Iterable[str]) -> None:
    """Register partition keys with Dagster, in one call."""
    assert definition.name is not None
    if wanted := sorted(keys):
        context.instance.add_dynamic_partitions(definition.name, wanted)


def find_run(
    instance: dg.DagsterInstance,
    tag: str,
    staging: str | None,
    assets: Collection[dg.AssetKey],
    statuses: Collection[dg.DagsterRunStatus] = IN_PROGRESS,
) -> str:
    """A message about a queued or running run with one of the assets, or with the tag and the staging area (None: any);
    "" if there is none."""
    for run in instance.get_runs(dg.RunsFilter(statuses=list(statuses))):
        is_tagged = tag in run.tags and staging in (None, run.tags[tag])
        if is_tagged or any(key in assets for key in run.asset_selection or ()):
            return f"run {run.run_id[:8]} is {run.status.value.lower()}"
    return ""


def tick(evaluate: Tick, monotonic: Callable[[], float] = time.monotonic) -> Tick:
    """A sensor's evaluation that skips the tick if a port does not answer.

    If every tick of half an hour met such an error, the ticks fail: Dagster shows these in red, and skipped ones not.
    """
    since: float | None = None

    @functools.wraps(evaluate)
    def evaluate_or_skip(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        nonlocal since
        try:
            found = evaluate(context)
        except TransientError as error:
            since = monotonic() if since is None else since
            if (monotonic() - since) * 1000 >= LASTING_MS:
                raise
            return skipped(context, str(error))
        since = None
        return found

    return evaluate_or_skip


def skipped(context: dg.SensorEvaluationContext, reason: str) -> dg.SensorResult:
    """A tick without effect. The cursor does not change."""
    return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
