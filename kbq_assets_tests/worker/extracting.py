"""A process that does what a Spark worker does: ``python -m kbq_assets_tests.worker.extracting``.

Settings come from the environment. It extracts all topics by tasks in this process, then prints, as JSON, its counts
and its high-water mark of memory in bytes.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import pyspark.worker  # noqa: F401 (every Spark worker has it in memory)

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.definitions import parts
from kbq_assets.worker.task import UnitTask


class InThisProcess:
    """An ExtractionEngine of one slot."""

    def __init__(self, task: UnitTask) -> None:
        self._task = task
        self._outcomes: deque[list[UnitOutcome]] = deque()

    @property
    def idle_slots(self) -> int:
        """One task at a time."""
        return 1 - len(self._outcomes)

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Run the task to its end."""
        self._outcomes.append(self._task(units))

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """The last task's outcomes."""
        return self._outcomes.popleft() if self._outcomes else []

    def complaint(self) -> str:
        """None: a task has ended before anybody asks."""
        return ""

    def cancel(self, reason: str) -> None:
        """Nothing is left to cancel."""


def high_water_mark() -> int:
    """The largest resident memory that this process ever had, in bytes."""
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Extract everything; print what it took."""
    opened = parts()
    report = opened.extractor.extract(InThisProcess(UnitTask(opened.deployment.settings)))
    assert not report.failures and not report.stops, (report.failures, report.stops)
    totals = report.totals
    print(
        json.dumps(
            {
                "rows": sum(totals.rows.values()),
                "tables": len(totals.rows),
                "errors": totals.errors,
                "bytes": totals.bytes,
                "peak": high_water_mark(),
            }
        )
    )


if __name__ == "__main__":
    main()
