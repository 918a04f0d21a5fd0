"""A sensor that compacts a lake's tables as soon as their hours are complete, for readers who cannot wait for the job.

It plans a table if more of its hours are complete than at the last plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import dagster as dg

from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.compaction.periods import Periods
from kbq_assets.defs.runs import tick
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.observation.observer import Observer

#: Most tables that one tick plans. The next tick plans the rest.
MOST_TABLES: Final = 20
#: Most runs that one tick requests for a table, for the newest partitions. The hourly job compacts the others.
MOST_RUNS: Final = 24
_EVERY_SECONDS: Final = 300


def compaction_sensor(
    name: str,
    keys: Mapping[TableReference, dg.AssetKey],
    periods: Mapping[TableReference, Periods],
    compactor: Compactor,
    observer: Observer,
) -> dg.SensorDefinition:
    """The sensor of one lake. ``keys`` are the assets of its tables' compacted files, and ``periods`` their
    partitions."""

    @tick
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        seen = _parse(context.cursor)
        hours = observer.known_hours()
        moved = [
            table for table in sorted(keys) if table in hours and hours[table].until > seen.get(str(table), 0)
        ]
        requests: list[dg.RunRequest] = []
        for table in moved[:MOST_TABLES]:
            try:
                plan = compactor.plan(table)
            except KbqError as error:
                context.log.warning(f"{table} is not planned: {error.message}")
                continue
            # A lake's tag of a complete hour may come ten minutes after the state.
            until = seen[str(table)] = plan.complete_until
            partitions = periods[table].asked_for(plan)[-MOST_RUNS:]
            requests += [_request(table, keys[table], each, until) for each in partitions]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "no complete hour has many small files",
            cursor=json.dumps(seen, sort_keys=True),
        )

    return dg.SensorDefinition(
        name=name,
        description="Compacts partitions with newly complete hours, as the tables' policies require.",
        evaluation_fn=evaluate,
        asset_selection=dg.AssetSelection.assets(*keys.values()),
        minimum_interval_seconds=_EVERY_SECONDS,
    )


def _request(table: TableReference, key: dg.AssetKey, partition: str, until: int) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{table} {partition} {until}", asset_selection=[key], partition_key=partition
    )


def _parse(cursor: str | None) -> dict[str, int]:
    """A cursor's content; empty if it is unreadable, because a cursor is only a hint."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return (
        {key: until for key, until in found.items() if isinstance(until, int)}
        if isinstance(found, dict)
        else {}
    )
