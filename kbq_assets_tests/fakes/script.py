"""Scripted faults: the nth matching call ends in a given way, or something happens just before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kbq_assets_tests.fakes.faults import Call, Outcome


@dataclass
class Script:
    """Asked before every call of a fake's view. ``calls`` is everything that was asked."""

    operation: str
    target: str = ""
    outcome: Outcome = Outcome.OK
    nth: int = 1
    before: Callable[[], object] | None = None
    calls: list[Call] = field(default_factory=list)

    def __call__(self, call: Call) -> Outcome:
        """The outcome of a call."""
        self.calls.append(call)
        if call.operation != self.operation or not call.target.startswith(self.target):
            return Outcome.OK
        self.nth -= 1
        if self.nth != 0:
            return Outcome.OK
        if self.before is not None:
            self.before()
        return self.outcome
