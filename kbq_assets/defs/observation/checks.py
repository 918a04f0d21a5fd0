"""The asset checks, and the sensor that renews checks that depend on time.

Runs write the checks that they can answer: extractions those of staged files, loads those of tables. Lag and freshness
get worse while nothing runs, so a sensor polls, and writes the checks that have changed.
"""

# No postponed annotations here: Dagster reads the annotation of `context`.

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import dagster as dg

from kbq_assets.core.observation.check_names import CHECKS
from kbq_assets.defs.observation.check_events import asset_of, digest, evaluation
from kbq_assets.defs.observation.page_checks import (
    evaluations,
    note_of,
    noted,
    page_check_specs,
    page_evaluations,
)
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import tick
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.pipelines.observation.checks import CheckReport
from kbq_assets.pipelines.observation.observer import Observer

#: Checks that need no query, of assets that KBQ always has.
FREE: Final = tuple(name for name, kind in CHECKS.items() if kind.is_free and kind.asset)
CHECK_SECONDS: Final = 300
#: An unchanged check is written again after this time, with its new numbers, to show that it still runs.
RENEW_MS: Final = 3_600_000


def build_checks(observer: Observer, pages: Pages) -> Iterator[dg.AssetChecksDefinition]:
    """The checks. A user can run them again after a fix."""
    specs = [*(check_spec(name, pages.translator) for name in FREE), *page_check_specs(pages)]
    yield checks_of("checks", observer, pages, specs)


def checks_of(
    step: str, observer: Observer, pages: Pages, specs: Sequence[dg.AssetCheckSpec]
) -> dg.AssetChecksDefinition:
    """Checks over all topics or tables, and on their pages. The selected ones share one read of state and broker."""
    overall = {dg.AssetCheckKey(asset_of(name, pages.translator), name) for name in FREE}

    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        report = observer.checks()
        for key in sorted(context.selected_asset_check_keys):
            if key in overall:
                yield from map(as_result, _overall(context.instance, pages, report, key))
            else:
                yield from map(as_result, page_evaluations(pages, report, key))

    return dg.multi_asset_check(name=step, specs=specs, can_subset=True)(checks)


def _overall(
    instance: dg.DagsterInstance, pages: Pages, report: CheckReport, key: dg.AssetCheckKey
) -> Iterator[dg.AssetCheckEvaluation]:
    """The evaluation of a check over all topics or tables. It does not change the pages, nor the note about them."""
    if key.name not in report.unknown:
        note = note_of(noted(instance, pages, key.name))
        yield evaluation(key.asset_key, key.name, report.of(key.name), note)


def check_spec(name: str, translator: AssetTranslator) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name, asset=asset_of(name, translator), description=CHECKS[name].meaning)


def as_result(found: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """An evaluation in the form that a check function returns."""
    return dg.AssetCheckResult(
        asset_key=found.asset_key,
        check_name=found.check_name,
        passed=found.passed,
        severity=found.severity,
        description=found.description,
        metadata=found.metadata,
    )


def build_check_sensor(observer: Observer, pages: Pages) -> dg.SensorDefinition:
    """The sensor that evaluates all checks without a query and reports those that changed. It starts no run."""

    @tick
    def check_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        report = observer.checks()
        written = read_cursor(context.cursor)
        shown = shown_problems(context.instance, pages.translator)
        due = due_checks(report, written, shown, observer.deployment.clock.now_ms())
        events = list(evaluations(context.instance, pages, report, due))
        return dg.SensorResult(
            skip_reason=_summary(report), cursor=json.dumps({**written, **due}), asset_events=events
        )

    return dg.SensorDefinition(
        name="check_sensor",
        description="Checks for lag, stale data and damage while nothing runs.",
        evaluation_fn=check_sensor,
        minimum_interval_seconds=CHECK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def due_checks(
    report: CheckReport, written: Mapping[str, tuple[str, int]], shown: Mapping[str, object], now_ms: int
) -> dict[str, tuple[str, int]]:
    """Checks to write now, with the cursor's new entry for each: a digest of its result, and the time.

    ``shown`` problems may come from a run instead of the sensor, so they may differ from the cursor.
    """
    due = {}
    for name in FREE:
        found, (before, at_ms) = report.of(name), written.get(name, ("", 0))
        says, problems = digest(found), sum(not result.passed for result in found)
        is_said = says == before and shown.get(name) == problems and 0 <= now_ms - at_ms < RENEW_MS
        if name not in report.unknown and not is_said:
            due[name] = says, now_ms
    return due


def shown_problems(instance: dg.DagsterInstance, translator: AssetTranslator) -> dict[str, object]:
    """The number of problems that each check's page shows. Checks that are planned but not evaluated are left out."""
    found: dict[str, object] = {}
    for name in FREE:
        key = dg.AssetCheckKey(asset_of(name, translator), name)
        record = instance.get_latest_asset_check_evaluation_record(key)
        latest = record.evaluation if record is not None else None
        if isinstance(latest, dg.AssetCheckEvaluation) and (problems := latest.metadata.get("problems")):
            found[name] = problems.value
    return found


def read_cursor(cursor: str | None) -> dict[str, tuple[str, int]]:
    """The checks in a cursor. If the cursor is unreadable, every check is reported once more."""
    try:
        found = json.loads(cursor or "{}")
        return {str(name): (str(says), int(at_ms)) for name, (says, at_ms) in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _summary(report: CheckReport) -> str:
    """A tick's result, shown as the reason for requesting no run."""
    unknown = f"; not checked: {next(iter(report.unknown.values()))}" if report.unknown else ""
    return f"failed results: {len(report.failures)} of {len(report.results)}{unknown}"
