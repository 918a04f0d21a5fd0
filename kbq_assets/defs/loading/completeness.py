"""Complete hours in Dagster: an asset that is materialized as hours become complete, and a sensor that starts runs.

Both read the tables' states, whichever process loads. Their cursors store what was reported, so no hour is reported
twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import dagster as dg

from kbq_assets.core.errors import TransientError
from kbq_assets.core.loading.completeness import HOUR_MS, TableHours
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.defs.jobs import LOAD_TAG
from kbq_assets.defs.pages import Pages
from kbq_assets.defs.runs import find_run, tick
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer

#: Tags of runs that complete hours start.
TABLE_TAG: Final = "kbq/table"
HOUR_TAG: Final = "kbq/hour"
#: Most runs that one tick requests. The next tick requests the rest.
MOST_RUNS: Final = 100
_EVERY_SECONDS: Final = 60
#: The partitions of a job without a definition of its own.
_IN_UTC: Final = dg.HourlyPartitionsDefinition("1970-01-01-00:00")
#: The cursor's key for a sensor that waits for several tables together.
_ALL: Final = "*"


def build_completeness_sensor(loader: Loader, observer: Observer, pages: Pages) -> dg.SensorDefinition:
    """The sensor that materializes `complete_hours`."""
    translator, loaded = pages.translator, pages.loaded
    staging = loader.deployment.settings.staging_url
    partitions = translator.table_partitions

    @tick
    def completeness_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        idle = "no hour has become complete"
        if not find_run(context.instance, LOAD_TAG, staging, loaded):
            try:
                loader.advance_hours()  # idle tables have no loads that would do this
            except TransientError as error:  # report the hours that are already known
                idle = f"no further hour was judged: {error}"
        hours = _of_data_tables(observer.known_hours())
        reported = _parse(context.cursor)
        moved = {table: h for table, h in hours.items() if h.until > reported.get(table, 0)}
        known = context.instance.get_dynamic_partitions(partitions.name or "")
        new = sorted(moved.keys() - set(known))
        return dg.SensorResult(
            skip_reason=None if moved else idle,
            asset_events=[
                _materialization(translator.complete_hours, t, reported.get(t, 0), h)
                for t, h in sorted(moved.items())
            ],
            dynamic_partitions_requests=[partitions.build_add_request(new)] if new else [],
            cursor=_format({**reported, **{table: h.until for table, h in moved.items()}}),
        )

    return dg.SensorDefinition(
        name="completeness_sensor",
        description="Materializes `complete_hours` for each table with newly complete hours.",
        evaluation_fn=completeness_sensor,
        minimum_interval_seconds=_EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def _materialization(
    key: dg.AssetKey, table: str, reported: int, hours: TableHours
) -> dg.AssetMaterialization:
    """One event for all new hours; for only the last hour if there was no event before."""
    first = reported or hours.until - 1
    new = range(first, hours.until)
    return dg.AssetMaterialization(
        key,
        partition=table,
        metadata={
            "first_hour": _timestamp(first),
            "complete_until": _timestamp(hours.until),
            "hours": len(new),
            "rows": sum(hours.rows.get(hour, 0) for hour in new),
            "late_rows": hours.late_rows,
        },
    )


def hours_complete_sensor(
    observer: Observer,
    *,
    job: dg.JobDefinition | dg.UnresolvedAssetJobDefinition,
    tables: Sequence[str],
    together: bool = False,
    partitioned: bool = False,
    name: str = "hours_complete_sensor",
) -> dg.SensorDefinition:
    """A sensor that runs ``job`` for each hour that becomes complete in each of ``tables`` (`dataset.table`).

    ``together``: one run per hour, when the hour is complete in all tables. ``partitioned``: the run's partition is the
    hour, as a key of the job's `dagster.HourlyPartitionsDefinition` in its time zone. The sensor begins with hours that
    become complete after its first poll.
    """
    wanted = [str(TableReference.parse(table)) for table in tables]

    @tick
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        untils = _untils(observer.known_hours(), wanted, together=together)
        reported = _parse(context.cursor)
        requests, cursor = [], {**untils, **reported} if context.cursor else untils
        hourly = _hourly(job, context) if partitioned else None
        for subject, hour in _new_hours(reported, untils)[:MOST_RUNS]:
            requests.append(_request(subject, hour, hourly))
            cursor[subject] = hour + 1
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "no hour has become complete",
            cursor=_format(cursor),
        )

    return dg.SensorDefinition(
        name=name,
        description=f"Starts a run for each complete hour of {', '.join(wanted)}.",
        evaluation_fn=evaluate,
        job=job,
        minimum_interval_seconds=_EVERY_SECONDS,
    )


def _untils(
    hours: Mapping[TableReference, TableHours], wanted: Collection[str], *, together: bool
) -> dict[str, int]:
    found = {str(table): h.until for table, h in hours.items() if str(table) in wanted and h.until}
    if not together:
        return found
    return {_ALL: min(found.values())} if len(found) == len(set(wanted)) else {}


def _new_hours(reported: Mapping[str, int], untils: Mapping[str, int]) -> list[tuple[str, int]]:
    """Unreported hours, oldest first. A table without an entry in the cursor is new: its hours begin now."""
    pairs = ((s, hour) for s, until in untils.items() if s in reported for hour in range(reported[s], until))
    return sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def _hourly(
    job: dg.JobDefinition | dg.UnresolvedAssetJobDefinition, context: dg.SensorEvaluationContext
) -> dg.HourlyPartitionsDefinition:
    """The partitions of a job. Those of a job of assets are known once the code location is loaded."""
    found = job.partitions_def
    if found is None and context.repository_def is not None:
        found = context.repository_def.get_job(job.name).partitions_def
    return found if isinstance(found, dg.HourlyPartitionsDefinition) else _IN_UTC


def _request(subject: str, hour: int, hourly: dg.HourlyPartitionsDefinition | None) -> dg.RunRequest:
    when = datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
    text = when.strftime("%Y-%m-%dT%H:%M")
    tags = {HOUR_TAG: text} if subject == _ALL else {HOUR_TAG: text, TABLE_TAG: subject}
    key = hourly.get_partition_key_for_timestamp(when.timestamp()) if hourly else None
    return dg.RunRequest(run_key=f"{subject} {text}", tags=tags, partition_key=key)


def _of_data_tables(hours: Mapping[TableReference, TableHours]) -> dict[str, TableHours]:
    return {str(table): h for table, h in hours.items() if not is_error_table(table) and h.until}


def _timestamp(hour: int) -> dg.MetadataValue:
    return dg.MetadataValue.timestamp(hour * HOUR_MS / 1000)


def _parse(cursor: str | None) -> dict[str, int]:
    """A cursor's content; empty if it is unreadable, because a cursor is only a hint."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return {str(k): v for k, v in _items(found) if isinstance(v, int)}


def _items(found: object) -> Iterable[tuple[object, object]]:
    return found.items() if isinstance(found, dict) else ()


def _format(cursor: Mapping[str, int]) -> str:
    return json.dumps(cursor, sort_keys=True, separators=(",", ":"))
