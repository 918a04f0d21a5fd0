"""Ctrl-C, SIGTERM and SIGHUP: the first signal ends a command gracefully; later ones are ignored."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """Raise KeyboardInterrupt at the first of these signals. There is a time limit for stopping child processes."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


@contextmanager
def drain_first(drain: Callable[[], object]) -> Iterator[None]:
    """Within the block, the first of these signals calls ``drain``, and the next one raises KeyboardInterrupt."""

    def begin(number: int, frame: FrameType | None) -> None:
        end_in_order()
        drain()

    before = {number: signal.signal(number, begin) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def clean_up_first() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise KeyboardInterrupt, so temporary files are deleted and child processes
    end. Then the process ends by the signal, as it would without this. Signals that the caller ignores stay ignored."""
    received: list[int] = []

    def begin(number: int, frame: FrameType | None) -> NoReturn:
        received.append(number)
        _interrupt(number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    taken = [n for n in _SIGNALS[1:] if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, begin)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        if received:
            os.kill(os.getpid(), received[0])


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
