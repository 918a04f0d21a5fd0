"""Cost of reading per topic and owner, for chargeback. The cost is the CPU seconds of the topic's tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kbq_assets.core.extraction.units import UnitOutcome

#: Cost records: `costs/<day>/<time>-<run>.jsonl`, one line per topic. KBQ never reads them.
COSTS: Final = "costs/"
#: Days to keep cost records: a year, plus a month to bill its end.
KEPT_DAYS: Final = 400


@dataclass(frozen=True)
class Usage:
    """One topic's usage in one run, published or not. ``bytes`` count record values, ``staged_bytes`` files;
    ``seconds`` are task time, ``core_seconds`` CPU time."""

    topic: str
    owner: str = ""
    cost_center: str = ""
    tasks: int = 0
    positions: int = 0
    records: int = 0
    bytes: int = 0
    staged_bytes: int = 0
    seconds: float = 0.0
    core_seconds: float = 0.0

    @property
    def document(self) -> dict[str, Any]:
        """The usage as JSON. Its ``cost`` is the core seconds."""
        return {**dataclasses.asdict(self), "cost": self.core_seconds}


def with_outcome(usage: Usage | None, outcome: UnitOutcome) -> Usage:
    settings = outcome.unit.settings
    usage = usage or Usage(
        outcome.unit.range.topic_partition.topic, settings.ownership.owner, settings.ownership.cost_center
    )
    # For a unit that only feeds a backup, count its time alone.
    windows = outcome.windows if outcome.unit.tables else ()
    return dataclasses.replace(
        usage,
        tasks=usage.tasks + 1,
        positions=usage.positions + sum(w.until - w.first for w in windows),
        records=usage.records + sum(w.counts.records for w in windows),
        bytes=usage.bytes + sum(w.counts.bytes for w in windows),
        staged_bytes=usage.staged_bytes + sum(f.bytes for w in windows for f in w.files),
        seconds=usage.seconds + outcome.seconds,
        core_seconds=usage.core_seconds + outcome.process.core_seconds,
    )


def costs_path(run: str, started_ms: int) -> str:
    """Path of a run's cost records: `costs/2026-11-21/143059-a1b2.jsonl`."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"{COSTS}{started:%Y-%m-%d}/{started:%H%M%S}-{run}.jsonl"


def oldest_kept(now_ms: int) -> str:
    """Cost records with a path below this one are too old to keep."""
    return f"{COSTS}{datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(days=KEPT_DAYS):%Y-%m-%d}"


def cost_lines(costs: Iterable[Usage], run: str, started_ms: int) -> bytes:
    """Cost records as flat JSON lines, which DuckDB and BigQuery read directly."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    common = {"run": run, "started": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
    lines = [json.dumps({**common, **used.document}) for used in costs]
    return "".join(line + "\n" for line in lines).encode()
