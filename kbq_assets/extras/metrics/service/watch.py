"""One dependency, looked at again and again by one thread. What was read last is kept while it is away."""

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
#: A look that takes longer counts as failed for as long as it goes on.
_PATIENCE_SECONDS: Final = 60.0
#: A slow look is followed by a pause so much longer: at most a tenth of the time goes to looking.
_PAUSES: Final = 10


@dataclass(frozen=True)
class Reading(Generic[T]):
    """What is known: the last good value and its age, whether the last look was good, and what was wrong with it.

    Without any look yet ``is_up`` is None."""

    value: T | None
    age_seconds: float | None
    is_up: bool | None
    error: str = ""


class Watch(Generic[T]):
    """Looks by `look`, which no two threads do at once; `start` lets a thread do so."""

    def __init__(self, name: str, read: Callable[[], T], clock: Clock, seconds: float) -> None:
        self.name = name
        self._read = read
        self._clock = clock
        self._seconds = seconds
        self._one_at_a_time = threading.Lock()
        self._value: T | None = None
        self._good_at: float | None = None
        self._is_up: bool | None = None
        self._error = ""
        self._begun: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"kbq-watch-{name}", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Look no more. A look under way is waited for, and left alone if it takes longer."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def look(self) -> None:
        """Look once, now."""
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
    def last(self) -> Reading[T]:
        """What is known now."""
        now, begun, good_at = self._clock.monotonic(), self._begun, self._good_at
        age = None if good_at is None else now - good_at
        if begun is not None and now - begun > _PATIENCE_SECONDS:
            return Reading(self._value, age, False, f"no answer for {now - begun:.0f} seconds")
        return Reading(self._value, age, self._is_up, self._error)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, KbqError):
            _LOGGER.error("looking at the %s failed", self.name, exc_info=error)
        # Its next step is told on /status: an operator reads it there.
        self._is_up, self._error = False, f"{type(error).__name__}: {error}"

    def _go_on(self) -> None:
        pause = 0.0
        while not self._end.wait(pause):
            begun = self._clock.monotonic()
            self.look()
            pause = max(self._seconds, _PAUSES * (self._clock.monotonic() - begun))
