"""Runs an engine's tasks concurrently. A thread waits for each task."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable

from kbq_assets.core.extraction.units import Unit, UnitOutcome

#: Runs one task to its end. It may raise any exception.
RunTask = Callable[[tuple[Unit, ...]], list[UnitOutcome]]


class TaskThreads:
    """Starts tasks and returns their outcomes: one per unit, even if its task fails.

    ``failed`` returns the outcome of a unit whose task raised an exception. ``thread`` is the class of the threads.
    """

    def __init__(
        self,
        run: RunTask,
        failed: Callable[[Unit, Exception], UnitOutcome],
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._run = run
        self._failed = failed
        self._thread = thread
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Unit, ...]] = {}
        self._ended: queue.Queue[tuple[int, list[UnitOutcome]]] = queue.Queue()
        #: Monotonic time at which the first task started or the last one ended.
        self.last_sign = time.monotonic()

    def __len__(self) -> int:
        """Number of running tasks."""
        return len(self._open)

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task."""
        if not self._open:
            self.last_sign = time.monotonic()
        number = next(self._numbers)
        self._open[number] = units
        self._thread(target=self._await, args=(number, units), daemon=True).start()

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """The outcomes so far. Waits at most ``timeout_seconds`` for the first."""
        arrived: list[UnitOutcome] = []
        with contextlib.suppress(queue.Empty):
            number, outcomes = self._ended.get(timeout=timeout_seconds)
            while True:
                if self._open.pop(number, None) is not None:  # otherwise it was canceled
                    self.last_sign = time.monotonic()
                    arrived += outcomes
                number, outcomes = self._ended.get_nowait()
        return arrived

    def give_up(self, reason: str) -> None:
        """Report every running task as failed for this reason, without waiting for it."""
        for number, units in self._open.items():
            self._ended.put((number, [UnitOutcome(unit, failure=reason) for unit in units]))

    def _await(self, number: int, units: tuple[Unit, ...]) -> None:
        try:
            self._ended.put((number, self._run(units)))
        except Exception as error:
            # The task's files are orphans. The next run reads the units again.
            self._ended.put((number, [self._failed(unit, error) for unit in units]))
