"""Runs units of extraction as Spark tasks.

Each submission is a Spark job with one task, from its own thread. So windows are published when their task ends,
without waiting for the slowest partition (PROTOCOL E4), and a failed task affects no other. ADR 12 has measurements.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from pyspark import InheritableThread, SparkContext

from kbq_assets.adapters.task_threads import TaskThreads
from kbq_assets.core.errors import EngineEnded
from kbq_assets.core.extraction.units import Unit, UnitOutcome

_LOGGER: Final = logging.getLogger("kbq.extract")
#: Warn if no executor has registered after this many seconds.
QUIET_SECONDS: Final = 30.0
#: Spark's option to add and remove executors with the load.
DYNAMIC_ALLOCATION: Final = "spark.dynamicAllocation.enabled"
#: In the error of a task that died as often as Spark allows. When a context ends, its tasks have other errors.
_ABORTED: Final = "Job aborted due to stage failure"
#: A task's function. Workers import it: Spark ships only its name and the units.
Task = Callable[[tuple[Unit, ...]], list[UnitOutcome]]


class SparkEngine:
    """An ExtractionEngine on a Spark context.

    It runs ``slots`` tasks at a time, by default one per core that the cluster currently has: executors start after the
    driver and may leave. With dynamic allocation it submits twice as many tasks, because Spark adds executors only
    while tasks wait. It complains if no task has run for ``quiet_seconds``. ``thread`` is the class of its threads;
    Spark's own class requires a real context.
    """

    def __init__(
        self,
        context: SparkContext,
        task: Task,
        slots: int = 0,
        quiet_seconds: float = QUIET_SECONDS,
        thread: Callable[..., threading.Thread] = InheritableThread,
    ) -> None:
        self._context = context
        self._task = task
        self._slots = slots
        self._quiet_seconds = quiet_seconds
        self._group = f"kbq-{uuid.uuid4().hex}"
        self._tasks = TaskThreads(self._collect, _failed, thread)

    @property
    def idle_slots(self) -> int:
        """Number of tasks that could start now. Raises EngineEnded."""
        return self._most_tasks() - len(self._tasks)

    def _most_tasks(self) -> int:
        if self._slots:
            return self._slots
        try:
            grows, cores = self._grows, self._context.defaultParallelism
        except Exception as error:  # a stopped context and a dead JVM raise many kinds
            raise EngineEnded(
                f"the Spark application on {self._context.master} has ended: {cause(error)}",
                next_step="start the command again: the next run continues where this one stopped",
            ) from error
        return cores * 2 if grows else cores

    @cached_property
    def _grows(self) -> bool:
        # Read once: Spark copies all of its options, which takes as long as a job.
        return str(self._context.getConf().get(DYNAMIC_ALLOCATION, "false")) == "true"

    def submit(self, units: tuple[Unit, ...]) -> None:
        self._tasks.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        return self._tasks.next_outcomes(timeout_seconds)

    def complaint(self) -> str:
        """A message if no task has been running for a while, otherwise "". Spark itself only waits."""
        seconds = time.monotonic() - self._tasks.last_sign
        if not self._tasks or seconds < self._quiet_seconds:
            return ""
        if self._is_any_running():
            self._tasks.last_sign = time.monotonic()
            return ""
        return (
            f"no task has been running for {seconds:.0f} s: {self._context.master} provides no executor. Check in its"
            " UI whether it has workers with free cores and memory (spark.cores.max, spark.executor.memory), and"
            " whether executors start and reach this driver (spark.driver.host)"
        )

    def cancel(self, reason: str) -> None:
        """Give up every task without waiting for Spark."""
        self._tasks.give_up(reason)
        try:
            self._context.cancelJobGroup(self._group)
        except Exception as error:
            # The outcomes are already queued, whatever happens to Spark.
            _LOGGER.warning("Spark's jobs could not be canceled: %s", cause(error))

    def _is_any_running(self) -> bool:
        tracker = self._context.statusTracker()
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def _collect(self, units: tuple[Unit, ...]) -> list[UnitOutcome]:
        first = units[0].range
        description = f"extract {first}" + (f" and {len(units) - 1} more" if len(units) > 1 else "")
        self._context.setJobGroup(self._group, description)
        task: Any = self._task
        [outcomes] = self._context.parallelize([units], 1).map(task).collect()
        return list(outcomes)


def _failed(unit: Unit, error: Exception) -> UnitOutcome:
    """The outcome of a unit whose task failed."""
    return UnitOutcome(
        unit, failure=f"the Spark task failed: {cause(error)}", has_died=_ABORTED in str(error)
    )


def cause(error: Exception) -> str:
    """The line of Spark's message that has the task's Python exception, otherwise the first line."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return (raised or lines)[-1 if raised else 0]
