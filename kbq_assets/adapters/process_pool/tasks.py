"""Runs units of extraction and work on tables in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from kbq_assets.adapters.process_pool.pool import ProcessPool, TaskFailed, WorkerDied
from kbq_assets.adapters.task_threads import TaskThreads
from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.ports.engine import OfTable

Item = TypeVar("Item", bound=OfTable)
Outcome = TypeVar("Outcome")


class ProcessEngine:
    """An ExtractionEngine on a pool, with one task per process."""

    def __init__(self, pool: ProcessPool, task: Callable[[tuple[Unit, ...]], list[UnitOutcome]]) -> None:
        self._pool = pool
        self._tasks = TaskThreads(partial(pool.run, task), _failed)

    @property
    def idle_slots(self) -> int:
        """Number of tasks that could start now. Raises EngineEnded."""
        self._pool.check()
        return self._pool.size - len(self._tasks)

    def submit(self, units: tuple[Unit, ...]) -> None:
        self._tasks.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        return self._tasks.next_outcomes(timeout_seconds)

    def complaint(self) -> str:
        """Always "": a submitted task runs."""
        return ""

    def cancel(self, reason: str) -> None:
        """Give up every task, and end the processes that run tasks."""
        self._tasks.give_up(reason)
        self._pool.give_up()


class ProcessTasks(Generic[Item, Outcome]):
    """Runs a task per item, with as many at once as the pool has processes. ``what`` names the work."""

    def __init__(self, pool: Callable[[], ProcessPool], task: Callable[[Item], Outcome], what: str) -> None:
        self._pool = pool
        self._task = task
        self._what = what

    def __call__(self, items: Sequence[Item]) -> list[Outcome]:
        """An outcome per item. Raises EngineEnded, or Unavailable if a task raises or dies; its files are then
        orphans."""
        pool = self._pool()
        try:
            with ThreadPoolExecutor(pool.size) as threads:
                try:
                    return list(threads.map(partial(pool.run, self._task), items))
                finally:
                    pool.give_up()  # after an error or Ctrl-C, nobody waits for the other tasks
        except (TaskFailed, WorkerDied) as error:
            raise Unavailable(
                f"a task of {self._what} {items[0].table} failed: {error}",
                next_step="nothing was committed; the next run tries again",
            ) from error


def _failed(unit: Unit, error: Exception) -> UnitOutcome:
    """The outcome of a unit whose task raised or died, or could not start."""
    message = error.message if isinstance(error, KbqError) else str(error)
    return UnitOutcome(unit, failure=f"the task failed: {message}", has_died=isinstance(error, WorkerDied))
