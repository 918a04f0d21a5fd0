"""The status of batches of files (docs/file-batches.md), for checks, status, notices and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kbq_assets.core.observation.check_names import BATCHES_APPLY
from kbq_assets.core.observation.checks import CheckResult, failed


@dataclass(frozen=True)
class PrefixArrivals:
    """The batches of one table prefix that are not applied.

    ``failed`` and ``parked`` wait for a person: a job failed, or the configuration or a rule keeps the batch back.
    ``waiting`` need no decision; the oldest was uploaded at ``oldest_ms``, 0 if that is unknown.
    """

    prefix: str
    failed: int = 0
    parked: int = 0
    waiting: int = 0
    oldest_ms: int = 0
    #: what waits for a person or too long, in words, and the commands that go on
    problems: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def result(self) -> CheckResult:
        stopped, waiting = self.failed + self.parked, self.waiting
        if self.problems:
            found = self.problems, self.commands
            return failed(
                BATCHES_APPLY, self.prefix, *found, stopped_batches=stopped, waiting_batches=waiting
            )
        text = "no batch of files waits for a person"
        return CheckResult(BATCHES_APPLY, self.prefix, text, numbers={"waiting_batches": waiting})

    @property
    def message(self) -> str:
        """What waits for a person, in one line; "" if nothing does."""
        return "" if self.result.passed else self.result.message


@dataclass(frozen=True)
class Arrivals:
    """All table prefixes. ``unknown`` says why they could not be read now, "" if they could."""

    prefixes: tuple[PrefixArrivals, ...] = ()
    unknown: str = ""

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(each.result for each in self.prefixes)

    @property
    def problems(self) -> Iterator[PrefixArrivals]:
        """The table prefixes in which something waits for a person."""
        return (each for each in self.prefixes if each.problems)

    @property
    def unknown_checks(self) -> Mapping[str, str]:
        """The checks that could not run, and why."""
        return {BATCHES_APPLY: self.unknown} if self.unknown else {}
