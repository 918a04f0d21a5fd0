"""Ctrl-C and its like: the first ends a command in order, further ones do not disturb its end."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """From now on any of the signals raises KeyboardInterrupt, once. What then stops children is bounded in time."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
