"""The ways in which a call to a fake of the outside world can end."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Outcome(Enum):
    """The end of one call, chosen by the test or the simulator before the call is made."""

    OK = auto()
    UNAVAILABLE = auto()  # not applied; the caller knows
    REFUSED = auto()  # not applied: a permission is missing, a hold forbids it
    CRASH_BEFORE = auto()  # the process dies; not applied
    CRASH_AFTER = auto()  # the process dies; applied
    CRASH_LATE = auto()  # the process dies with the call on its way: it applies later, or never
    LOST_REPLY = auto()  # applied; the caller gets UnknownOutcome
    LATE = auto()  # the caller gets UnknownOutcome; the call applies later, or never
    OWN_RETRY = (
        auto()
    )  # applied, then sent again by the client library: the caller sees a conflict with itself


class Call(NamedTuple):
    """A call about to be made. ``target`` is the object, job or table it is about."""

    process: str
    operation: str
    target: str
    writes: bool


class Crash(BaseException):
    """The process that made the call dies here. Not an Exception: no code under test may catch it."""
