"""The signals that end a service: a terminal or a service manager sends them to all its processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold these signals back from this thread, and from a process that it starts meanwhile. That process must call
    `ignore_all`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_all() -> None:
    """Ignore these signals in this process, also those that were held back: its parent decides what they mean."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
