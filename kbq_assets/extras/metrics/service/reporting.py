"""Sends reports to pushing reporters, in one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from kbq_assets.extras.metrics.reporters import Reporter
from kbq_assets.extras.metrics.service.watches import Watches
from kbq_assets.ports.clock import Clock

_LOGGER: Final = logging.getLogger("kbq.service")


class Reporting:
    """Sends the watches' metrics to every reporter. A failing reporter does not affect the others."""

    def __init__(
        self, watches: Watches, reporters: Mapping[str, Reporter], clock: Clock, seconds: float
    ) -> None:
        self._watches = watches
        self._reporters = reporters
        self._clock = clock
        self._seconds = seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="kbq-reports", daemon=True)

    def start(self) -> None:
        """Start sending, if there is a reporter."""
        if self._reporters:
            self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop sending."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def report(self) -> None:
        """Send one report to each reporter."""
        families, now_ms = self._watches.families(), self._clock.now_ms()
        for name, reporter in self._reporters.items():
            try:
                reporter.report(families, now_ms)
            except Exception as error:
                # Another package's code, or a server that is away: the next report has all values.
                failed = self._watches.failed_reports
                failed[name] = failed.get(name, 0) + 1
                _LOGGER.warning("the reporter %s failed: %s: %s", name, type(error).__name__, error)

    def _go_on(self) -> None:
        while not self._end.wait(self._seconds):
            self.report()
