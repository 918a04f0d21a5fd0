"""A clock that advances only on request."""

from __future__ import annotations


class FakeClock:
    """The `Clock` port. Sleeping advances it. A test sets ``cpu`` and ``skew_ms``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu = 0.0
        self.skew_ms = 0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.seconds * 1000) + self.skew_ms

    def cpu_seconds(self) -> float:
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.seconds += max(0.0, seconds)
