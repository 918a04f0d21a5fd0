"""Where tasks run: on Spark, or in processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.names import TableReference


class OfTable(Protocol):
    """An item of work for a task."""

    @property
    def table(self) -> TableReference | str:
        """The table or topic that it is about."""


class ExtractionEngine(Protocol):
    """Guarantees: every submitted unit yields exactly one outcome; if its task dies, a failure.
    A task may run more than once; only the returned outcome counts."""

    @property
    def idle_slots(self) -> int:
        """The number of tasks that would start at once."""

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task that reads these units one after another."""

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes that have arrived; waits at most ``timeout_seconds`` for the first."""

    def complaint(self) -> str:
        """Why no submitted task has run for a while, and what to do; empty if tasks run."""

    def cancel(self, reason: str) -> None:
        """Give up every task: a unit without an outcome fails for this reason. A task may continue nevertheless;
        its files become orphans (PROTOCOL E3)."""


class OnDemandEngine:
    """An engine that opens with the first unit: a run with nothing to read starts no Spark."""

    def __init__(self, open_engine: Callable[[], ExtractionEngine]) -> None:
        self._open = open_engine

    def renew(self) -> None:
        """Open anew with the next unit: another extraction begins. Call it while no task runs."""
        self.__dict__.pop("_engine", None)

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
        """Why no submitted task runs."""
        return self._engine.complaint()

    def cancel(self, reason: str) -> None:
        """Give up every task."""
        self._engine.cancel(reason)
