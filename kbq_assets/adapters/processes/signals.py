"""Signals of child processes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final

#: What ends a program in order.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Children that start inside the block can be ended by a signal, even if this process ignores it.

    An ignored signal stays ignored across `exec`, a handled one does not. So a handler that does nothing stands in for
    "ignored". Python sets handlers in the main thread alone: in any other, the block changes nothing.
    """
    ignored = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        ignored = []
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
