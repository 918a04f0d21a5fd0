"""Local time, for pacing and display only. No rule of the protocol depends on it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A clock that tests can advance."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never decreases."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the local clock, which may be wrong. For labels and pacing only."""

    def cpu_seconds(self) -> float:
        """CPU time of this process so far, over all threads."""

    def sleep(self, seconds: float) -> None:
        """Sleep for the given seconds."""
