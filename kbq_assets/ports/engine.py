"""Engines that run tasks: on Spark, or in processes of this machine."""

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
        """The table or topic that it works on."""


class ExtractionEngine(Protocol):
    """Guarantees: every submitted unit yields exactly one outcome, which is a failure if its task dies. A task may run
    more than once; only the returned outcome counts."""

    @property
    def idle_slots(self) -> int:
        """The number of tasks that would start at once."""

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task that reads these units one after another."""

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes that have arrived. Waits at most ``timeout_seconds`` for the first."""

    def complaint(self) -> str:
        """The reason that no submitted task has run for a while, and what to do; empty if tasks run."""

    def cancel(self, reason: str) -> None:
        """Give up all tasks: units without an outcome fail with this reason. Tasks may continue nevertheless; their
        files become orphans (PROTOCOL E3)."""


class OnDemandEngine:
    """An engine that starts with its first unit, so a run with nothing to read does not start Spark."""

    def __init__(self, open_engine: Callable[[], ExtractionEngine]) -> None:
        self._open = open_engine

    def renew(self) -> None:
        """Start a new engine with the next unit, for another extraction. Call it only while no task runs."""
        self.__dict__.pop("_engine", None)

    @cached_property
    def _engine(self) -> ExtractionEngine:
        return self._open()

    @property
    def idle_slots(self) -> int:
        """The number of tasks that would start at once."""
        return self._engine.idle_slots

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Start a task."""
        self._engine.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Outcomes of the tasks that have ended."""
        return self._engine.next_outcomes(timeout_seconds)

    def complaint(self) -> str:
        """As for `ExtractionEngine`."""
        return self._engine.complaint()

    def cancel(self, reason: str) -> None:
        """Give up all tasks."""
        self._engine.cancel(reason)
