"""A finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The result of a check. ``warn``: it works, but may soon fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One finding. ``found`` describes the situation, and ``fix`` what to do about it."""

    name: str
    outcome: Outcome
    found: str
    fix: str = ""
