"""What runs units of extraction: Spark tasks, or the same function in this process."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.core.units import Unit, UnitOutcome


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
