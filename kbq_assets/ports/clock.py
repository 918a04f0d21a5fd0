"""Time, for pacing and display only: no rule of the protocol depends on it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A clock that tests can move."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the local clock, which may be wrong: for labels and pacing only."""

    def cpu_seconds(self) -> float:
        """Processor time of this process so far, all threads."""

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
