"""What runs units of extraction: Spark tasks, or the same function in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from kbq_assets.core.extraction.units import Unit, UnitOutcome


class ExtractionEngine(Protocol):
    """Guarantees: every unit submitted comes back as exactly one outcome, also when its task dies (as a failure).
    A task may run more than once; only the outcome that comes back counts."""

    @property
    def idle_slots(self) -> int:
        """How many more tasks would start at once."""

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task that reads these units one after another."""

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes that have arrived; waits for the first at most the timeout."""

    def complaint(self) -> str:
        """What keeps all submitted tasks from running, for a while now, and what to do; empty where they run."""

    def cancel(self, reason: str) -> None:
        """Give up every task: what has not come back comes back as a failure for this reason. A task may go on
        nevertheless; what it stages is an orphan (PROTOCOL E3)."""


class OnDemandEngine:
    """An engine that is opened by the first unit: a run with nothing to read starts no Spark."""

    def __init__(self, open_engine: Callable[[], ExtractionEngine]) -> None:
        self._open = open_engine

    @cached_property
    def _engine(self) -> ExtractionEngine:
        return self._open()

    @property
    def idle_slots(self) -> int:
        """How many more tasks would start at once."""
        return self._engine.idle_slots

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task."""
        self._engine.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes of the tasks that have ended."""
        return self._engine.next_outcomes(timeout_seconds)

    def complaint(self) -> str:
        """What keeps all tasks from running."""
        return self._engine.complaint()

    def cancel(self, reason: str) -> None:
        """Give up every task."""
        self._engine.cancel(reason)
