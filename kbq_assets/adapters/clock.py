"""The machine's clock."""

from __future__ import annotations

import time


class SystemClock:
    """The `Clock` port."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def cpu_seconds(self) -> float:
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds. Returns at once if they are zero or negative."""
        time.sleep(max(0.0, seconds))
