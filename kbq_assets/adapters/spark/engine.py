"""Runs units of extraction as Spark tasks.

Each submission is a Spark job of one task, from a thread of its own: tasks end one by one, so windows are published
as they end, never behind the slowest partition (PROTOCOL E4), and a failing task takes nothing else with it.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Callable
from typing import Any

from pyspark import InheritableThread, SparkContext

from kbq_assets.core.units import Unit, UnitOutcome

#: What a task runs: importable by workers, so that only its name and the units are shipped.
Task = Callable[[tuple[Unit, ...]], list[UnitOutcome]]


class SparkEngine:
    """An ExtractionEngine on a Spark context. ``slots`` tasks at a time; by default the cluster's cores, as many as
    there are at the moment: a cluster's executors arrive after the driver, and may leave."""

    def __init__(self, context: SparkContext, task: Task, slots: int = 0) -> None:
        self._context = context
        self._task = task
        self._slots = slots
        self._running = 0
        self._outcomes: queue.Queue[list[UnitOutcome]] = queue.Queue()

    @property
    def idle_slots(self) -> int:
        """How many more tasks would start at once."""
        return (self._slots or self._context.defaultParallelism) - self._running

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start one task."""
        self._running += 1
        InheritableThread(target=self._run, args=(units,), daemon=True).start()

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes of the tasks that have ended."""
        try:
            outcomes = self._outcomes.get(timeout=timeout_seconds)
        except queue.Empty:
            return []
        self._running -= 1
        return outcomes

    def _run(self, units: tuple[Unit, ...]) -> None:
        try:
            self._outcomes.put(self._collect(units))
        except Exception as error:
            # A task that Spark gave up, whatever the reason: its windows are orphans, the next run reads them again.
            reason = f"the Spark task failed: {_cause(error)}"
            self._outcomes.put([UnitOutcome(unit, failure=reason) for unit in units])

    def _collect(self, units: tuple[Unit, ...]) -> list[UnitOutcome]:
        first = units[0].range
        description = f"extract {first}" + (f" and {len(units) - 1} more" if len(units) > 1 else "")
        self._context.setLocalProperty("spark.job.description", description)
        task: Any = self._task
        [outcomes] = self._context.parallelize([units], 1).map(task).collect()
        return list(outcomes)


def _cause(error: Exception) -> str:
    """The line that tells, of Spark's many: the Python exception inside the task, else the first."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return (raised or lines)[-1 if raised else 0]
