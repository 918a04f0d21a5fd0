"""The watch of a dependency: a thread that polls it, and the last reading while it is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kbq_assets.core.errors import KbqError
from kbq_assets.ports.clock import Clock

T = TypeVar("T")
_LOGGER: Final = logging.getLogger("kbq.service")
#: A poll that takes longer counts as failed while it runs.
_PATIENCE_SECONDS: Final = 60.0
#: The pause after a slow poll, as a multiple of its time: polls take at most a tenth of the time.
_PAUSES: Final = 10


@dataclass(frozen=True)
class LastReading(Generic[T]):
    """The last good value and its age, whether the last poll succeeded, and its problem.

    Before the first poll ``is_up`` is None."""

    value: T | None
    age_seconds: float | None
    is_up: bool | None
    error: str = ""


class Watch(Generic[T]):
    """Polls with `poll`, one thread at a time; `start` polls again and again in a thread."""

    def __init__(self, name: str, read: Callable[[], T], clock: Clock, seconds: float) -> None:
        self.name = name
        self._read = read
        self._clock = clock
        self._seconds = seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"kbq-{name}", daemon=True)
        self._one_at_a_time = threading.Lock()
        self._value: T | None = None
        self._good_at: float | None = None
        self._is_up: bool | None = None
        self._error = ""
        self._begun: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the thread. Waits for a poll under way, and abandons it if it takes too long."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Poll once, now."""
        with self._one_at_a_time:
            self._begun = self._clock.monotonic()
            try:
                self._value = self._read()
            except Exception as error:
                self._fail(error)
            else:
                self._good_at, self._is_up, self._error = self._clock.monotonic(), True, ""
            finally:
                self._begun = None

    @property
    def last(self) -> LastReading[T]:
        """The last reading."""
        now, begun, good_at = self._clock.monotonic(), self._begun, self._good_at
        age = None if good_at is None else now - good_at
        if begun is not None and now - begun > _PATIENCE_SECONDS:
            return LastReading(self._value, age, False, f"no answer for {now - begun:.0f} seconds")
        return LastReading(self._value, age, self._is_up, self._error)

    def _go_on(self) -> None:
        pause = 0.0
        while not self._end.wait(pause):
            begun = self._clock.monotonic()
            self.poll()
            pause = max(self._seconds, _PAUSES * (self._clock.monotonic() - begun))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, KbqError):
            _LOGGER.error("polling the %s failed", self.name, exc_info=error)
        # /status shows the next step to operators.
        self._is_up, self._error = False, f"{type(error).__name__}: {error}"
