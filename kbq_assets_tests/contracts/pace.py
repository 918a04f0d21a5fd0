"""The speed of an operation, on a machine that may be busy for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 5


def goes_within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether one of several calls takes no longer than this. The first one that does is the last one made."""
    return any(_seconds(call) <= seconds for _ in range(_TRIES))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun
