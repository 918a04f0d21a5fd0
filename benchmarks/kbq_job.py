"""KBQ's own extraction, as `kbq extract` runs it, timed from within: ``python -m benchmarks.kbq_job TOPIC REPORT``.

Settings come from the environment, as always.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.definitions import parts
from kbq_assets.ports.engine import ExtractionEngine


class TimedEngine:
    """An engine that remembers when its first task started, and how long tasks ran."""

    def __init__(self, engine: ExtractionEngine) -> None:
        self._engine = engine
        self.first: float | None = None
        self.task_seconds: list[float] = []

    @property
    def idle_slots(self) -> int:
        return self._engine.idle_slots

    def submit(self, units: tuple[Unit, ...]) -> None:
        self.first = self.first or time.time()
        self._engine.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        outcomes = self._engine.next_outcomes(timeout_seconds)
        self.task_seconds += [outcome.seconds for outcome in outcomes]
        return outcomes

    def complaint(self) -> str:
        return self._engine.complaint()

    def cancel(self, reason: str) -> None:
        self._engine.cancel(reason)


def main(topic: str, report: str) -> None:
    started = time.time()
    made = parts()
    with made.adapters.engine() as engine:
        opened = time.time()
        timed = TimedEngine(engine)
        done = made.extractor.extract(timed, only=frozenset([topic]))
        ended = time.time()
    assert not done.failures and not done.stops, (done.failures, done.stops)
    measured = {
        "session": opened - started,
        "extraction": ended - opened,
        "tasks": ended - (timed.first or ended),
        "task_seconds": timed.task_seconds,
        "records": done.totals.records,
        "rows": sum(done.totals.rows.values()),
        "tables": len(done.totals.rows),
    }
    Path(report).write_text(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
