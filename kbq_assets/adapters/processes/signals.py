"""Signals of child processes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final

#: Signals that ask a program to end.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Within the block, start children that a signal can end, even if this process ignores the signal.

    An ignored signal stays ignored across `exec`, but a handled one does not. So the block replaces "ignored" with a
    handler that does nothing. Python can set handlers only in the main thread, so in others the block has no effect.
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
