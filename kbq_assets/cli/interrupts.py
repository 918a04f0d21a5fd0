"""Ctrl-C, SIGTERM and SIGHUP: the first signal ends a command gracefully; later ones are ignored."""

from __future__ import annotations

import signal
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


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
